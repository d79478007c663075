package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/hostns"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/resolver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/model/witness"
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

// lookUpTime bounds the look-up of a name in a lab, whose name servers are near.
const lookUpTime = 3 * time.Second

// maxFile limits the files of a host's resolver, bytes.
const maxFile = 64 << 10

// LookUp asks the resolver of a host for the addresses of a name, as the host's processes do. Without a host it asks Azure's resolver.
func LookUp(ctx context.Context, d layout.Dir, host, name string) (witness.Lookup, error) {
	at, err := d.FindHost(cmp.Or(host, "fabric"))
	if err != nil {
		return witness.Lookup{}, err
	}
	ns, err := netns.Open(at.NetNS)
	if err != nil {
		return witness.Lookup{}, err
	}
	defer ns.Close()
	files, err := resolverFiles(d, host, at, ns)
	if err != nil {
		return witness.Lookup{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lookUpTime, fmt.Errorf("no answer within %s", lookUpTime))
	defer cancel()
	found, err := resolver.LookUp(ctx, ns.Dial, files, name)
	if host == "" {
		found.Server = ""
	}
	return found, err
}

// resolverFiles returns the files by which a host's processes look names up. Of a simulated pod, they are as kubelet writes them for
// containers.
func resolverFiles(d layout.Dir, host string, at layout.CommandTarget, ns *netns.Namespace) (resolver.Files, error) {
	pod, isPod := strings.CutPrefix(host, "pod/")
	files := resolver.Files{ResolvConf: at.ResolvConf}
	switch {
	case at.Machine > 0:
		root := fmt.Sprintf("/proc/%d/root", at.Machine)
		if text, err := dump.ReadIn(root, "etc/resolv.conf", maxFile); err == nil {
			files.ResolvConf = text
		}
		files.Hosts, _ = dump.ReadIn(root, "etc/hosts", maxFile) // a machine may lack it
	case isPod && at.ResolvConf != nil:
		if own, err := hostns.Files(ns.Inode(), maxFile, "etc/resolv.conf", "etc/hosts"); err == nil { // of a container that runs
			files.ResolvConf, files.Hosts = own[0], own[1]
		}
	case isPod:
		c, err := d.Cluster()
		if err != nil {
			return files, err
		}
		namespace, _, _ := strings.Cut(pod, "/")
		files.ResolvConf = fmt.Appendf(layout.ResolvConf(c.Spec.Network.DNSServiceIP),
			"search %s.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n", namespace)
	case host == "":
		files.ResolvConf = layout.ResolvConf(plan.AzureResolver)
	case at.ResolvConf == nil:
		return files, fmt.Errorf("%s has no /etc/resolv.conf", host)
	}
	return files, nil
}

// DropZone takes the addon's zone away, with what is in it.
func DropZone(d layout.Dir) error {
	err := os.Remove(filepath.Join(d.Path("dns"), filepath.Base(zoneFile)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
