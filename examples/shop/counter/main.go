// Command counter counts a node's orders, for whoever watches the nodes.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

func main() {
	var orders atomic.Int64
	http.HandleFunc("POST /count", func(http.ResponseWriter, *http.Request) { orders.Add(1) })
	http.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s: %d orders; you are %s\n", os.Getenv("NODE"), orders.Load(), r.RemoteAddr)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
