package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"packetwalk.dev/internal/base/serve"
)

// listenIPs are the addresses of the health check node ports: all, or those that node ports are restricted to.
func (a *agent) listenIPs() []string {
	if len(a.NodePortCIDRs) == 0 {
		return nil
	}
	all, err := localAddresses()
	if err != nil {
		a.log("%v; health check node ports listen on all of them", err)
		return nil
	}
	var ips []string
	for _, ip := range all {
		if slices.ContainsFunc(a.NodePortCIDRs, func(c netip.Prefix) bool { return c.Contains(ip) }) {
			ips = append(ips, ip.String())
		}
	}
	return ips
}

// serve starts the servers of health and metrics.
func (a *agent) serve() (stop func(), err error) {
	proxyMode := http.NewServeMux()
	proxyMode.Handle("/metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	proxyMode.Handle("/healthz", a.health.Handler(nil))
	if a.ipMasq != nil {
		a.ipMasq.state.serve(proxyMode)
	}
	if a.pools != nil {
		a.pools.state.serve(proxyMode)
	}
	proxyMode.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(a.Backend)) })
	var servers []*serve.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), a.ShutdownTimeout)
		defer cancel()
		for _, s := range servers {
			_ = s.Shutdown(ctx) // at its end the process ends, and with it what did not shut down
		}
	}
	for _, s := range []struct {
		flag, address string
		handler       http.Handler
	}{
		{"--healthz-bind-address", a.HealthzAddress, a.health.Handler(a.metrics.answered)},
		{"--metrics-bind-address", a.MetricsAddress, proxyMode},
	} {
		if s.address == "" {
			continue
		}
		l, err := net.Listen("tcp", s.address)
		if err != nil {
			stop()
			return nil, fmt.Errorf("%s: %w", s.flag, err)
		}
		server := serve.New(s.handler, nil)
		servers = append(servers, server)
		go func() {
			if err := server.Serve(context.Background(), l); err != nil {
				a.log("%s: %v", s.flag, err)
			}
		}()
	}
	return stop, nil
}
