package hosts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/isolation"
)

// resolverOf returns the name server that a kind of host asks.
func resolverOf(kind string) netip.Addr {
	if kind == status.KindInternet {
		return plan.InternetResolver
	}
	return plan.AzureResolver
}

// zoneDir is where the resolvers have the zone of the addon for HTTP application routing, in their containers and in the lab's directory.
const (
	zoneDir  = "/var/lib/dns"
	zoneFile = zoneDir + "/httprouting"
)

// Resolvers are the name servers outside the cluster, as a component. Both know the names of the internet's hosts. Azure's changes the
// zone by DNS updates (RFC 2136), as Azure's DNS service does by its own API, and the internet's follows.
type Resolvers struct {
	*lifecycle.Env
	Azure *network.Network
	all   []*host
}

// Start starts both, or takes over those that run.
func (l *Resolvers) Start(context.Context) error {
	if err := os.MkdirAll(l.Dir.Path("dns"), 0o700); err != nil {
		return err
	}
	if err := os.Chown(l.Dir.Path("dns"), isolation.Nobody, isolation.Nobody); err != nil { // the user of the name servers
		return err
	}
	l.all = []*host{
		{Host: status.Host{Name: layout.AzureDNS, Kind: status.KindAzure, Address: plan.AzureResolver.String(), App: appDNS}, ns: l.Azure.Namespace()},
		{Host: status.Host{Name: layout.InternetDNS, Kind: status.KindInternet, Address: plan.InternetResolver.String(), App: appDNS}, ns: l.Azure.Internet()},
	}
	return l.bring(l.Cluster())
}

// Change gives the name servers other names, by new processes.
func (l *Resolvers) Change(_ context.Context, c lifecycle.Change) error { return l.bring(c.To) }

func (l *Resolvers) bring(c *cluster.Cluster) error {
	secret, err := ZoneSecret(l.Dir)
	if err != nil {
		return err
	}
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
		m.mounts = []isolation.Mount{{Source: l.Dir.Path("dns"), Destination: zoneDir, Writable: m.Kind == status.KindAzure}}
		if m.Kind == status.KindAzure {
			m.files = map[string]string{zoneKeyFile: secret}
		}
		g.Go(func() error { return apps{l.Env}.start(m) })
	}
	return g.Wait()
}

// Report adds the name servers.
func (l *Resolvers) Report(s *status.Status) {
	for _, m := range l.all {
		m.report(s)
	}
}

// Stop leaves the name servers running.
func (l *Resolvers) Stop() {
	for _, m := range l.all {
		m.detach()
	}
}

// ZoneKey is the name of the key of DNS updates and of transfers.
const ZoneKey = "external-dns"

// zoneKeyFile has the key's secret, in the name server that takes updates.
const zoneKeyFile = "/etc/dns/tsig-secret"

// ZoneSecret returns the key's secret.
func ZoneSecret(d layout.Dir) (string, error) { return layout.Secret(d.Path("dns-tsig-secret")) }

// resolverArgs returns the arguments of the application dns.
func resolverArgs(m *host, c *cluster.Cluster) []string {
	args := []string{"--listen", m.Address}
	if c.HasAddon(cluster.AddonHTTPRouting) {
		args = append(args, "--zone", c.HTTPRoutingZone(), "--zone-file", zoneFile)
		if m.Kind == status.KindAzure {
			args = append(args, "--tsig-keyname", ZoneKey, "--tsig-secret-file", zoneKeyFile)
		}
	}
	return append(args, plan.InternetNames(c)...)
}

// lookUpTime bounds an answer of the lab's own resolver.
const lookUpTime = 3 * time.Second

// LookUp asks Azure's resolver of a lab that runs for the addresses of a name, as the lab's nodes and VMs do.
func LookUp(ctx context.Context, d layout.Dir, name string) ([]netip.Addr, error) {
	at, err := d.FindHost("fabric")
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(at.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return ns.Dial(ctx, network, netip.AddrPortFrom(plan.AzureResolver, 53).String())
	}}
	addresses, err := resolver.LookupNetIP(ctx, "ip", name+".")
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return nil, fmt.Errorf("the lab's resolver %s says: %s", plan.AzureResolver, e.Err)
	}
	for i := range addresses {
		addresses[i] = addresses[i].Unmap()
	}
	return addresses, err
}

// DropZone takes the addon's zone away, with what is in it.
func DropZone(d layout.Dir) error {
	err := os.Remove(filepath.Join(d.Path("dns"), filepath.Base(zoneFile)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
