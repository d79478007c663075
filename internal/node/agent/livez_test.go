package agent

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/service"
)

// TestLivez: an agent that waits for another service proxy is alive and ready, though that one has its ports and knows neither /livez nor
// /readyz. One that does not get its rules written is not alive.
func TestLivez(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	o := options.Defaults()
	o.PodUID, o.HealthzAddress, o.MetricsAddress = rand.Text(), other.Listener.Addr().String(), other.Listener.Addr().String()
	o.SyncPeriod = 10 * time.Millisecond
	if err := Livez(t.Context(), o.PodUID); err == nil {
		t.Error("nobody is alive")
	}
	for _, o.ServiceProxy = range []bool{false, true} {
		a := newAgent(o, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		if err := a.serve(ctx, &beside); err != nil {
			t.Fatal(err)
		}
		if err := Livez(ctx, o.PodUID); err != nil {
			t.Errorf("service proxy %v: while it waits: %v", o.ServiceProxy, err)
		}
		if o.ServiceProxy {
			if err := Readyz(ctx, o.PodUID); err == nil || !strings.Contains(err.Error(), "503") {
				t.Errorf("ready before its first sync: %v", err)
			}
		}
		a.waiter.Set([]string{"kube-proxy (pid 141)"}, nil)
		if err := Readyz(ctx, o.PodUID); err != nil {
			t.Errorf("service proxy %v: not ready while it waits: %v", o.ServiceProxy, err)
		}
		a.health.SetNodeEligible(false) // about load balancers, not about us
		if err := Livez(ctx, o.PodUID); err != nil {
			t.Errorf("on a node that is to be deleted: %v", err)
		}
		a.health.Queued(service.IPv4)
		time.Sleep(3 * o.SyncPeriod)
		if err := Livez(ctx, o.PodUID); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("what waits to be written for too long: %v", err)
		}
		cancel()
		beside.Wait()
	}
	if l, err := net.Listen("unix", livezSocket(o.PodUID)); err != nil {
		t.Errorf("the name is not free again: %v", err)
	} else {
		_ = l.Close()
	}
}
