package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/serve"
)

// listenIPs are the addresses of the health check node ports: all, or those that node ports are restricted to.
func (a *agent) listenIPs() []string {
	if len(a.NodePortCIDRs) == 0 {
		return nil
	}
	in, err := localAddresses(a.NodePortCIDRs)
	if err != nil {
		a.log("%v; health check node ports listen on all of them", err)
		return nil
	}
	var ips []string
	for _, ip := range in {
		ips = append(ips, ip.String())
	}
	return ips
}

// shutdownTimeout is how long answers that are under way may take when the agent is told to stop.
const shutdownTimeout = 500 * time.Millisecond

// serve starts the servers of health and metrics, which end with the context; wait is done when they have ended.
func (a *agent) serve(ctx context.Context, wait *sync.WaitGroup) error {
	proxyMode := http.NewServeMux()
	proxyMode.Handle("/metrics", &a.metrics.meters)
	proxyMode.Handle("/healthz", a.health.Handler(nil))
	a.faults.serve(proxyMode)
	for _, k := range a.keepers {
		k.serve(proxyMode)
	}
	proxyMode.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(a.Backend)) })
	healthz := a.HealthzAddress
	if !a.ServiceProxy {
		healthz = "" // who is the service proxy is there
	}
	for _, s := range []struct {
		flag, address string
		handler       http.Handler
	}{
		{"--healthz-bind-address", healthz, a.health.Handler(a.metrics.answered)},
		{"--metrics-bind-address", a.MetricsAddress, proxyMode},
	} {
		if s.address == "" {
			continue
		}
		l, err := net.Listen("tcp", s.address)
		if err != nil {
			return fmt.Errorf("%s: %w", s.flag, err)
		}
		wait.Go(func() { a.keepServing(ctx, s.flag, l, s.handler) })
	}
	return nil
}

// keepServing answers on a listener, and on another at the same address when that one fails, until the context ends.
func (a *agent) keepServing(ctx context.Context, what string, l net.Listener, handler http.Handler) {
	address := l.Addr().String()
	for {
		server := serve.New(handler, nil)
		closed := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(closed)
			limit, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
			defer cancel()
			_ = server.Shutdown(limit)
			server.Close()
		})
		err := server.Serve(context.Background(), l)
		if !stop() {
			<-closed
			return
		}
		for err != nil {
			a.faults.note(what, err)
			if !pause.For(ctx, watchRetry) {
				return
			}
			l, err = net.Listen("tcp", address)
		}
		a.faults.note(what, nil)
	}
}
