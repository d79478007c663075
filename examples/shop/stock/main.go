// Command stock sells items, and keeps in a folder how many it has sold of each: a file an item.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	name, _ = os.Hostname()
	valid   = regexp.MustCompile(`^[a-z]{1,20}$`)
)

func main() {
	folder, err := os.OpenRoot(os.Getenv("DATA"))
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	answer := func(more int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			item := r.PathValue("item")
			if !valid.MatchString(item) {
				http.Error(w, "an item is a word", http.StatusBadRequest)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			n, err := sold(folder, item, more)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprintf(w, "%s has sold %d %s\n", name, n, item)
		}
	}
	http.HandleFunc("GET /{item}", answer(0))
	http.HandleFunc("POST /{item}", answer(1))
	http.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// sold counts some more. The file is replaced, so that it is whole whenever this ends.
func sold(folder *os.Root, item string, more int) (int, error) {
	text, err := folder.ReadFile(item)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text))) // none yet
	if more == 0 {
		return n, nil
	}
	if err := folder.WriteFile(item+".new", fmt.Appendln(nil, n+more), 0o644); err != nil {
		return 0, err
	}
	return n + more, folder.Rename(item+".new", item)
}
