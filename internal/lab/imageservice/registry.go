package imageservice

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/registry"
)

// registryAddress is where a real node's containerd finds the lab's registry: on the node's own loopback, at a port of the privileged ones
// that nothing else is known for.
var registryAddress = netip.MustParseAddrPort("127.0.0.1:911")

// registryToken returns the secret by which a machine's containerd is known, the same for all of the machine's life. It is kept in dir.
func registryToken(dir string) (string, error) {
	return layout.Secret(filepath.Join(dir, "registry-token"))
}

// RegistryHosts returns what a machine's containerd is told of registries.
func RegistryHosts(dir string) (string, error) {
	token, err := registryToken(dir)
	return registry.Hosts(registryAddress.String(), filepath.Join(realnode.KubernetesDir, realnode.ClientCA), token), err
}

// ServeRegistry serves images to a machine's containerd until ctx ends. It listens in the machine's network namespace, where no other
// client has the token. Containerd recognizes the lab's registry by the certificate.
func (l *Service) ServeRegistry(ctx context.Context, ca *controlplane.Authority, ns *netns.Namespace, dir string) error {
	token, err := registryToken(dir)
	if err != nil {
		return err
	}
	certificate, err := ca.Serving("registry", time.Now(), registryAddress.Addr())
	if err != nil {
		return err
	}
	server := serve.New(registry.Handler(l, token), slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug)).WithTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	})
	listener, err := ns.Listen(ctx, "tcp", registryAddress.String())
	if err != nil {
		return err
	}
	return server.Serve(ctx, listener)
}
