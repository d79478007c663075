package lab

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/container"
)

// resolvConf is the /etc/resolv.conf of a machine that asks a name server.
func resolvConf(server netip.Addr) []byte { return []byte("nameserver " + server.String() + "\n") }

// resolvFile is the name of that file in the directory of a node or host.
const resolvFile = "resolv.conf"

func writeResolvConf(dir string, text []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, resolvFile), text, 0o600)
}

// resolverOf is the name server that a kind of host asks.
func resolverOf(kind string) netip.Addr {
	if kind == kindInternet {
		return plan.InternetResolver
	}
	return plan.AzureResolver
}

// zoneDir is where the resolvers have the zone of the addon for HTTP application routing, in their containers and in the lab's directory.
const (
	zoneDir  = "/var/lib/dns"
	zoneFile = zoneDir + "/httprouting"
)

// resolvers are the name servers outside the cluster. Both know the names of the internet's hosts; Azure's changes the zone, by DNS updates
// (RFC 2136), as Azure's DNS service does by its own API, and the internet's follows.
type resolvers struct {
	apps
	azure *azure
	all   []*host
}

func (l *resolvers) Start(ctx context.Context) error {
	if err := os.MkdirAll(l.dir.path("dns"), 0o700); err != nil {
		return err
	}
	if _, err := zoneSecret(l.dir); err != nil { // its file is mounted
		return err
	}
	l.all = []*host{
		{Host: Host{Name: "azure-dns", Kind: kindAzure, Address: plan.AzureResolver.String(), App: "dns"}, ns: l.azure.Namespace()},
		{Host: Host{Name: "internet-dns", Kind: kindInternet, Address: plan.InternetResolver.String(), App: "dns"}, ns: l.azure.Internet()},
	}
	return l.bring(ctx, l.cluster())
}

// Change gives the name servers other names, by new processes.
func (l *resolvers) Change(ctx context.Context, c change) error { return l.bring(ctx, c.to) }

func (l *resolvers) bring(ctx context.Context, c *cluster.Cluster) error {
	var g errgroup.Group
	for _, m := range l.all {
		args := resolverArgs(m, c)
		if slices.Equal(args, m.args) {
			continue
		}
		if err := m.remove(); err != nil {
			return err
		}
		m.args = args
		m.mounts = []container.Mount{{Source: l.dir.path("dns"), Destination: zoneDir, ReadOnly: m.Kind != kindAzure}}
		if m.Kind == kindAzure {
			m.mounts = append(m.mounts, container.Mount{Source: zoneSecretFile(l.dir), Destination: zoneKeyFile, ReadOnly: true})
		}
		g.Go(func() error { return l.start(ctx, m) })
	}
	return g.Wait()
}

func (l *resolvers) Report(s *Status) {
	for _, m := range l.all {
		m.report(s)
	}
}

func (l *resolvers) Stop() {
	for _, m := range l.all {
		m.end()
	}
}

// The key of DNS updates and of transfers: its name, and the file of its secret in the name server that takes updates.
const (
	zoneKey     = "external-dns"
	zoneKeyFile = "/etc/dns/tsig-secret"
)

func zoneSecretFile(d Dir) string { return d.path("dns-tsig-secret") }

// zoneSecret is that key's secret.
func zoneSecret(d Dir) (string, error) { return secretOf(zoneSecretFile(d)) }

// resolverArgs are the arguments of the application dns.
func resolverArgs(m *host, c *cluster.Cluster) []string {
	args := []string{"--listen", m.Address}
	if c.HasAddon(cluster.AddonHTTPRouting) {
		args = append(args, "--zone", c.HTTPRoutingZone(), "--zone-file", zoneFile)
		if m.Kind == kindAzure {
			args = append(args, "--tsig-keyname", zoneKey, "--tsig-secret-file", zoneKeyFile)
		}
	}
	return append(args, plan.InternetNames(c)...)
}

// dropZone takes the addon's zone away, with what is in it.
func dropZone(d Dir) error {
	err := os.Remove(filepath.Join(d.path("dns"), filepath.Base(zoneFile)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
