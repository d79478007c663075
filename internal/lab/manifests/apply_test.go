package manifests

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestRetry: an API server that does not answer, or not yet, is asked again; what it refuses is an error at once.
func TestRetry(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/refused") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		switch requests++; requests {
		case 1:
			panic(http.ErrAbortHandler) // the connection is closed
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Served(ctx, client.CoreV1().RESTClient(), "/api/v1/namespaces/default"); err != nil || requests != 4 {
		t.Errorf("%v after %d requests", err, requests)
	}
	if err := Served(ctx, client.CoreV1().RESTClient(), "/refused"); err == nil || ctx.Err() != nil {
		t.Errorf("refused: %v", err)
	}
}
