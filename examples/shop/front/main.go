// Command front is the shop's web server: it shows what is for sale, and takes orders. Each item has one stock that sells it, which the
// stocks' headless service has a name for; and each order is told to the counter of the node that this pod is on.
package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"
)

var items = []string{"apples", "bread", "cheese", "dates"}

// client asks the other services.
var client = &http.Client{Timeout: 3 * time.Second}

func main() {
	stocks, err := strconv.Atoi(os.Getenv("STOCKS"))
	if err != nil || stocks < 1 {
		log.Fatal("STOCKS must be the number of stocks")
	}
	node := os.Getenv("NODE_IP")
	http.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "for sale:", items) })
	http.HandleFunc("GET /sold/{item}", func(w http.ResponseWriter, r *http.Request) {
		ask(w, http.MethodGet, r.PathValue("item"), stocks)
	})
	http.HandleFunc("POST /buy/{item}", func(w http.ResponseWriter, r *http.Request) {
		if !ask(w, http.MethodPost, r.PathValue("item"), stocks) {
			return
		}
		if _, err := send(http.MethodPost, "http://"+node+":9100/count"); err != nil {
			log.Print(err) // it is sold all the same
		}
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// ask passes a question about an item on to the stock that sells it, and its answer back.
func ask(w http.ResponseWriter, method, item string, stocks int) (answered bool) {
	if !slices.Contains(items, item) {
		http.Error(w, "this is not for sale", http.StatusNotFound)
		return false
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, item) // a hash takes all
	answer, err := send(method, fmt.Sprintf("http://stock-%d.stock:8080/%s", h.Sum32()%uint32(stocks), item))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return false
	}
	fmt.Fprint(w, answer)
	return true
}

func send(method, url string) (string, error) {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(url + ": " + answer.Status)
	}
	return string(text), err
}
