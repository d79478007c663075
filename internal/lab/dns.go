package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/pods/container"
)

// The name servers outside the cluster: Azure's, which machines in a virtual network ask, and the internet's, on its router.
var (
	azureResolver    = vnet.ProbeSource
	internetResolver = vnet.InternetRouter
)

// coreDNSVersion is that of controlplane/go.mod, the one that Kubernetes 1.35 deploys.
const coreDNSVersion = "v1.13.1"

// clusterDomain is the domain of the cluster's names; AKS has no other.
const clusterDomain = "cluster.local"

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
		return internetResolver
	}
	return azureResolver
}

// zoneDir is where the resolvers have the zone of the addon for HTTP application routing, in their containers and in the lab's directory.
const (
	zoneDir  = "/var/lib/dns"
	zoneFile = zoneDir + "/httprouting"
)

// takesUpdates tells whether a resolver changes the zone. Azure's does, by DNS updates (RFC 2136), as Azure's DNS service does by its own API;
// the internet's follows.
func (l *lab) takesUpdates(m *host) bool { return m.Kind == kindAzure }

// resolverArgs are the arguments of the application dns.
func (l *lab) resolverArgs(m *host, c *cluster.Cluster) []string {
	args := []string{"-listen", m.Address}
	if c.HasAddon(cluster.AddonHTTPRouting) {
		args = append(args, "-zone", c.HTTPRoutingZone(), zoneFile)
		if l.takesUpdates(m) {
			args = append(args, "-update")
		}
	}
	return append(args, zone(c)...)
}

func (l *lab) resolverMounts(m *host) []container.Mount {
	return []container.Mount{{Source: l.dir.path("dns"), Destination: zoneDir, ReadOnly: !l.takesUpdates(m)}}
}

// dropZone takes the addon's zone away, with what is in it.
func (l *lab) dropZone() error {
	err := os.Remove(filepath.Join(l.dir.path("dns"), filepath.Base(zoneFile)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// startResolvers runs the name servers outside the cluster. Both know the names of the internet's hosts.
func (l *lab) startResolvers(ctx context.Context) error {
	if err := os.MkdirAll(l.dir.path("dns"), 0o700); err != nil {
		return err
	}
	l.mu.Lock()
	l.resolvers = []*host{
		{Host: Host{Name: "azure-dns", Kind: kindAzure, Address: azureResolver.String(), App: "dns"}, ns: l.fabric.Namespace()},
		{Host: Host{Name: "internet-dns", Kind: kindInternet, Address: internetResolver.String(), App: "dns"}, ns: l.fabric.Internet()},
	}
	l.mu.Unlock()
	var g errgroup.Group
	for _, m := range l.resolvers {
		m.args, m.mounts, m.done = l.resolverArgs(m, l.cluster), l.resolverMounts(m), make(chan struct{})
		l.startApp(ctx, &g, m)
	}
	return g.Wait()
}

// reviseResolvers gives the name servers other names, by new processes.
func (l *lab) reviseResolvers(ctx context.Context, to *cluster.Cluster) error {
	var g errgroup.Group
	for _, m := range l.resolvers {
		args := l.resolverArgs(m, to)
		if slices.Equal(args, m.args) {
			continue
		}
		m.stop()
		<-m.done
		if m.app != nil {
			if err := m.app.Remove(); err != nil {
				return err
			}
		}
		m.args, m.done = args, make(chan struct{})
		l.startApp(ctx, &g, m)
	}
	return g.Wait()
}

// zone are the internet's names as the application dns takes them.
func zone(c *cluster.Cluster) []string {
	var all []string
	for _, h := range c.Spec.Internet.Hosts {
		all = append(all, h.Name+"="+h.Address.String())
	}
	if c.Spec.VirtualNode.Enabled {
		all = append(all, managementName+"="+managementAddress.String())
	}
	return all
}

// coreDNS are the cluster's DNS objects, one document each.
//
//go:embed dns/coredns.yaml
var coreDNS string

// installDNS brings the cluster's DNS into the API.
func (l *lab) installDNS(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	docs, err := dnsObjects(l.cluster)
	if err == nil {
		err = applyObjects(ctx, l.client.CoreV1().RESTClient(), docs)
	}
	if err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	return nil
}

func dnsObjects(c *cluster.Cluster) ([]string, error) {
	return objects(coreDNS, map[string]any{"Address": c.Spec.Network.DNSServiceIP, "Domain": clusterDomain, "Version": coreDNSVersion})
}
