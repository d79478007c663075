package fabric_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/kerneltest"
)

const (
	vip       = "203.0.113.10"
	secondVIP = "203.0.113.11"
	client    = "198.51.100.10"
	server    = "198.51.100.80"
	nodePort  = 30080
)

// world is world A with two nodes, a VM, and a client and a server on the internet; every machine and host is a namespace whose
// sockets the test holds.
type world struct {
	t      testing.TB
	dir    string
	fabric *fabric.Fabric
	cfg    fabric.Config
	ns     map[string]*netns.Namespace
	health chan healthChange
}

// healthChange is one back end that went up or down, as the fabric logs it when the kernel has been told.
type healthChange struct {
	nic, reason string
	up          bool
}

// healthLog is a log of which the changes of health are read.
type healthLog chan<- healthChange

func (healthLog) Enabled(context.Context, slog.Level) bool { return true }
func (l healthLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l healthLog) WithGroup(string) slog.Handler          { return l }

func (l healthLog) Handle(_ context.Context, r slog.Record) error {
	var c healthChange
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "nic":
			c.nic = a.Value.String()
		case "up":
			c.up = a.Value.Bool()
		case "reason":
			c.reason = a.Value.String()
		}
		return true
	})
	if r.Message == "back end changed" {
		l <- c
	}
	return nil
}

func network(t testing.TB, nodes, addresses int) vnet.Network {
	t.Helper()
	prefix := netip.MustParsePrefix
	n := vnet.Network{
		VNets: []vnet.VNet{{Name: "aksVnet", AddressPrefixes: []netip.Prefix{prefix("10.13.0.0/16")}, Subnets: []vnet.Subnet{
			{Name: "aks", Prefix: prefix("10.13.64.0/20")}, {Name: "vmsubnet", Prefix: prefix("10.13.1.0/24")},
		}}},
		DefaultOutbound: vnet.DefaultOutboundAddress,
		Hosts: []vnet.Host{{Name: "client", Address: netip.MustParseAddr(client)},
			{Name: "server", Address: netip.MustParseAddr(server)}, {Name: "controlplane", Address: vnet.APIServerAddress}},
	}
	pool := vnet.BackendPool{Name: "kubernetes"}
	for i := range nodes {
		nic, err := n.AllocateNIC(fmt.Sprintf("node%d", i), "aksVnet", "aks", addresses)
		if err != nil {
			t.Fatal(err)
		}
		pool.Members = append(pool.Members, vnet.IPConfigRef{NIC: nic.Name, IPConfig: "ipconfig1"})
	}
	if _, err := n.AllocateNIC("testvm", "aksVnet", "vmsubnet", 1); err != nil {
		t.Fatal(err)
	}
	n.LoadBalancers = []vnet.LoadBalancer{{Name: "kubernetes", SKU: vnet.SKUBasic, BackendPools: []vnet.BackendPool{pool}}}
	return n
}

// addService adds a front end with one rule for port 80 and its probe.
func addService(n *vnet.Network) error {
	lb, _ := n.LoadBalancer("kubernetes")
	lb.Frontends = []vnet.Frontend{{Name: "a1", Address: netip.MustParseAddr(vip)}}
	lb.Probes = []vnet.Probe{{Name: "a1-TCP-80", Protocol: vnet.ProtocolTCP, Port: nodePort, IntervalSeconds: 5, Count: 2}}
	lb.Rules = []vnet.Rule{{
		Name: "a1-TCP-80", Frontend: "a1", BackendPool: "kubernetes", Probe: "a1-TCP-80", Protocol: vnet.ProtocolTCP,
		FrontendPort: 80, BackendPort: 80, FloatingIP: true, IdleTimeoutMinutes: 4, LoadDistribution: vnet.DistributionDefault,
	}}
	return nil
}

func newWorld(t testing.TB, nodes, addresses int) *world {
	t.Helper()
	kerneltest.NeedRoot(t)
	w := &world{t: t, dir: t.TempDir(), ns: map[string]*netns.Namespace{}, health: make(chan healthChange, 100)}
	w.cfg = fabric.Config{
		Dir: w.dir, Network: network(t, nodes, addresses), StateFile: w.dir + "/fabric.json",
		Timing: fabric.Timing{Interval: 50 * time.Millisecond, Eager: 10 * time.Millisecond}, Log: slog.New(healthLog(w.health)),
	}
	w.start()
	t.Cleanup(func() {
		if err := w.fabric.Remove(); err != nil {
			t.Error(err)
		}
		for _, ns := range w.ns {
			ns.Remove()
		}
		if left, err := netns.Mounted(w.dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
	for _, nic := range w.cfg.Network.NICs {
		w.attach(nic.Machine, func(ns *netns.Namespace) error { return w.fabric.AttachNIC(nic.Name, ns) })
	}
	for _, h := range w.cfg.Network.Hosts {
		w.attach(h.Name, func(ns *netns.Namespace) error { return w.fabric.AttachHost(h.Name, ns) })
	}
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	if w.fabric, err = fabric.New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
	if err := w.fabric.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) attach(name string, attach func(*netns.Namespace) error) {
	w.t.Helper()
	ns, err := netns.Create(w.dir + "/hosts/" + name)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ns[name] = ns
	if err := attach(ns); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) update(change func(*vnet.Network) error) {
	w.t.Helper()
	if err := w.fabric.Update(change); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) address(machine string) string {
	n, _ := w.fabric.Snapshot()
	nic, ok := n.NIC(machine + "-nic")
	if !ok {
		w.t.Fatal("no NIC of", machine)
	}
	return nic.Primary().Address.String()
}

// listen answers every line on a connection with "<host> <remote> <local>".
func (w *world) listen(host, addr string) net.Listener {
	w.t.Helper()
	l, err := w.ns[host].Listen(context.Background(), "tcp4", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintf(c, "%s %s %s\n", host, c.RemoteAddr(), c.LocalAddr())
				}
			}()
		}
	}()
	return l
}

// node makes a machine a node: it owns the VIP as kube-proxy's rules would, and answers on it and on the node port.
func (w *world) node(name string) (probe net.Listener) {
	w.t.Helper()
	run(w.t, w.ns[name], "ip", "addr", "replace", vip+"/32", "dev", "lo")
	w.listen(name, "0.0.0.0:80")
	return w.listen(name, fmt.Sprintf("0.0.0.0:%d", nodePort))
}

// conn is a connection that is asked line by line.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func (w *world) dial(from, local, to string) (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	addr, _ := netip.ParseAddr(local)
	c, err := w.ns[from].DialFrom(ctx, "tcp", addr, to)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { c.Close() })
	return &conn{c, bufio.NewReader(c)}, nil
}

// ask sends a line and returns the fields of the answer: host, remote address, local address.
func (c *conn) ask() ([]string, error) {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprintln(c.Conn); err != nil {
		return nil, err
	}
	line, err := c.r.ReadString('\n')
	return strings.Fields(line), err
}

func (w *world) mustAsk(from, to string) (host, remote, local string) {
	w.t.Helper()
	c, err := w.dial(from, "", to)
	if err != nil {
		w.t.Fatal(err)
	}
	f, err := c.ask()
	if err != nil {
		w.t.Fatal(err)
	}
	return f[0], strings.Split(f[1], ":")[0], f[2]
}

// awaitAll waits until the kernel has been told that all these members are up, or down.
func (w *world) awaitAll(up bool, nics ...string) {
	w.t.Helper()
	timeout := time.After(20 * time.Second)
	told := map[string]bool{}
	for slices.ContainsFunc(nics, func(nic string) bool { return !told[nic+"-nic"] }) {
		select {
		case c := <-w.health:
			told[c.nic] = c.up == up
		case <-timeout:
			w.t.Fatalf("up=%v is not told of all of %v: %v", up, nics, told)
		}
	}
}

func (w *world) awaitUp(nics ...string) {
	w.t.Helper()
	w.awaitAll(true, nics...)
}

func run(t testing.TB, ns *netns.Namespace, args ...string) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatalf("%s: %v: %s", args, err, &out)
	}
	return out.String()
}

// reach tries a connection. One that is wanted has time on a busy machine.
func (w *world) reach(from, local, to string, wanted bool) error {
	w.t.Helper()
	if wanted {
		_, err := w.dial(from, local, to)
		return err
	}
	_, err := w.dialShort(from, local, to)
	return err
}

func (w *world) dialShort(from, local, to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	addr, _ := netip.ParseAddr(local)
	c, err := w.ns[from].DialFrom(ctx, "tcp", addr, to)
	if err == nil {
		w.t.Cleanup(func() { c.Close() })
	}
	return c, err
}
