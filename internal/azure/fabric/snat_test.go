package fabric_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/azure/vnet"
)

func TestOutbound(t *testing.T) {
	t.Parallel()
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
	run(t, w.ns["testvm"], "ping", "-c1", "-W20", server)
	// A secondary address has no outbound.
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.64.5/32", "dev", "lo")
	if _, err := w.dialShort("node0", "10.13.64.5", server+":80"); err == nil {
		t.Error("a pod's own address left for the internet")
	}
	// From outside, no connection reaches a private address or an address that no machine has.
	for _, to := range []string{w.address("testvm") + ":22", "203.0.113.99:22", vip + ":22"} {
		if _, err := w.dialShort("client", "", to); err == nil {
			t.Errorf("reached %s", to)
		}
	}
	// Two front ends: either is taken, at random.
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: "a2", Address: netip.MustParseAddr("203.0.113.11")})
		rule := lb.Rules[0]
		rule.Name, rule.Frontend, rule.Probe = "a2-TCP-80", "a2", ""
		lb.Rules = append(lb.Rules, rule)
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
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.listen("server", "0.0.0.0:80")
	w.listen("server", "0.0.0.0:81")
	ports := w.fill(server+":80", 1023)
	// With one port left the next flow finds it at once, as soon as the fabric has seen that there are few.
	eventually.Succeeds(t, 10*time.Second, func() error {
		if !strings.Contains(run(t, w.fabric.Namespace(), "nft", "list", "map", "ip", "azure", "spare"), "elements") {
			return errors.New("the fabric keeps no spare port")
		}
		return nil
	})
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
	if _, err := w.portOf(server+":81", 20*time.Second); err != nil {
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
	port, err := w.portOf(server+":80", 20*time.Second)
	if err != nil || port != f[1] {
		t.Errorf("the freed port %s: got %s, %v", f[1], port, err)
	}
}

// TestOutboundEnded: flows that have ended keep their ports for four minutes, so that many short ones one after another use a node's ports
// up, too. The kernel alone would let a new flow have the port of one that has ended.
func TestOutboundEnded(t *testing.T) {
	t.Parallel()
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
	opened, failed := 0, 0
	for i := 0; i < 1400 && failed < 10; i++ {
		if begin() == nil {
			opened++
			failed = 0
		} else {
			failed++ // in a row
		}
		if i > 800 {
			time.Sleep(4 * time.Millisecond) // so that the fabric sees each stage
		}
	}
	if t.Logf("%d flows", opened); opened > 1100 { // not 1,024: a flow that ended since the fabric looked last may have lost its port
		t.Errorf("%d flows found one of 1,024 ports", opened)
	}
	eventually.Succeeds(t, time.Minute, func() error {
		for range 5 {
			if begin() == nil {
				return errors.New("a flow finds a port")
			}
		}
		use, err := w.fabric.PortUses()
		if err == nil && use[0].InUse != 1024 { // on a busy machine a flow may fail that would have found one
			err = fmt.Errorf("ports in use: %+v", use)
		}
		return err
	})
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
	t.Parallel()
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
	t.Parallel()
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
