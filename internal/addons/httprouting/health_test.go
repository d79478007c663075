package httprouting

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

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
	eventually.Succeeds(t, 5*time.Second, func() error {
		resp, err := http.Get("http://" + address + "/healthz")
		if err == nil {
			resp.Body.Close()
			if !resp.Close {
				t.Error("the connection is kept")
			}
		}
		return err
	})
}
