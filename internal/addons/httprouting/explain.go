package httprouting

import (
	"fmt"
	"net/http"
	"net/url"
)

// explain answers with the decision for a URL, or without one with the problems of all Ingresses.
func (c *controller) explain(w http.ResponseWriter, r *http.Request) {
	table := c.table.Load()
	if table == nil {
		http.Error(w, "the API has not been read yet", http.StatusServiceUnavailable)
		return
	}
	text := r.URL.Query().Get("url")
	if text == "" {
		for _, p := range table.Problems {
			fmt.Fprintln(w, p)
		}
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		http.Error(w, fmt.Sprintf("%q is no URL; write url=http://HOST/PATH", text), http.StatusBadRequest)
		return
	}
	d := table.Match(u.Host, u.Path)
	if d.Route != nil && d.Route.Redirect && u.Scheme == "http" {
		fmt.Fprint(w, "by HTTP: sent to HTTPS; by HTTPS: ")
	}
	fmt.Fprintln(w, d)
}
