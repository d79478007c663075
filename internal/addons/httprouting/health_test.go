package httprouting

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestHealthWithoutKeepAlive: the health server closes each connection when it has answered, also while the API server is unreachable.
func TestHealthWithoutKeepAlive(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunController(ctx, ControllerOptions{Config: &rest.Config{Host: "http://127.0.0.1:1"}, Health: address, AccessLog: io.Discard,
			Log: log.New(io.Discard, "", 0)})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/healthz")
		if err == nil {
			resp.Body.Close()
			if !resp.Close {
				t.Error("the connection is kept")
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
