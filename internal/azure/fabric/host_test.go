package fabric

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
)

// brokenListener fails at once.
type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, errors.New("broken") }
func (brokenListener) Close() error              { return nil }

// TestWireServerComesBack: a wire server that cannot answer any more is a fault until it listens again.
func TestWireServerComesBack(t *testing.T) {
	f := &Fabric{faults: map[string]error{}}
	f.cfg.Log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	asked, end := make(chan bool), make(chan struct{})
	listen := func() (net.Listener, error) {
		asked <- f.Fault() != nil
		return net.Listen("tcp", "127.0.0.1:0")
	}
	go func() {
		defer close(end)
		f.keepServing(ctx, hostService{name: "the wire server", answer: f.wireServer}, brokenListener{}, listen)
	}()
	if fault := <-asked; !fault {
		t.Error("no fault while it does not answer")
	}
	eventually.Succeeds(t, 10*time.Second, f.Fault) // it listens again
	cancel()
	<-end
}
