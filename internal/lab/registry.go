package lab

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/registry"
)

// registryAddress is where a real node's containerd finds the lab's registry: on the node's own loopback, at a port of the privileged ones
// that nothing else is known for.
var registryAddress = netip.MustParseAddrPort("127.0.0.1:911")

// registryToken is the secret by which a node's containerd is known, the same for all of the node's life.
func (d Dir) registryToken(node string) (string, error) {
	return secretOf(filepath.Join(d.Node(node), "registry-token"))
}

// registries is what a node's containerd is told of registries.
func (l *nodes) registries(n *node) (string, error) {
	token, err := l.dir.registryToken(n.Name)
	return registry.Hosts(registryAddress.String(), filepath.Join(realnode.KubernetesDir, realnode.ClientCA), token), err
}

// serveRegistry serves images to a node's containerd until ctx ends. It listens in the node's network namespace, and nobody else there has
// the token; that it is the lab's containerd knows by the certificate.
func (l *nodes) serveRegistry(ctx context.Context, n *node) error {
	token, err := l.dir.registryToken(n.Name)
	if err != nil {
		return err
	}
	certificate, err := l.access.ca.Serving("registry", registryAddress.Addr(), time.Now())
	if err != nil {
		return err
	}
	server := serve.New(registry.Handler(l.library, token), slog.NewLogLogger(l.log.Handler(), slog.LevelDebug)).WithTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	})
	listener, err := n.ns.Listen(ctx, "tcp", registryAddress.String())
	if err != nil {
		return err
	}
	return server.Serve(ctx, listener)
}
