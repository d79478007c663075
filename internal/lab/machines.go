package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/container"
	"packetwalk.dev/internal/kernel"
)

// A host is a VM or an internet host: a network namespace and perhaps an application in it.
type host struct {
	Host
	pid atomic.Int64
}

// startHosts makes the VMs and internet hosts and starts their applications.
func (l *lab) startHosts(ctx context.Context) error {
	var g errgroup.Group
	for _, h := range l.cluster.Spec.Internet.Hosts {
		ns, err := l.attachHost(h.Name)
		if err != nil {
			return err
		}
		l.addHost(ctx, &g, ns, Host{Name: h.Name, Kind: "internet", Address: h.Address.String(), App: h.App})
	}
	for _, vm := range l.cluster.Spec.Azure.VMs {
		ns, _, err := kernel.EnsureNamespace(l.dir.NetNS(vm.Name))
		if err != nil {
			return err
		}
		if err := l.fabric.AttachNIC(vm.Name+"-nic", ns); err != nil {
			return err
		}
		if vm.IPForwarding {
			if err := ns.SetSysctls(kernel.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}); err != nil {
				return err
			}
		}
		public, _ := l.cluster.VMPublicIP(vm.Name)
		l.addHost(ctx, &g, ns, Host{Name: vm.Name, Kind: "vm", Address: vm.Address.String(), PublicIP: text(public), App: vm.App})
	}
	return g.Wait()
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func (l *lab) addHost(ctx context.Context, g *errgroup.Group, ns *kernel.Namespace, h Host) {
	m := &host{Host: h}
	l.mu.Lock()
	l.hosts = append(l.hosts, m)
	l.mu.Unlock()
	if h.App == "" {
		return
	}
	g.Go(func() error {
		c, err := l.runApp(ctx, m, ns)
		if err != nil {
			return err
		}
		go l.keepApp(ctx, m, ns, c)
		return nil
	})
}

// runApp takes over the host's application when it runs, or starts it.
func (l *lab) runApp(ctx context.Context, h *host, ns *kernel.Namespace) (*container.Container, error) {
	spec := container.Spec{
		ID: h.Name, Name: h.Name, Dir: filepath.Join(l.dir.Host(h.Name), "app"), LogPath: l.dir.Log(h.Name), NetNS: ns.Path(), Hostname: h.Name, Image: h.App,
	}
	c, err := l.runtime.Adopt(spec.Dir)
	if err == nil {
		select {
		case <-c.Done():
			err = c.Remove()
		default:
			h.pid.Store(int64(c.Pid()))
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
