package app

import "context"

// defaultBackend returns what ingress controllers send requests to that no Ingress takes: 404, and 200 at /healthz
// (github.com/kubernetes/ingress-nginx, images/ingress-controller-default-backend).
func defaultBackend(ctx context.Context, p *Process) int {
	return listenHTTP(ctx, p, flagValue(p.Args, "port", 8080), func(r *request) response {
		if r.path == "/healthz" {
			return text(200, "ok")
		}
		return text(404, "default backend - 404")
	})
}
