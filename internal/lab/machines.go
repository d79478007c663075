package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/pods/container"
)

// A host is a VM or an internet host: a network namespace and perhaps an application in it.
type host struct {
	Host
	ns *kernel.Namespace
	// args and mounts are of the application.
	args   []string
	mounts []container.Mount
	pid    atomic.Int64
	stop   context.CancelFunc // ends the keeping of the application; nil without one
	done   chan struct{}      // closes when it has ended
	// app is the application's container, the last one; nil where none was started here. Whoever removes it must use this one: another of the
	// same directory would not wait for this one's note of the end, and find its directory written to. Not to be read before done is closed.
	app *container.Container
}

// hostsOf are the cluster's VMs and internet hosts.
func hostsOf(c *cluster.Cluster) []Host {
	var all []Host
	for _, h := range c.Spec.Internet.Hosts {
		all = append(all, Host{Name: h.Name, Kind: kindInternet, Address: h.Address.String(), App: h.App})
	}
	for _, vm := range c.Spec.Azure.VMs {
		public, _ := c.VMPublicIP(vm.Name)
		all = append(all, Host{Name: vm.Name, Kind: kindVM, Address: vm.Address.String(), PublicIP: text(public), App: vm.App, IPForwarding: vm.IPForwarding})
	}
	return all
}

// Kinds of hosts.
const (
	kindVM       = "vm"
	kindInternet = "internet"
	kindAzure    = "azure" // of Azure's own
)

// startHosts makes the VMs and internet hosts and starts their applications.
func (l *lab) startHosts(ctx context.Context) error {
	var g errgroup.Group
	for _, h := range hostsOf(l.cluster) {
		if err := l.addHost(ctx, &g, h); err != nil {
			return err
		}
	}
	return g.Wait()
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// addHost makes a host that the fabric's network has, and has the group start its application.
func (l *lab) addHost(ctx context.Context, g *errgroup.Group, h Host) error {
	m := &host{Host: h, done: make(chan struct{})}
	var err error
	if m.ns, _, err = kernel.EnsureNamespace(l.dir.NetNS(h.Name)); err != nil {
		return err
	}
	if h.Kind == kindInternet {
		err = l.fabric.AttachHost(h.Name, m.ns)
	} else {
		err = l.fabric.AttachNIC(nicOf(h.Name), m.ns)
	}
	if err != nil {
		return err
	}
	if h.IPForwarding {
		if err := m.ns.SetSysctls(kernel.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}); err != nil {
			return err
		}
	}
	if err := writeResolvConf(l.dir.Host(h.Name), resolvConf(resolverOf(h.Kind))); err != nil {
		return err
	}
	l.mu.Lock()
	l.hosts = append(l.hosts, m)
	l.mu.Unlock()
	if h.App != "" {
		l.startApp(ctx, g, m)
	}
	return nil
}

// startApp has the group start the host's application, and keeps it until the host's stop is called.
func (l *lab) startApp(ctx context.Context, g *errgroup.Group, m *host) {
	ctx, m.stop = context.WithCancel(ctx)
	g.Go(func() error {
		c, err := l.runApp(ctx, m, m.ns)
		if err != nil {
			close(m.done)
			return err
		}
		go func() {
			defer close(m.done)
			l.keepApp(ctx, m, m.ns, c)
		}()
		return nil
	})
}

// nicOf is the name of a VM's NIC.
func nicOf(vm string) string { return vm + "-nic" }

// removeHost ends what runs on a host and takes its namespace and files away. Its log stays for the next of that name.
func (l *lab) removeHost(ctx context.Context, name string) error {
	l.mu.Lock()
	i := slices.IndexFunc(l.hosts, func(m *host) bool { return m.Name == name })
	if i < 0 {
		l.mu.Unlock()
		return nil
	}
	m := l.hosts[i]
	l.hosts = slices.Delete(l.hosts, i, i+1)
	l.mu.Unlock()
	return l.discardHost(ctx, m)
}

func (l *lab) discardHost(ctx context.Context, m *host) error {
	name := m.Name
	if m.stop != nil {
		m.stop()
		<-m.done
	}
	if m.app != nil {
		if err := m.app.Remove(); err != nil {
			return err
		}
	}
	if err := kernel.KillIn(ctx, m.ns.Inode()); err != nil {
		return fmt.Errorf("end the processes of %s: %w", name, err)
	}
	detach := l.fabric.DetachHost
	if m.Kind == kindVM {
		detach = func(name string) error { return l.fabric.DetachNIC(nicOf(name)) }
	}
	return errors.Join(detach(name), m.ns.Remove(), os.RemoveAll(l.dir.Host(name)))
}

// appDir is the directory of a host's application.
func (l *lab) appDir(h *host) string { return filepath.Join(l.dir.Host(h.Name), "app") }

// runApp takes over the host's application when it runs, or starts it.
func (l *lab) runApp(ctx context.Context, h *host, ns *kernel.Namespace) (*container.Container, error) {
	spec := container.Spec{
		ID: h.Name, Name: h.Name, Dir: l.appDir(h), LogPath: l.dir.Log(h.Name), NetNS: ns.Path(), Hostname: h.Name, Image: h.App,
		Args: h.args, Mounts: h.mounts, ResolvConf: resolvConf(resolverOf(h.Kind)),
	}
	c, err := l.runtime.Adopt(spec.Dir)
	if err == nil {
		select {
		case <-c.Done():
			err = c.Remove()
		default:
			h.pid.Store(int64(c.Pid()))
			h.app = c
			return c, nil
		}
	}
	if err != nil && !errors.Is(err, container.ErrNoContainer) && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	c, err = l.runtime.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	h.pid.Store(int64(c.Pid()))
	h.app = c
	return c, nil
}

// keepApp starts the application again, a second later, as a VM's service manager would.
func (l *lab) keepApp(ctx context.Context, h *host, ns *kernel.Namespace, c *container.Container) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
		}
		h.pid.Store(0)
		l.log.Warn("application ended", "host", h.Name, "app", h.App, "exit", c.Exit().Code)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			next, err := l.runApp(ctx, h, ns)
			if err == nil {
				c = next
				break
			}
			l.log.Error("start application", "host", h.Name, "app", h.App, "err", err)
		}
	}
}
