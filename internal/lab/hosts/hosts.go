// Package hosts runs what a lab has beside its nodes: VMs and internet hosts, which are network namespaces, and name servers, which are in
// those of Azure's network and of the internet. What runs there is the program of a built-in image, confined to the namespace.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/isolation"
)

// A host is a VM or an internet host: a network namespace and perhaps an application in it.
type host struct {
	status.Host
	ns *netns.Namespace
	// args, mounts and files are the application's, beside its image's.
	args   []string
	mounts []isolation.Mount
	files  map[string]string
	app    atomic.Pointer[supervise.Supervisor] // nil without one
	// firewall is a VM's, nil for other hosts; stopLog ends the reader of its log.
	firewall *cluster.Firewall
	stopLog  func()
}

// hostsOf returns the cluster's VMs and internet hosts.
func hostsOf(c *cluster.Cluster) []status.Host {
	var all []status.Host
	for _, h := range c.Spec.Internet.Hosts {
		all = append(all, status.Host{Name: h.Name, Kind: status.KindInternet, Address: h.Address.String(), App: h.App})
	}
	for _, vm := range c.Spec.Azure.VMs {
		public, _ := c.VMPublicIP(vm.Name)
		all = append(all, status.Host{Name: vm.Name, Kind: status.KindVM, Address: vm.Address.String(), PublicIP: text(public), App: vm.App,
			IPForwarding: vm.IPForwarding})
	}
	return all
}

// Hosts are the VMs and internet hosts, as a component.
type Hosts struct {
	*lifecycle.Env
	Azure   *network.Network
	Pending *lifecycle.PendingChange

	mu  sync.Mutex
	all []*host
}

// Start makes the hosts and starts their applications. Those that a change took away, which was cut off, are taken away before.
func (l *Hosts) Start(ctx context.Context) error {
	want := hostsOf(l.Cluster())
	if l.Pending.Source != nil {
		for _, h := range hostsOf(l.Pending.From) {
			if slices.ContainsFunc(want, changeableTo(h)) {
				continue
			}
			ns, err := netns.Open(l.Dir.NetNS(h.Name))
			if err != nil {
				continue // it is gone already
			}
			if err := l.discard(ctx, &host{Host: h, ns: ns}); err != nil {
				return err
			}
		}
	}
	return l.add(want)
}

// Change ends and makes VMs and internet hosts. One whose address or application is another one now is made anew.
func (l *Hosts) Change(ctx context.Context, c lifecycle.Change) error {
	want := hostsOf(c.To)
	var gone, kept []*host
	l.mu.Lock()
	l.all = slices.DeleteFunc(l.all, func(m *host) bool {
		i := slices.IndexFunc(want, changeableTo(m.Host))
		if i < 0 {
			gone = append(gone, m)
			return true
		}
		m.PublicIP = want[i].PublicIP
		kept = append(kept, m)
		want = slices.Delete(want, i, i+1)
		return false
	})
	l.mu.Unlock()
	for _, m := range gone {
		if err := l.discard(ctx, m); err != nil {
			return err
		}
	}
	for _, m := range kept {
		if err := l.setFirewall(m, firewallOf(c.To, m.Name)); err != nil {
			return err
		}
	}
	return l.add(want)
}

// Report adds the hosts, and what they lack.
func (l *Hosts) Report(s *status.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		m.report(s)
		missing, err := l.missing(m)
		if err != nil {
			missing = []string{status.OneLine(err)}
		}
		for _, text := range missing {
			s.Problems = append(s.Problems, text+status.RepairedByUp(s.Name))
		}
	}
}

// Repair makes again what hosts lack of their settings and files, and returns that in words. Their links are the network's.
func (l *Hosts) Repair(context.Context) (repaired []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		missing, err := l.missing(m)
		if err == nil && len(missing) > 0 {
			err = l.configure(m)
		}
		if err != nil {
			return repaired, err
		}
		repaired = append(repaired, missing...)
	}
	return repaired, nil
}

// Stop leaves the applications running.
func (l *Hosts) Stop() {
	for _, m := range l.all {
		m.endLog()
		m.detach()
	}
}

// Namespaces returns the hosts' network namespaces.
func (l *Hosts) Namespaces() []*netns.Namespace {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*netns.Namespace
	for _, h := range l.all {
		all = append(all, h.ns)
	}
	return all
}

// changeableTo returns a function that reports whether a host can become h without a rebuild.
func changeableTo(h status.Host) func(status.Host) bool {
	return func(other status.Host) bool {
		other.PublicIP = h.PublicIP
		return h == other
	}
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// add makes hosts that the fabric's network has, and starts their applications.
func (l *Hosts) add(all []status.Host) error {
	var g errgroup.Group
	for _, h := range all {
		m := &host{Host: h}
		if err := l.make(m); err != nil {
			return err
		}
		l.mu.Lock()
		l.all = append(l.all, m)
		l.mu.Unlock()
		if h.App != "" {
			g.Go(func() error { return apps{l.Env}.start(m) })
		}
	}
	return g.Wait()
}

// make makes a host's namespace, wires it and writes its files.
func (l *Hosts) make(m *host) (err error) {
	if m.ns, _, err = netns.Ensure(l.Dir.NetNS(m.Name)); err != nil {
		return err
	}
	if m.Kind == status.KindInternet {
		err = l.Azure.AttachHost(m.Name, m.ns)
	} else {
		err = l.Azure.AttachNIC(plan.NICOf(m.Name), m.ns)
	}
	if err != nil {
		return err
	}
	if err := l.configure(m); err != nil {
		return err
	}
	return l.setFirewall(m, firewallOf(l.Cluster(), m.Name))
}

// configure writes a host's settings and files.
func (l *Hosts) configure(m *host) error {
	if err := m.ns.SetSysctls(m.settings()...); err != nil {
		return err
	}
	return layout.WriteResolvConf(l.Dir.Host(m.Name), resolverOf(m.Kind))
}

// settings returns the kernel settings of a host.
func (h *host) settings() []netns.Sysctl {
	if !h.IPForwarding {
		return nil
	}
	all := []netns.Sysctl{{Key: "net/ipv4/ip_forward", Value: "1"}}
	if h.firewall != nil {
		all = append(all, firewallSettings...)
	}
	return all
}

// missing returns, one sentence each, what a host lacks of its settings and files.
func (l *Hosts) missing(m *host) ([]string, error) {
	lacks, err := m.ns.Missing(netns.State{Sysctls: m.settings()})
	if !layout.HasResolvConf(l.Dir.Host(m.Name)) {
		lacks = append(lacks, "file /etc/resolv.conf")
	}
	for i, text := range lacks {
		lacks[i] = fmt.Sprintf("%s: %s is missing", m.Name, text)
	}
	return lacks, err
}

// discard ends what runs on a host and takes its namespace and files away. Its log stays for the next of that name.
func (l *Hosts) discard(ctx context.Context, m *host) error {
	m.endLog()
	if err := m.remove(); err != nil {
		return err
	}
	if err := netns.KillIn(ctx, m.ns); err != nil {
		return fmt.Errorf("end the processes of %s: %w", m.Name, err)
	}
	detach := l.Azure.DetachHost
	if m.Kind == status.KindVM {
		detach = func(name string) error { return l.Azure.DetachNIC(plan.NICOf(name)) }
	}
	return errors.Join(detach(m.Name), m.ns.Remove(), cgroup.Remove(l.Dir.AppCgroup(m.Name)), removetree.Remove(l.Dir.Host(m.Name)))
}
