package instances

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/handover"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/kubeletclient"
	"packetwalk.dev/internal/pods/realnode"
)

// A Machine runs one group: containerd and a kubelet, in the network namespace of the group's host.
type Machine struct {
	Group string
	// Dir is for what is written once, and State for what the machine writes.
	Dir, State string
	Host       *netns.Namespace
}

// KubeletAddress is where a machine's kubelet answers, in the namespace of the group's host.
const KubeletAddress = "127.0.0.1:10250"

func (g *group) machineOf() Machine {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Machine{Group: g.name, Dir: g.dir, State: g.disk, Host: g.host}
}

// handoverSocket is the socket's name in the directory of the machine's CNI configuration.
const handoverSocket = "handover.sock"

// startMachine starts the group's machine, or takes over the one that runs, and what it needs from outside.
func (g *group) startMachine(ctx context.Context) error {
	g.mu.Lock()
	kept := g.machine != nil
	g.mu.Unlock()
	if kept {
		return nil
	}
	m := g.machineOf()
	networks := filepath.Join(m.State, realnode.Networks)
	conflist, err := handover.Conflist(filepath.Join(realnode.NetworksDir, handoverSocket))
	if err == nil {
		err = errors.Join(os.MkdirAll(networks, 0o700), g.writePod())
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(networks, "10-handover.conflist"), conflist, 0o644)
	}
	if err != nil {
		return err
	}
	config, err := g.cfg.Machines.KubeletTLS()
	if err != nil {
		return err
	}
	process, err := g.cfg.Machines.Prepare(ctx, m)
	if err != nil {
		return err
	}
	listener, err := listenIn(ctx, networks, handoverSocket)
	if err != nil {
		return err
	}
	machine, err := supervise.Run(process, func(cmd *exec.Cmd) error { return isolation.Start(cmd, m.Host.Start) }, supervise.Options{})
	if err != nil {
		listener.Close()
		return err
	}
	g.mu.Lock()
	g.machine, g.kubelet = machine, kubeletclient.New(KubeletAddress, m.Host.Dial, config)
	g.mu.Unlock()
	g.repeatInBackground(ctx, "the handover of its pod", func(ctx context.Context) (err error) {
		if listener == nil {
			if listener, err = listenIn(ctx, networks, handoverSocket); err != nil {
				return err
			}
		}
		defer func() { listener.Close(); listener = nil }()
		return handover.Serve(ctx, listener, g.join)
	})
	g.repeatInBackground(ctx, "its images", func(ctx context.Context) error { return g.cfg.Machines.ServeImages(ctx, m) })
	return nil
}

// listenIn listens on a Unix socket in a directory, whose path may be longer than that of a socket can be (108 bytes, unix(7)).
func listenIn(ctx context.Context, dir, name string) (net.Listener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that has died
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the path is another one then
	return l, nil
}

// tryAgain is the pause before something that has ended is begun again.
const tryAgain = time.Second

// repeatInBackground runs f repeatedly in the background until ctx ends.
func (g *group) repeatInBackground(ctx context.Context, what string, f func(context.Context) error) {
	g.watchers.Go(func() {
		for ctx.Err() == nil {
			if err := f(ctx); ctx.Err() == nil {
				g.cfg.Log.Error("container group", "group", g.name, "what", what, "err", err)
			}
			pause.For(ctx, tryAgain)
		}
	})
}

// join makes the network of the pod's namespace, which is the group's from now on, and gives the group's address.
func (g *group) join(ctx context.Context, file *os.File) (netip.Prefix, error) {
	if err := g.leave(); err != nil {
		return netip.Prefix{}, err
	}
	if err := netns.Mount(file, filepath.Join(g.cfg.NetNSDir, g.name)); err != nil {
		return netip.Prefix{}, err
	}
	if err := g.enter(ctx); err != nil {
		g.event("Warning", "FailedNetwork", err.Error())
		return netip.Prefix{}, err
	}
	return g.prefix()
}

// prefix returns the group's address with the length of its subnet's.
func (g *group) prefix() (netip.Prefix, error) {
	n, _ := g.cfg.Network.Snapshot()
	network, subnet, _ := parseSubnet(g.spec.Properties.SubnetIDs[0].ID)
	s, ok := n.Subnet(network, subnet)
	if !ok {
		return netip.Prefix{}, fmt.Errorf("subnet %s/%s no longer exists", network, subnet)
	}
	return netip.PrefixFrom(g.address(), s.Prefix.Bits()), nil
}

// leave takes what the group had in the namespace of a pod before: its service proxy and its links.
func (g *group) leave() error {
	if err := g.stopProxy(); err != nil {
		return err
	}
	g.mu.Lock()
	space := g.space
	g.space = nil
	g.mu.Unlock()
	if space == nil {
		return nil
	}
	return errors.Join(space.DeleteLink(groupLink), space.DeleteLink(uplink), space.Close())
}

// Pauses between two looks at the pod: while it changes, and when it runs.
const (
	lookSoon   = 100 * time.Millisecond
	lookLater  = time.Second
	lookLimit  = 10 * time.Second
	soonPeriod = 15 * time.Second
)

// silence is how long a machine's kubelet may say nothing before that is told.
const silence = time.Minute

// watch looks at the pod until ctx ends.
func (g *group) watch(ctx context.Context) {
	changed, heard := time.Now(), time.Now()
	for ctx.Err() == nil {
		is, err := g.poll(ctx)
		if is {
			changed = time.Now()
		}
		if err == nil {
			heard = time.Now()
		}
		g.mu.Lock()
		g.failing = ""
		if time.Since(heard) > silence {
			g.failing = fmt.Sprintf("its machine does not say how its containers are: %v", err)
		}
		g.mu.Unlock()
		wait := lookSoon
		if time.Since(changed) > soonPeriod {
			wait = lookLater
		}
		pause.For(ctx, wait)
	}
}

// poll reads the state of the group's containers from the kubelet, and reports whether it changed. If the kubelet does not answer, the last
// state stays.
func (g *group) poll(ctx context.Context) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	pods, err := g.kubelet.Pods(ctx)
	if err == nil && len(pods) == 0 {
		err = errors.New("it has no pod yet")
	}
	if err != nil {
		return false, err
	}
	pod := &pods[0]
	g.mu.Lock()
	g.is = pod
	views := append(g.views[:0:0], g.views...)
	g.mu.Unlock()
	for i := range views {
		for j := range pod.Status.ContainerStatuses {
			s := &pod.Status.ContainerStatuses[j]
			if s.Name == g.spec.Properties.Containers[i].Name {
				is := viewOf(views[i], s)
				changed = changed || !same(views[i], is)
				views[i] = is
			}
		}
	}
	if changed {
		g.change(func() { g.views = views })
	}
	return changed, nil
}

// stopMachine ends the group's containers within grace, and then the machine with all that runs on it.
func (g *group) stopMachine(ctx context.Context, grace time.Duration) error {
	g.mu.Lock()
	machine, kubelet := g.machine, g.kubelet
	g.mu.Unlock()
	if machine == nil {
		return nil
	}
	if grace > 0 && os.Remove(g.podFile()) == nil {
		g.awaitEnd(ctx, kubelet, grace)
	}
	kubelet.Close()
	if err := machine.Stop(); err != nil {
		return fmt.Errorf("stop the machine: %w", err)
	}
	g.mu.Lock()
	g.machine = nil
	g.mu.Unlock()
	return nil
}

// awaitEnd waits until no pod runs on the machine.
func (g *group) awaitEnd(ctx context.Context, kubelet *kubeletclient.Client, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for {
		pods, err := kubelet.Running(ctx)
		if err == nil && len(pods) == 0 {
			return
		}
		if !pause.For(ctx, lookSoon) {
			return
		}
	}
}
