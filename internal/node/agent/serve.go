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
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/proxyconfig"
)

// shutdownTimeout is how long answers that are under way may take when the agent is told to stop.
const shutdownTimeout = 500 * time.Millisecond

// serve starts the servers of health and metrics, which end with the context; wait is done when they have ended.
func (a *agent) serve(ctx context.Context, wait *sync.WaitGroup) error {
	proxyMode := http.NewServeMux()
	proxyMode.Handle("/metrics", a.registry)
	proxyMode.Handle("/healthz", a.health.Handler(nil))
	proxyMode.Handle(report.FaultsPath, a.faults)
	if a.masq != nil {
		a.masq.Serve(proxyMode)
	}
	proxyMode.HandleFunc("/proxyMode", a.serveProxyMode)
	proxyMode.HandleFunc(conflict.ReadyPath, a.serveReady)
	proxyMode.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
		report.WriteJSON(w, http.StatusOK, map[string]any{proxyconfig.Group: a.Configz})
	})
	health := http.NewServeMux()
	health.Handle("/", a.health.Handler(a.metrics.CountResponse))
	health.HandleFunc(conflict.ReadyPath, a.serveReady)
	healthz := a.HealthzAddress
	if !a.ServiceProxy {
		healthz = "" // the service proxy listens there
	}
	livez := ""
	if a.PodUID != "" {
		livez = livezSocket(a.PodUID)
	}
	for _, s := range []struct {
		flag, network, address string
		handler                http.Handler
	}{
		{"--healthz-bind-address", "tcp", healthz, health},
		{"--metrics-bind-address", "tcp", a.MetricsAddress, proxyMode},
		{"--pod-uid", "unix", livez, health},
	} {
		if s.address == "" {
			continue
		}
		listen := func() (net.Listener, error) { return net.Listen(s.network, s.address) }
		l, err := listen()
		if err != nil && a.BindHardFail {
			return fmt.Errorf("%s: %w", s.flag, err)
		}
		a.faults.Note(s.flag, err)
		wait.Go(func() { a.keepServing(ctx, s.flag, listen, l, s.handler) })
	}
	return nil
}

// serveProxyMode answers with what the rules of Services are made of. An agent that is not, or not yet, the service proxy has no mode.
func (a *agent) serveProxyMode(w http.ResponseWriter, r *http.Request) {
	if !a.ServiceProxy || a.waiter.Waits() {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte(a.Backend))
}

// serveReady answers 200 where all that the agent is to keep is in force or another process keeps it, else 503 with the reasons. The
// service proxy is ready whatever is wrong with the configuration of what is kept beside it.
func (a *agent) serveReady(w http.ResponseWriter, _ *http.Request) {
	others, unknown := a.waiter.State()
	ready := conflict.Ready{Waiting: others}
	if unknown != nil {
		ready.Unready = append(ready.Unready, takeover.LookFault+": "+unknown.Error())
	}
	if a.ServiceProxy && !a.waiter.Waits() {
		for _, f := range a.Families {
			if why := a.health.Unready(f); why != "" {
				ready.Unready = append(ready.Unready, why)
			}
		}
	}
	if why := a.faults.Of(nodeRulesFault); why != "" {
		ready.Unready = append(ready.Unready, why)
	}
	problems := &ready.Unready
	if a.ServiceProxy {
		problems = &ready.Problems
	}
	if a.masq != nil && (a.acquired.Load() || !a.waiter.Waits()) {
		ready.Unready = append(ready.Unready, a.masq.Unready()...)
		*problems = append(*problems, a.masq.Refusals()...)
	}
	if why := a.faults.Of(apiServerFault); why != "" {
		ready.Problems = append(ready.Problems, why)
	}
	status := http.StatusOK
	if ready.Ready = len(ready.Unready) == 0; !ready.Ready {
		status = http.StatusServiceUnavailable
	}
	report.WriteJSON(w, status, ready)
}

// keepServing answers on a listener, which may be nil, and on another that listen makes when there is none, until the context ends.
func (a *agent) keepServing(ctx context.Context, what string, listen func() (net.Listener, error), l net.Listener, handler http.Handler) {
	for {
		for l == nil {
			if !pause.For(ctx, a.timing.listen) {
				return
			}
			var err error
			l, err = listen()
			a.faults.Note(what, err)
		}
		server := serve.New(handler, nil).WithoutKeepAlive()
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
		a.faults.Note(what, err)
		l = nil
	}
}
