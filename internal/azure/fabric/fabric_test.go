package fabric_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel"
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
	ns     map[string]*kernel.Namespace
	health chan fabric.HealthChange
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

// addService is a front end with one rule for port 80 and its probe.
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
	w := &world{t: t, dir: t.TempDir(), ns: map[string]*kernel.Namespace{}, health: make(chan fabric.HealthChange, 100)}
	w.cfg = fabric.Config{
		Dir: w.dir, Network: network(t, nodes, addresses), StateFile: w.dir + "/fabric.json",
		Timing: fabric.Timing{Interval: 50 * time.Millisecond, Eager: 10 * time.Millisecond},
	}
	w.start()
	t.Cleanup(func() {
		if err := w.fabric.Remove(); err != nil {
			t.Error(err)
		}
		for _, ns := range w.ns {
			ns.Remove()
		}
		if left, err := kernel.MountedNamespaces(w.dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
	for _, nic := range w.cfg.Network.NICs {
		w.attach(nic.Machine, func(ns *kernel.Namespace) error { return w.fabric.AttachNIC(nic.Name, ns) })
	}
	for _, h := range w.cfg.Network.Hosts {
		w.attach(h.Name, func(ns *kernel.Namespace) error { return w.fabric.AttachHost(h.Name, ns) })
	}
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	if w.fabric, err = fabric.New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
	w.fabric.OnHealthChange(func(c fabric.HealthChange) { w.health <- c })
	if err := w.fabric.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) attach(name string, attach func(*kernel.Namespace) error) {
	w.t.Helper()
	ns, err := kernel.CreateNamespace(w.dir + "/hosts/" + name)
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
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
	c.SetDeadline(time.Now().Add(2 * time.Second))
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

// awaitAll waits until the kernel has been told that all these members are up, or down: a snapshot of health is ahead of it.
func (w *world) awaitAll(up bool, nics ...string) {
	w.t.Helper()
	timeout := time.After(20 * time.Second)
	told := map[string]bool{}
	for slices.ContainsFunc(nics, func(nic string) bool { return !told[nic+"-nic"] }) {
		select {
		case c := <-w.health:
			told[c.Target.Member.NIC] = c.Up == up
		case <-timeout:
			w.t.Fatalf("up=%v is not told of all of %v: %v", up, nics, told)
		}
	}
}

func (w *world) awaitUp(nics ...string) {
	w.t.Helper()
	w.awaitAll(true, nics...)
}

func run(t testing.TB, ns *kernel.Namespace, args ...string) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatalf("%s: %v: %s", args, err, &out)
	}
	return out.String()
}

func TestVirtualNetwork(t *testing.T) {
	w := newWorld(t, 2, 3)
	w.listen("testvm", "0.0.0.0:22")
	vm := w.address("testvm")
	if _, remote, _ := w.mustAsk("node0", vm+":22"); remote != w.address("node0") {
		t.Errorf("the VM saw %s", remote)
	}
	if out := run(t, w.ns["node0"], "ping", "-c1", "-W2", vm); !strings.Contains(out, "ttl=64") {
		t.Errorf("hops between machines of a virtual network:\n%s", out)
	}
	// A pod's address, a secondary IP configuration, is reached in the VNet, and seen as itself.
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.64.5/32", "dev", "lo")
	w.listen("node0", "10.13.64.5:8080")
	if _, _, local := w.mustAsk("testvm", "10.13.64.5:8080"); local != "10.13.64.5:8080" {
		t.Errorf("reached %s", local)
	}
	c, err := w.dial("node0", "10.13.64.5", vm+":22")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := c.ask(); err != nil || !strings.HasPrefix(f[1], "10.13.64.5:") {
		t.Errorf("the VM saw %v, %v", f, err)
	}
	// Every address answers to ARP as the host does, whether somebody has it or not.
	for _, addr := range []string{"10.13.64.1", w.address("node1"), "10.13.79.200"} {
		run(t, w.ns["node0"], "sh", "-c", "ping -c1 -W1 "+addr+" >/dev/null; true")
		if out := run(t, w.ns["node0"], "ip", "neigh", "show", addr); !strings.Contains(out, vnet.HostMAC) {
			t.Errorf("%s: %s", addr, out)
		}
	}
	// What nobody owns gets nothing, and neither does a source that is not the NIC's.
	if _, err := w.dialShort("node0", "", "10.13.79.200:22"); err == nil {
		t.Error("connected to nobody")
	}
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.70.1/32", "dev", "lo")
	if _, err := w.dialShort("node0", "10.13.70.1", vm+":22"); err == nil {
		t.Error("connected from a foreign address")
	}
	// Traffic inside is not tracked.
	flows, err := w.fabric.Namespace().Flows()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Destination.Addr().String() == vm {
			t.Errorf("tracked: %+v", f)
		}
	}
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

func TestLoadBalancer(t *testing.T) {
	w := newWorld(t, 2, 3)
	w.update(addService)
	probes := map[string]net.Listener{"node0": w.node("node0"), "node1": w.node("node1")}
	w.awaitUp("node0", "node1")

	// Both take flows; the packet arrives with the client as source and the VIP as destination.
	established := map[string]*conn{}
	for i := 0; len(established) < 2; i++ {
		if i == 60 {
			t.Fatal("60 flows, all to one back end")
		}
		c, err := w.dial("client", "", vip+":80")
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.ask()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(f[1], client+":") || f[2] != vip+":80" {
			t.Fatalf("the back end saw %s > %s", f[1], f[2])
		}
		established[f[0]] = c
	}

	// One dies for the probe: new flows go to the other, established ones stay.
	dead, alive := "node0", "node1"
	probes[dead].Close()
	w.awaitAll(false, dead)
	for range 20 {
		if host, _, _ := w.mustAsk("client", vip+":80"); host != alive {
			t.Fatalf("a new flow went to %s", host)
		}
	}
	for host, c := range established {
		if f, err := c.ask(); err != nil || f[0] != host {
			t.Errorf("the flow established with %s: %v %v", host, f, err)
		}
	}
	// It comes back.
	probes[dead] = w.listen(dead, fmt.Sprintf("0.0.0.0:%d", nodePort))
	w.awaitAll(true, dead)
	seen := map[string]bool{}
	for i := 0; len(seen) < 2 && i < 60; i++ {
		host, _, _ := w.mustAsk("client", vip+":80")
		seen[host] = true
	}
	if len(seen) != 2 {
		t.Error("the back end that is up again gets nothing")
	}
	for host, c := range established {
		if f, err := c.ask(); err != nil || f[0] != host {
			t.Errorf("the flow established with %s: %v %v", host, f, err)
		}
	}
	// From inside, the front end is reached by way of outbound, and the source is public.
	if _, remote, _ := w.mustAsk("testvm", vip+":80"); remote != vnet.DefaultOutboundAddress.String() {
		t.Errorf("the back end saw %s", remote)
	}
	// All down: Basic ends established flows too.
	for _, l := range probes {
		l.Close()
	}
	w.awaitAll(false, "node0", "node1")
	for host, c := range established {
		c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		fmt.Fprintln(c.Conn)
		if _, err := c.r.ReadString('\n'); err == nil {
			t.Errorf("the flow established with %s goes on without any back end up", host)
		}
	}
	if _, err := w.dialShort("client", "", vip+":80"); err == nil {
		t.Error("connected without any back end up")
	}
}

func (w *world) up() int {
	_, h := w.fabric.Snapshot()
	up := 0
	for _, v := range h {
		if v {
			up++
		}
	}
	return up
}

func TestProbeHTTP(t *testing.T) {
	w := newWorld(t, 1, 2)
	status := make(chan int, 1)
	status <- http.StatusServiceUnavailable
	var mu sync.Mutex
	var from, path string
	l, err := w.ns["node0"].Listen(t.Context(), "tcp4", "0.0.0.0:31000")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s := <-status
		status <- s
		mu.Lock()
		from, path = r.RemoteAddr, r.URL.Path
		mu.Unlock()
		rw.WriteHeader(s)
	})}
	go srv.Serve(l)
	defer srv.Close()
	w.update(func(n *vnet.Network) error {
		addService(n)
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Probes[0] = vnet.Probe{Name: "a1-TCP-80", Protocol: vnet.ProtocolHTTP, Port: 31000, RequestPath: "/healthz", IntervalSeconds: 5,
			Count: 2}
		return nil
	})
	for _, s := range []struct {
		status int
		up     bool
	}{{200, true}, {503, false}, {200, true}, {204, false}} {
		<-status
		status <- s.status
		w.awaitAll(s.up, "node0")
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.HasPrefix(from, vnet.ProbeSource.String()+":") || path != "/healthz" {
		t.Errorf("probed from %s on %s", from, path)
	}
}

// TestProbing scripts a back end's answers.
func TestProbing(t *testing.T) {
	w := newWorld(t, 1, 1)
	if err := w.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	script := []bool{false, true, false, true, false, false, false, true, true}
	var tried atomic.Int64
	w.cfg.Prober = func(_ context.Context, p vnet.Probe, member netip.Addr) error {
		i := int(tried.Add(1)) - 1
		if p.Port != nodePort || member.String() != "10.13.64.4" {
			t.Errorf("probed %s %d", member, p.Port)
		}
		if script[min(i, len(script)-1)] {
			return nil
		}
		return fmt.Errorf("try %d", i)
	}
	w.start()
	w.update(addService)
	for _, want := range []struct {
		up     bool
		reason string
	}{{true, ""}, {false, "try 5"}, {true, ""}} {
		select {
		case c := <-w.health:
			if c.Up != want.up || c.Reason != want.reason {
				t.Errorf("got %+v, want %+v", c, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no change")
		}
	}
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Frontends, lb.Rules, lb.Probes = nil, nil, nil
		return nil
	})
	if _, h := w.fabric.Snapshot(); len(h) != 0 {
		t.Errorf("health of what is no longer probed: %v", h)
	}
}

func TestWithoutFloatingIP(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.listen("node0", "0.0.0.0:8080")
	w.listen("node1", "0.0.0.0:8080")
	w.update(func(n *vnet.Network) error {
		addService(n)
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Rules[0].FloatingIP, lb.Rules[0].BackendPort, lb.Rules[0].Probe = false, 8080, ""
		return nil
	})
	seen := map[string]bool{}
	for i := 0; len(seen) < 2 && i < 60; i++ {
		host, remote, local := w.mustAsk("client", vip+":80")
		if remote != client || local != w.address(host)+":8080" {
			t.Fatalf("%s saw %s > %s", host, remote, local)
		}
		seen[host] = true
	}
	if len(seen) != 2 {
		t.Error("all flows went to one back end")
	}
}

func TestUDPAndAffinity(t *testing.T) {
	w := newWorld(t, 2, 1)
	for _, name := range []string{"node0", "node1"} {
		run(t, w.ns[name], "ip", "addr", "add", vip+"/32", "dev", "lo")
		p, err := w.ns[name].ListenPacket(t.Context(), "udp4", vip+":53")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				_, from, err := p.ReadFrom(buf)
				if err != nil {
					return
				}
				p.WriteTo([]byte(name), from)
			}
		}()
	}
	rule := func(distribution string) {
		w.update(func(n *vnet.Network) error {
			addService(n)
			lb, _ := n.LoadBalancer("kubernetes")
			r := &lb.Rules[0]
			r.Probe, r.Protocol, r.FrontendPort, r.BackendPort, r.LoadDistribution = "", vnet.ProtocolUDP, 53, 53, distribution
			return nil
		})
	}
	answers := func(flows int) map[string]int {
		seen := map[string]int{}
		for range flows {
			c, err := w.ns["client"].Dial(t.Context(), "udp", vip+":53")
			if err != nil {
				t.Fatal(err)
			}
			var last string
			for range 3 { // every datagram of a flow goes to the same back end
				fmt.Fprint(c, "?")
				buf := make([]byte, 100)
				c.SetReadDeadline(time.Now().Add(5 * time.Second))
				n, err := c.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				if last != "" && last != string(buf[:n]) {
					t.Errorf("a flow moved from %s to %s", last, buf[:n])
				}
				last = string(buf[:n])
			}
			c.Close()
			seen[last]++
		}
		return seen
	}
	rule(vnet.DistributionDefault)
	if seen := answers(40); len(seen) != 2 {
		t.Errorf("5-tuple: %v", seen)
	}
	rule(vnet.DistributionSourceIP)
	// A port that comes again would find its flow of before, which stays where it is.
	if _, err := w.fabric.Namespace().DeleteFlows(kernel.FlowFilter{Protocol: unix.IPPROTO_UDP}); err != nil {
		t.Fatal(err)
	}
	if seen := answers(40); len(seen) != 1 {
		t.Errorf("source address: %v", seen)
	}
}

func TestPeering(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.update(func(n *vnet.Network) error {
		prefix := netip.MustParsePrefix("172.17.0.0/16")
		n.VNets = append(n.VNets, vnet.VNet{Name: "other", AddressPrefixes: []netip.Prefix{prefix},
			Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("172.17.0.0/24")}}})
		_, err := n.AllocateNIC("server-b", "other", "s", 1)
		return err
	})
	w.attach("server-b", func(ns *kernel.Namespace) error { return w.fabric.AttachNIC("server-b-nic", ns) })
	w.listen("server-b", "0.0.0.0:80")
	peer := func(vnets ...int) {
		w.update(func(n *vnet.Network) error {
			n.VNets[0].Peerings, n.VNets[1].Peerings = nil, nil
			for _, i := range vnets {
				n.VNets[i].Peerings = []vnet.Peering{{Name: "p", RemoteVNet: n.VNets[1-i].Name}}
			}
			return nil
		})
	}
	for _, c := range []struct {
		name  string
		sides []int
		want  bool
	}{{"none", nil, false}, {"one side", []int{0}, false}, {"both", []int{0, 1}, true}, {"none again", nil, false}} {
		peer(c.sides...)
		_, err := w.dialShort("node0", "", "172.17.0.4:80")
		if (err == nil) != c.want {
			t.Errorf("peering %s: %v", c.name, err)
		}
	}
	peer(0, 1)
	if _, remote, _ := w.mustAsk("node0", "172.17.0.4:80"); remote != w.address("node0") {
		t.Errorf("the peered machine saw %s", remote)
	}
}

func TestOutbound(t *testing.T) {
	w := newWorld(t, 2, 3)
	w.listen("server", "0.0.0.0:80")
	w.listen("server", "0.0.0.0:81")
	w.listen("controlplane", "0.0.0.0:443")
	sees := func(from, want string) {
		t.Helper()
		if _, remote, _ := w.mustAsk(from, server+":80"); remote != want {
			t.Errorf("%s appears as %s, want %s", from, remote, want)
		}
	}
	sees("node0", "203.0.113.2")
	if _, remote, _ := w.mustAsk("node0", "203.0.113.1:443"); remote != "203.0.113.2" {
		t.Errorf("the API server saw %s", remote)
	}
	w.update(addService)
	sees("node0", vip)
	sees("node1", vip)
	sees("testvm", "203.0.113.2")
	w.update(func(n *vnet.Network) error {
		p, err := n.AllocatePublicIP("vm-ip", netip.MustParseAddr("203.0.113.20"))
		n.NICs[2].IPConfigs[0].PublicIP = p.Name
		return err
	})
	sees("testvm", "203.0.113.20")
	w.listen("testvm", "0.0.0.0:22")
	if _, remote, local := w.mustAsk("client", "203.0.113.20:22"); remote != client || local != w.address("testvm")+":22" {
		t.Errorf("the VM saw %s > %s", remote, local)
	}
	run(t, w.ns["testvm"], "ping", "-c1", "-W2", server)
	// A secondary address has no outbound of its own.
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.64.5/32", "dev", "lo")
	if _, err := w.dialShort("node0", "10.13.64.5", server+":80"); err == nil {
		t.Error("a pod's own address left for the internet")
	}
	// Nobody is reached from outside by a private address or by one that is not given to anybody.
	for _, to := range []string{w.address("testvm") + ":22", "203.0.113.99:22", vip + ":22"} {
		if _, err := w.dialShort("client", "", to); err == nil {
			t.Errorf("reached %s", to)
		}
	}
	// Two front ends: either is taken, at random.
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: "a2", Address: netip.MustParseAddr("203.0.113.11")})
		return nil
	})
	seen := map[string]int{}
	for range 40 {
		_, remote, _ := w.mustAsk("node0", server+":80")
		seen[remote]++
	}
	if len(seen) != 2 || seen[vip] == 0 || seen["203.0.113.11"] == 0 {
		t.Errorf("outbound addresses %v", seen)
	}
}

// fill opens flows from node0 one after another by several at once and returns the ports that the server saw. A flow that finds no port at
// first has its first packet sent again after a second, and then there must be one.
func (w *world) fill(to string, count int) map[string]int {
	w.t.Helper()
	var mu sync.Mutex
	ports := map[string]int{}
	var wg sync.WaitGroup
	todo := make(chan int, count)
	for i := range count {
		todo <- i
	}
	close(todo)
	for range 16 {
		wg.Go(func() {
			for range todo {
				port, err := w.portOf(to, 10*time.Second)
				if err != nil {
					w.t.Errorf("one of %d flows: %v", count, err)
					continue
				}
				mu.Lock()
				ports[port]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return ports
}

// portOf opens a flow from node0, which stays open, and returns the source that the server sees.
func (w *world) portOf(to string, patience time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := w.ns["node0"].DialFrom(ctx, "tcp", netip.Addr{}, to)
	if err != nil {
		return "", err
	}
	w.t.Cleanup(func() { c.Close() })
	f, err := (&conn{c, bufio.NewReader(c)}).ask()
	if err != nil {
		return "", err
	}
	return f[1], nil
}

// TestOutboundPorts uses a node's 1,024 ports up, all of them, and frees one.
func TestOutboundPorts(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.listen("server", "0.0.0.0:80")
	w.listen("server", "0.0.0.0:81")
	ports := w.fill(server+":80", 1023)
	// With one port left the next flow finds it at once, as soon as the fabric has seen that there are few.
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(run(t, w.fabric.Namespace(), "nft", "list", "map", "ip", "azure", "spare"), "elements"); {
		if time.Now().After(deadline) {
			t.Fatal("the fabric keeps no spare port")
		}
		time.Sleep(10 * time.Millisecond)
	}
	last, err := w.dial("node0", "", server+":80")
	if err != nil {
		t.Fatal("the last port was not found: ", err)
	}
	f, err := last.ask()
	if err != nil {
		t.Fatal(err)
	}
	ports[f[1]]++
	if len(ports) != 1024 {
		t.Errorf("%d ports", len(ports))
	}
	for p := range ports {
		if a := netip.MustParseAddrPort(p); a.Addr().String() != vip || a.Port() < 1024 || a.Port() > 2047 {
			t.Fatalf("port %s", p)
		}
	}
	if _, err := w.portOf(server+":80", 1500*time.Millisecond); err == nil {
		t.Error("flow 1,025 to one destination found a port")
	}
	if _, err := w.portOf(server+":81", time.Second); err != nil {
		t.Error("a flow to another destination: ", err)
	}
	use, err := w.fabric.PortUses()
	if err != nil || len(use) != 1 {
		t.Fatal(use, err)
	}
	if u := use[0]; u.Machine != "node0" || u.Ports != 1024 || u.InUse != 1024 || u.Fullest.InUse != 1024 ||
		u.Fullest.Destination.String() != server+":80" {
		t.Errorf("use of ports %+v", u)
	}
	last.Close()
	_, local, _ := strings.Cut(last.LocalAddr().String(), ":")
	run(t, w.fabric.Namespace(), "conntrack", "-D", "-p", "tcp", "--sport", local) // as four minutes later
	port, err := w.portOf(server+":80", 5*time.Second)
	if err != nil || port != f[1] {
		t.Errorf("the freed port %s: got %s, %v", f[1], port, err)
	}
}

// TestOutboundEnded: flows that have ended keep their ports for four minutes, so that many short ones one after another use a node's ports
// up, too. The kernel alone would let a new flow have the port of one that has ended.
func TestOutboundEnded(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.listen("server", "0.0.0.0:80")
	begin := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		c, err := w.ns["node0"].DialFrom(ctx, "tcp", netip.Addr{}, server+":80")
		if err != nil {
			return err
		}
		return c.Close()
	}
	opened := 0
	for i := range 1400 {
		if begin() == nil {
			opened++
		}
		if i > 800 {
			time.Sleep(4 * time.Millisecond) // so that the fabric sees each stage
		}
		if opened < i-10 {
			break
		}
	}
	if t.Logf("%d flows", opened); opened > 1100 { // not 1,024: a flow that ended since the fabric looked last may have lost its port
		t.Errorf("%d flows found one of 1,024 ports", opened)
	}
	var last error
	failed := 0
	for deadline := time.Now().Add(10 * time.Second); failed < 5 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = begin(); last == nil {
			failed = 0
		} else {
			failed++
		}
	}
	use, err := w.fabric.PortUses()
	if err != nil || failed < 5 || use[0].InUse != 1024 {
		t.Errorf("flows still find ports (%d failed in a row, the last: %v): %+v, %v", failed, last, use, err)
	}
}

// inTurn gives the world's Standard load balancer two front ends with 100 ports each.
func inTurn(n *vnet.Network) error {
	lb, _ := n.LoadBalancer("kubernetes")
	lb.SKU = vnet.SKUStandard
	lb.Frontends = []vnet.Frontend{{Name: "a", Address: netip.MustParseAddr(vip)}, {Name: "b", Address: netip.MustParseAddr(secondVIP)}}
	lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a", "b"}, BackendPool: "kubernetes", AllocatedOutboundPorts: 200,
		IdleTimeoutMinutes: 4}}
	return nil
}

// on fails unless all these ports are of the first 100 of a front end.
func (w *world) on(frontend string, ports map[string]int) {
	w.t.Helper()
	for port := range ports {
		if a := netip.MustParseAddrPort(port); a.Addr().String() != frontend || a.Port() < 1024 || a.Port() > 1123 {
			w.t.Fatalf("port %s, want one of %s", port, frontend)
		}
	}
}

// TestOutboundInTurn: a Standard load balancer's second front end is used when the ports of the first are used up, also by a fabric
// that finds them so.
func TestOutboundInTurn(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.listen("server", "0.0.0.0:80")
	w.update(inTurn)
	w.on(vip, w.fill(server+":80", 100))
	w.on(secondVIP, w.fill(server+":80", 50))
	if err := w.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.on(secondVIP, w.fill(server+":80", 50))
	if _, err := w.portOf(server+":80", 1500*time.Millisecond); err == nil {
		t.Error("flow 201 found a port")
	}
}

// TestOutboundLost: the first packet of a flow is lost in the fabric although there are ports, as when two flows chose the same one at the
// same moment; sent again, it leaves by the same front end as any other.
func TestOutboundLost(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.listen("server", "0.0.0.0:80")
	w.update(inTurn)
	run(t, w.fabric.Namespace(), "nft", `table ip lossy {
	set sent { typeof ct original proto-src; }
	counter lost { }
	chain late {
		type filter hook postrouting priority srcnat + 10;
		ip daddr `+server+` ct state new ct original proto-src != @sent add @sent { ct original proto-src } counter name lost drop
	}
}`)
	w.on(vip, w.fill(server+":80", 3))
	if lost := run(t, w.fabric.Namespace(), "nft", "list", "counter", "ip", "lossy", "lost"); !strings.Contains(lost, "packets 3 ") {
		t.Errorf("not each flow lost its first packet:\n%s", lost)
	}
}

// TestIdle: what belongs to a flow that the fabric has forgotten, because it was idle for too long, is dropped by a Basic load balancer,
// and answered with a reset where a Standard one's outbound rule says so.
func TestIdle(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.listen("server", "0.0.0.0:80")
	forgotten := func() error {
		t.Helper()
		c, err := w.dial("node0", "", server+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ask(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.fabric.Namespace().DeleteFlows(kernel.FlowFilter{Protocol: unix.IPPROTO_TCP, DestinationPort: 80}); err != nil {
			t.Fatal(err)
		}
		_, err = c.ask()
		return err
	}
	if err := forgotten(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Basic: %v, want silence", err)
	}
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.SKU = vnet.SKUStandard
		lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a1"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
			TCPReset: true}}
		return nil
	})
	if err := forgotten(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("Standard: %v, want a reset", err)
	}
}

// TestIdleReset: when the idle time of a flow is over, both its ends get a reset at once, where az shows enableTcpReset: flows to a front
// end and flows that leave by one; not where it does not, and not flows that are in use.
func TestIdleReset(t *testing.T) {
	for _, reset := range []bool{true, false} {
		t.Run(fmt.Sprint(reset), func(t *testing.T) { testIdleReset(t, reset) })
	}
}

func testIdleReset(t *testing.T, reset bool) {
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.SKU, lb.Rules[0].TCPReset = vnet.SKUStandard, reset
		lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a1"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
			TCPReset: reset}}
		return nil
	})
	run(t, w.ns["node0"], "ip", "addr", "replace", vip+"/32", "dev", "lo")
	w.listen("node0", fmt.Sprintf("0.0.0.0:%d", nodePort))
	w.awaitUp("node0")
	open := func(from, host, to string) (near, far net.Conn) {
		l, err := w.ns[host].Listen(t.Context(), "tcp4", to)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if near, err = w.dial(from, "", to); err != nil {
			t.Fatal(err)
		}
		if far, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { far.Close() })
		return near, far
	}
	leaves, left := open("node0", "server", server+":82")
	comes, came := open("client", "node0", vip+":80")
	uses, used := open("client", "node0", vip+":80")
	use := func() error {
		if _, err := uses.Write([]byte("x")); err != nil {
			return err
		}
		used.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err := used.Read(make([]byte, 1))
		return err
	}
	w.leave(3)
	if err := errors.Join(use(), w.fabric.Close()); err != nil {
		t.Fatal(err)
	}
	w.start() // looks at all flows at once
	w.awaitFlows(1)
	patience, want := time.Second, os.ErrDeadlineExceeded
	if reset {
		patience, want = 30*time.Second, unix.ECONNRESET
	}
	for who, end := range map[string]net.Conn{"machine": leaves, "server": left, "client": comes, "back end": came} {
		end.SetReadDeadline(time.Now().Add(patience))
		if _, err := end.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", who, err, want)
		}
	}
	if err := use(); err != nil {
		t.Error("the flow that is in use: ", err)
	}
}

// awaitFlows waits until no more than so many established flows of TCP are there, of those that machines and the internet have.
func (w *world) awaitFlows(count int) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		flows, err := w.fabric.Namespace().Flows(kernel.FlowFilter{Protocol: unix.IPPROTO_TCP})
		flows = slices.DeleteFunc(flows, func(f kernel.Flow) bool { return f.TCPState != 3 || f.Source.Addr() == vnet.ProbeSource })
		if err != nil || len(flows) <= count {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d flows, want %d: %+v", len(flows), count, flows)
		}
	}
}

// leave gives all established flows of TCP so many seconds.
func (w *world) leave(seconds uint32) {
	w.t.Helper()
	var c *conntrack.Conn
	err := w.fabric.Namespace().Do(func() (err error) {
		c, err = conntrack.Dial(nil)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	flows, err := c.Dump(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range flows {
		if f.ProtoInfo.TCP == nil || f.ProtoInfo.TCP.State != 3 {
			continue
		}
		if err := c.Update(conntrack.Flow{TupleOrig: f.TupleOrig, Timeout: seconds}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestIdleTimes: the fabric keeps each flow for the idle time of the rule that it goes by, as az shows it, and goes on doing so when the
// network is changed: a packet refreshes the time.
func TestIdleTimes(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.SKU, lb.Rules[0].IdleTimeoutMinutes = vnet.SKUStandard, 10
		lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a1"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
			TCPReset: true}}
		return nil
	})
	w.node("node0")
	w.awaitAll(true, "node0")
	w.listen("server", "0.0.0.0:80")
	type flow struct {
		minutes int
		*conn
		to netip.AddrPort
	}
	var flows []flow
	for _, f := range []struct {
		from, to string
		minutes  int
	}{{"client", vip + ":80", 10}, {"node0", server + ":80", 30}, {"testvm", server + ":80", 4}} {
		c, err := w.dial(f.from, "", f.to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		flows = append(flows, flow{f.minutes, c, netip.MustParseAddrPort(f.to)})
	}
	for _, change := range []func(*vnet.Network) error{
		func(*vnet.Network) error { return nil },
		func(n *vnet.Network) error {
			n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: "more", Address: netip.MustParseAddr("203.0.113.99")})
			return nil
		},
		func(n *vnet.Network) error { n.LoadBalancers[0].Rules[0].IdleTimeoutMinutes = 20; return nil }, // of flows that begin from now on
	} {
		w.update(change)
		for _, f := range flows {
			if _, err := f.ask(); err != nil {
				t.Fatal(err)
			}
			all, err := w.fabric.Namespace().Flows()
			if err != nil {
				t.Fatal(err)
			}
			from := netip.MustParseAddrPort(f.LocalAddr().String()).Port()
			i := slices.IndexFunc(all, func(k kernel.Flow) bool { return k.Source.Port() == from && k.Destination == f.to })
			if i < 0 {
				t.Fatalf("no flow to %s from port %d: %v", f.to, from, all)
			}
			if got := int(all[i].TimeoutSeconds); got <= f.minutes*60-60 || got > f.minutes*60 {
				t.Errorf("flow to %s has %d s left, want those of %d min", f.to, got, f.minutes)
			}
		}
	}
}

// TestTakeOver ends the process's part of the fabric and starts another over the same namespaces.
func TestTakeOver(t *testing.T) {
	w := newWorld(t, 2, 3)
	w.update(addService)
	w.node("node0")
	w.awaitAll(true, "node0")
	c, err := w.dial("client", "", vip+":80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(); err != nil {
		t.Fatal(err)
	}
	// As a CNI plugin in bridge mode does.
	ns := w.ns["node1"]
	run(t, ns, "sh", "-c", "ip link add name azure0 type bridge && ip link set eth0 master azure0 && ip addr flush dev eth0 && ip link set azure0 up")
	if err := w.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err := c.ask(); err != nil || f[0] != "node0" {
		t.Errorf("without its process: %v %v", f, err)
	}
	if host, _, _ := w.mustAsk("client", vip+":80"); host != "node0" {
		t.Error("no new flow without the fabric's process")
	}
	w.start() // with the network of the beginning, which has no Service
	if w.up() != 1 {
		t.Error("health was not taken over")
	}
	for _, name := range []string{"node0", "node1", "testvm"} {
		if err := w.fabric.AttachNIC(name+"-nic", w.ns[name]); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := c.ask(); err != nil || f[0] != "node0" {
		t.Errorf("after the take-over: %v %v", f, err)
	}
	if host, _, _ := w.mustAsk("client", vip+":80"); host != "node0" {
		t.Error("no new flow after the take-over")
	}
	if out := run(t, ns, "ip", "-4", "-o", "addr", "show", "eth0"); out != "" {
		t.Errorf("the address that the plugin moved is back: %s", out)
	}
	// A machine that was made anew is wired anew.
	ns.Remove()
	w.attach("node1", func(ns *kernel.Namespace) error { return w.fabric.AttachNIC("node1-nic", ns) })
	w.listen("node1", "0.0.0.0:22")
	w.mustAsk("node0", w.address("node1")+":22")
}

func TestWireServer(t *testing.T) {
	w := newWorld(t, 1, 1)
	get := func(from, url string) (int, string) {
		c := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: w.ns[from].Dial}}
		resp, err := c.Get(url)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, body := get("node0", "http://168.63.129.16/machine/?comp=goalstate"); code != 200 ||
		!strings.Contains(body, "<InstanceId>_node0</InstanceId>") || !strings.Contains(body, "<Incarnation>1<") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := get("node0", "http://168.63.129.16/"); code != 404 {
		t.Errorf("status %d", code)
	}
	if _, err := w.dialShort("node0", "", "168.63.129.16:81"); err == nil {
		t.Error("another port answers")
	}
	if _, err := w.dialShort("client", "", "168.63.129.16:80"); err == nil {
		t.Error("the internet reaches the host's own address")
	}
}

func TestUpdateRefused(t *testing.T) {
	w := newWorld(t, 1, 1)
	before, _ := w.fabric.Snapshot()
	boom := errors.New("boom")
	for _, change := range []func(*vnet.Network) error{
		func(n *vnet.Network) error { n.NICs = nil; return boom },
		func(n *vnet.Network) error {
			n.NICs[0].IPConfigs[0].Address = netip.MustParseAddr("10.13.64.1")
			return nil
		},
	} {
		if err := w.fabric.Update(change); err == nil {
			t.Error("no error")
		}
	}
	if after, _ := w.fabric.Snapshot(); after.NICs[0].IPConfigs[0] != before.NICs[0].IPConfigs[0] {
		t.Error("a refused change changed the network")
	}
	if err := w.fabric.AttachNIC("nope", w.ns["node0"]); err == nil {
		t.Error("attached an unknown NIC")
	}
	// Deleting a machine's NIC takes its link and routes away.
	w.update(func(n *vnet.Network) error { n.ReleaseNIC("node0-nic"); return nil })
	if names, err := w.fabric.Namespace().LinkNames(); err != nil || slices.Contains(names, "nic1") || !slices.Contains(names, "nic2") {
		t.Errorf("links %v, %v", names, err)
	}
	for range 2 {
		if err := w.fabric.DetachHost("client"); err != nil {
			t.Error(err)
		}
	}
}

// TestUpdateFails: where the kernel, or here the state file, does not take a change, the back ends that were up go on getting flows.
func TestUpdateFails(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.node("node0")
	w.awaitUp("node0")
	if err := os.Remove(w.cfg.StateFile); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.cfg.StateFile, 0o700); err != nil {
		t.Fatal(err)
	}
	other := func(n *vnet.Network) error { n.LoadBalancers[0].Probes[0].Count++; return nil }
	if err := w.fabric.Update(other); err == nil {
		t.Fatal("no error")
	}
	if n, _ := w.fabric.Snapshot(); n.LoadBalancers[0].Probes[0].Count != 2 || w.up() != 1 {
		t.Errorf("after the change that failed: probe %+v, %d back ends up", n.LoadBalancers[0].Probes[0], w.up())
	}
	w.mustAsk("client", vip+":80")
	if err := os.Remove(w.cfg.StateFile); err != nil {
		t.Fatal(err)
	}
	w.update(other)
	w.awaitUp("node0")
	w.mustAsk("client", vip+":80")
}

func TestNoGoroutineLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("world", func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.update(addService)
	})
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(10 * time.Millisecond)
	}
}
