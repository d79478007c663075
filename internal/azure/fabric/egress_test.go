package fabric_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

const (
	internalVIP = "10.13.64.100"
	instanceIP  = "203.0.113.20"
	gatewayIP   = "203.0.113.30"
)

// addInternal adds an internal load balancer: port 80 with floating IP, port 81 without.
func addInternal(n *vnet.Network) error {
	public, _ := n.LoadBalancer("kubernetes")
	public.SKU = vnet.SKUStandard
	rule := vnet.Rule{Name: "floating", Frontend: "i", BackendPool: "kubernetes", Protocol: vnet.ProtocolTCP, FrontendPort: 80, BackendPort: 80,
		FloatingIP: true, IdleTimeoutMinutes: 4, LoadDistribution: vnet.DistributionDefault, TCPReset: true}
	plain := rule
	plain.Name, plain.FrontendPort, plain.BackendPort, plain.FloatingIP = "plain", 81, 8081, false
	n.LoadBalancers = append(n.LoadBalancers, vnet.LoadBalancer{
		Name: "kubernetes-internal", SKU: vnet.SKUStandard, BackendPools: public.BackendPools, Rules: []vnet.Rule{rule, plain},
		Frontends: []vnet.Frontend{{Name: "i", Address: netip.MustParseAddr(internalVIP), VNet: "aksVnet", Subnet: "aks"}},
	})
	return nil
}

// addPeer adds a peered network with a machine.
func addPeer(n *vnet.Network) error {
	n.VNets[0].Peerings = []vnet.Peering{{Name: "to-hub", RemoteVNet: "hub"}}
	n.VNets = append(n.VNets, vnet.VNet{Name: "hub", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")},
		Subnets:  []vnet.Subnet{{Name: "fw", Prefix: netip.MustParsePrefix("172.20.0.0/24")}},
		Peerings: []vnet.Peering{{Name: "to-aks", RemoteVNet: "aksVnet"}}})
	_, err := n.AllocateNIC("peer", "hub", "fw", 1)
	n.NICs[len(n.NICs)-1].IPForwarding = true
	return err
}

func (w *world) addPeer() {
	w.t.Helper()
	w.update(addPeer)
	w.attach("peer", func(ns *netns.Namespace) error { return w.fabric.AttachNIC("peer-nic", ns) })
}

// TestInternalFrontend: machines of the virtual network and of a peered one reach an internal front end, and back ends see their addresses.
// What the load balancer maps back to its sender fails, and the sender's other flows work.
func TestInternalFrontend(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 1)
	w.addPeer()
	w.update(addInternal)
	for _, node := range []string{"node0", "node1"} {
		w.listen(node, "0.0.0.0:8081")
		w.listen(node, "0.0.0.0:82")
	}
	for _, from := range []string{"testvm", "peer"} {
		seen := map[string]bool{}
		for i := 0; len(seen) < 2 && i < 60; i++ {
			host, remote, local := w.mustAsk(from, internalVIP+":81")
			if seen[host] = true; remote != w.address(from) || local != w.address(host)+":8081" {
				t.Fatalf("%s saw %s > %s, from %s", host, remote, local, from)
			}
		}
		if len(seen) != 2 {
			t.Errorf("60 flows of %s, all to one back end", from)
		}
		// What goes to a back end itself is another matter.
		if host, remote, _ := w.mustAsk(from, w.address("node0")+":8081"); host != "node0" || remote != w.address(from) {
			t.Errorf("%s saw %s", host, remote)
		}
	}
	failed, worked := 0, 0
	for range 40 {
		c, err := w.dialShort("node0", "", internalVIP+":81")
		if err != nil {
			failed++
			continue
		}
		worked++
		if host := strings.Split(c.RemoteAddr().String(), ":")[0]; host != internalVIP {
			t.Errorf("connected with %s", host)
		}
	}
	if failed == 0 || worked == 0 {
		t.Errorf("of node0's flows %d work and %d fail, want some of both", worked, failed)
	}
	// With floating IP a back end sees the front end's address.
	for _, node := range []string{"node0", "node1"} {
		run(t, w.ns[node], "ip", "addr", "replace", internalVIP+"/32", "dev", "lo")
		w.listen(node, "0.0.0.0:80")
	}
	if _, remote, local := w.mustAsk("peer", internalVIP+":80"); remote != w.address("peer") || local != internalVIP+":80" {
		t.Errorf("the back end saw %s > %s", remote, local)
	}
	if _, err := w.dialShort("testvm", "", internalVIP+":82"); err == nil {
		t.Error("connected with a port that no rule is for")
	}
	if _, err := w.dialShort("client", "", internalVIP+":80"); err == nil {
		t.Error("reached an internal front end from the internet")
	}
	if _, remote, _ := w.mustAsk("node0", w.address("node1")+":82"); remote != w.address("node0") {
		t.Errorf("node1 saw %s", remote)
	}
}

// TestInternalIdle: what comes too late for a flow by an internal front end is reset, in both directions.
func TestInternalIdle(t *testing.T) {
	t.Parallel()
	for _, port := range []string{"80", "81"} {
		t.Run(port, func(t *testing.T) {
			w := newWorld(t, 1, 1)
			w.update(addInternal)
			run(t, w.ns["node0"], "ip", "addr", "replace", internalVIP+"/32", "dev", "lo")
			l, err := w.ns["node0"].Listen(t.Context(), "tcp4", "0.0.0.0:"+map[string]string{"80": "80", "81": "8081"}[port])
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			near, err := w.dial("testvm", "", internalVIP+":"+port)
			if err != nil {
				t.Fatal(err)
			}
			far, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			w.leave(3)
			if err := w.fabric.Close(); err != nil {
				t.Fatal(err)
			}
			w.start() // looks at all flows at once
			w.awaitFlows(0)
			near.SetReadDeadline(time.Now().Add(20 * time.Second))
			far.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the VM: %v, want a reset", err)
			}
			if _, err := far.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the back end: %v, want a reset", err)
			}
		})
	}
}

// standard makes the world's load balancer a Standard one with an outbound rule.
func standard(n *vnet.Network) error {
	if err := addService(n); err != nil {
		return err
	}
	lb, _ := n.LoadBalancer("kubernetes")
	lb.SKU = vnet.SKUStandard
	lb.Rules[0].DisableOutboundSNAT = true
	lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: "out", Address: netip.MustParseAddr(secondVIP)})
	lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"out"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
		TCPReset: true}}
	return nil
}

// addInstance gives node0 a public address.
func addInstance(n *vnet.Network) error {
	p, err := n.AllocatePublicIP("node-ip", netip.MustParseAddr(instanceIP))
	n.NICs[0].IPConfigs[0].PublicIP = p.Name
	return err
}

// addGateway gives the nodes' subnet a NAT gateway.
func addGateway(n *vnet.Network) error {
	p, err := n.AllocatePublicIP("gateway-ip", netip.MustParseAddr(gatewayIP))
	n.NATGateways = []vnet.NATGateway{{Name: "natgw", PublicIPs: []string{p.Name}, IdleTimeoutMinutes: 4}}
	n.VNets[0].Subnets[0].NATGateway = "natgw"
	return err
}

// addFirewallRoute sends all of the nodes' subnet to the peered machine, which leaves by its own address.
func addFirewallRoute(n *vnet.Network) error {
	peer, _ := n.NIC("peer-nic")
	n.RouteTables = []vnet.RouteTable{{Name: "t", Routes: []vnet.UserRoute{{Name: "all", Prefix: netip.MustParsePrefix("0.0.0.0/0"),
		NextHopType: vnet.NextHopAppliance, NextHop: peer.Primary().Address}}}}
	n.VNets[0].Subnets[0].RouteTable = "t"
	return nil
}

// TestPrecedence: a user-defined route comes before a NAT gateway, that before a machine's own address, that before an outbound rule, that
// before load balancing rules and default outbound access. Answers leave by where their flow came in.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 2)
	w.addPeer()
	w.listen("server", "0.0.0.0:80")
	w.node("node1")
	sees := func(from, want string) {
		t.Helper()
		if _, remote, _ := w.mustAsk(from, server+":80"); remote != want {
			t.Errorf("%s appears as %s, want %s", from, remote, want)
		}
	}
	sees("node0", "203.0.113.2")
	w.update(addService)
	sees("node0", vip)
	w.update(standard)
	sees("node0", secondVIP)
	w.update(addInstance)
	sees("node0", instanceIP)
	sees("node1", secondVIP)
	kept, err := w.dial("node1", "", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	w.update(addGateway)
	sees("node0", gatewayIP)
	sees("node1", gatewayIP)
	sees("testvm", "203.0.113.2")
	if f, err := kept.ask(); err != nil || !strings.HasPrefix(f[1], secondVIP+":") {
		t.Errorf("a flow that began before: %v %v", f, err)
	}
	// A secondary address leaves by it, too.
	run(t, w.ns["node0"], "ip", "addr", "add", "10.13.64.5/32", "dev", "lo")
	c, err := w.dial("node0", "10.13.64.5", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := c.ask(); err != nil || !strings.HasPrefix(f[1], gatewayIP+":") {
		t.Errorf("a secondary address appears as %v %v", f, err)
	}
	// Inbound goes on as before.
	w.listen("node0", "0.0.0.0:22")
	if _, remote, _ := w.mustAsk("client", instanceIP+":22"); remote != client {
		t.Errorf("node0 saw %s", remote)
	}
	w.awaitUp("node1")
	if host, remote, _ := w.mustAsk("client", vip+":80"); host != "node1" || remote != client {
		t.Errorf("%s saw %s", host, remote)
	}
	// It translates TCP and UDP only.
	if err := w.ping("testvm"); err == nil {
		t.Error("default outbound access passed ICMP")
	}
	if err := w.ping("node0"); err == nil {
		t.Error("a NAT gateway passed ICMP")
	}
	// The firewall is a router here, and masquerades.
	run(t, w.ns["peer"], "sysctl", "-q", "net.ipv4.ip_forward=1")
	run(t, w.ns["peer"], "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE")
	w.update(addFirewallRoute)
	sees("node0", "203.0.113.2")
	sees("node1", "203.0.113.2")
}

// TestAsymmetric: the answer of a back end behind a route to an appliance reaches the appliance, which has no connection for it. One that
// forwards it all the same gets nothing through.
func TestAsymmetric(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.addPeer()
	w.update(addService)
	w.node("node0")
	w.awaitUp("node0")
	if _, remote, _ := w.mustAsk("client", vip+":80"); remote != client {
		t.Errorf("node0 saw %s", remote)
	}
	w.update(addFirewallRoute)
	count := func() string {
		return run(t, w.ns["peer"], "iptables", "-t", "mangle", "-vnxL", "PREROUTING")
	}
	run(t, w.ns["peer"], "iptables", "-t", "mangle", "-A", "PREROUTING", "-p", "tcp", "--tcp-flags", "SYN,ACK", "SYN,ACK", "-s", vip)
	for _, forward := range []string{"0", "1"} {
		run(t, w.ns["peer"], "sysctl", "-q", "net.ipv4.ip_forward="+forward)
		if _, err := w.dialShort("client", "", vip+":80"); err == nil {
			t.Errorf("connected, ip_forward=%s", forward)
		}
	}
	if fields := strings.Fields(strings.Split(count(), "\n")[2]); fields[0] == "0" {
		t.Errorf("the appliance saw no answer:\n%s", count())
	}
}

func (w *world) ping(from string) error {
	return w.ns[from].Do(exec.Command("ping", "-c1", "-W1", server).Run)
}

// TestNoOutbound: what a Standard load balancer has without a rule that translates it, and what is in a private subnet, has no way to the
// internet, until it has a public address.
func TestNoOutbound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.listen("server", "0.0.0.0:80")
	for _, c := range []struct {
		name   string
		change func(*vnet.Network) error
		want   string // "" for no answer
	}{
		{"default", func(*vnet.Network) error { return nil }, "203.0.113.2"},
		{"private", func(n *vnet.Network) error { n.VNets[0].Subnets[0].Private = true; return nil }, ""},
		{"private, a rule translates", addService, vip},
		{"no rule translates", func(n *vnet.Network) error {
			n.VNets[0].Subnets[0].Private = false
			lb, _ := n.LoadBalancer("kubernetes")
			lb.SKU, lb.Rules[0].DisableOutboundSNAT = vnet.SKUStandard, true
			return nil
		}, ""},
		{"instance", addInstance, instanceIP},
	} {
		w.update(c.change)
		err := w.reach("node0", "", server+":80", c.want != "")
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: connected", c.name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, remote, _ := w.mustAsk("node0", server+":80"); remote != c.want {
			t.Errorf("%s: appears as %s, want %s", c.name, remote, c.want)
		}
	}
}

// TestGatewayPorts: a NAT gateway has no share for each machine. Two of them have more flows to one destination than a load balancer gives,
// each with a port that no other flow to there has.
func TestGatewayPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 1)
	w.update(standard)
	w.update(addGateway)
	w.listen("server", "0.0.0.0:80")
	ports := w.fill(server+":80", 1500)
	c, err := w.dial("node1", "", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.ask()
	if err != nil {
		t.Fatal(err)
	}
	if ports[f[1]]++; len(ports) != 1501 {
		t.Errorf("%d ports, want 1501", len(ports))
	}
	random := false
	for p := range ports {
		a := netip.MustParseAddrPort(p)
		if random = random || a.Port() < 32768; a.Addr().String() != gatewayIP || a.Port() < 1024 {
			t.Fatalf("port %s", p)
		}
	}
	if !random {
		t.Error("all ports are the machine's own")
	}
	use, err := w.fabric.PortUses()
	if err != nil || len(use) != 1 {
		t.Fatal(use, err)
	}
	if u := use[0]; u.Gateway != "natgw" || u.Ports != 64512 || u.InUse != 1501 || u.Fullest.InUse != 1501 {
		t.Errorf("use of ports %+v", u)
	}
}

// TestGatewayIdle: a NAT gateway forgets an idle flow silently, and resets what comes after that.
func TestGatewayIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(standard)
	w.update(addGateway)
	w.listen("server", "0.0.0.0:80")
	c, err := w.dial("node0", "", server+":80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(); err != nil {
		t.Fatal(err)
	}
	w.leave(2)
	if err := w.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.awaitFlows(0)
	c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the idle time: %v, want silence", err)
	}
	if _, err := c.ask(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a late packet: %v, want a reset", err)
	}
	timeouts := run(t, w.fabric.Namespace(), "nft", "list", "table", "ip", "azure-idle")
	for _, want := range []string{"time_wait : 1m5s", "close : 16s"} {
		if !strings.Contains(timeouts, want) && !strings.Contains(timeouts, strings.NewReplacer("1m5s", "65", "16s", "16").Replace(want)) {
			t.Errorf("no %q in\n%s", want, fmt.Sprint(timeouts))
		}
	}
}
