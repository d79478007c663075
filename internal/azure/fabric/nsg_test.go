package fabric_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/nftables"
)

// nsgMaker makes security groups and flows out of few values, so that they meet.
type nsgMaker struct{ *rand.Rand }

func (m nsgMaker) one(list ...string) string { return list[m.IntN(len(list))] }

func (m nsgMaker) addresses() []string {
	if m.IntN(3) == 0 {
		return nil
	}
	if m.IntN(3) == 0 {
		return []string{m.one(vnet.TagInternet, vnet.TagVirtualNetwork, vnet.TagAzureLoadBalancer, vnet.Any)}
	}
	var all []string
	for range 1 + m.IntN(3) {
		all = append(all, m.one("10.13.64.0/20", "10.13.1.4", "10.13.64.4/32", "198.51.100.0/24", client, server, vip, "203.0.113.0/24",
			"0.0.0.0/1", "10.0.0.0/8"))
	}
	return all
}

func (m nsgMaker) ports() []vnet.PortRange {
	var all []vnet.PortRange
	for range m.IntN(3) {
		first := uint16(78 + m.IntN(6))
		all = append(all, vnet.PortRange{First: first, Last: first + uint16(m.IntN(2)*m.IntN(4))})
	}
	return all
}

func (m nsgMaker) rule(i int) vnet.SecurityRule {
	r := vnet.SecurityRule{
		Name: fmt.Sprintf("r%d", i), Priority: 100 + 7*i, Direction: m.one(vnet.DirectionInbound, vnet.DirectionInbound, vnet.DirectionOutbound),
		Access: m.one(vnet.AccessAllow, vnet.AccessDeny), Protocol: m.one(vnet.ProtocolTCP, vnet.ProtocolUDP, vnet.ProtocolICMP, vnet.Any),
		Sources: m.addresses(), Destinations: m.addresses(),
	}
	if r.Protocol != vnet.ProtocolICMP {
		r.DestinationPorts = m.ports()
	}
	if r.Protocol != vnet.ProtocolICMP && m.IntN(6) == 0 {
		r.SourcePorts = []vnet.PortRange{{First: 1000, Last: uint16(1000 + m.IntN(31000))}} // below those of clients (32768 and up)
	}
	if m.IntN(3) == 0 { // as those of Services are
		port := uint16(80 + m.IntN(2))
		r.Protocol, r.Destinations = m.one(vnet.ProtocolTCP, vnet.ProtocolUDP), []string{m.one(vip, "203.0.113.11", "10.13.64.4")}
		r.DestinationPorts = []vnet.PortRange{{First: port, Last: port}}
	}
	return r
}

// secure gives the network random groups on its subnets and NICs.
func (m nsgMaker) secure(n *vnet.Network) {
	n.SecurityGroups = nil
	names := []string{"", "a", "b", "c"}
	for _, name := range names[1:] {
		g := vnet.SecurityGroup{Name: name}
		for i := range m.IntN(12) {
			g.Rules = append(g.Rules, m.rule(i))
		}
		m.Shuffle(len(g.Rules), func(i, j int) { g.Rules[i], g.Rules[j] = g.Rules[j], g.Rules[i] })
		n.SecurityGroups = append(n.SecurityGroups, g)
	}
	for i := range n.VNets[0].Subnets {
		n.VNets[0].Subnets[i].SecurityGroup = m.one(names...)
	}
	for i := range n.NICs {
		n.NICs[i].SecurityGroup = m.one(names...)
	}
}

// emptyHost answers what rules ask of the machine: nothing, here.
type emptyHost struct{}

func (emptyHost) Recent(string) (netfilter.RecentList, bool)                       { return nil, false }
func (emptyHost) IPSet(string) (*netfilter.Set, bool)                              { return nil, false }
func (emptyHost) AddressType(netip.Addr, string) (netfilter.AddressType, bool)     { return 0, false }
func (emptyHost) Route(netfilter.RouteQuery) (a netfilter.RouteAnswer, known bool) { return }
func (emptyHost) Link(string) (netfilter.Link, bool)                               { return netfilter.Link{}, false }
func (emptyHost) Choose(netfilter.Choice) int                                      { return 0 }

// TestSecurityGroupsAsRules: for random flows the plan's rules, as the kernel has them, decide as Network.Decide does, rule by rule; and
// so do the rules of a walk that knows the same network by Azure's resources.
func TestSecurityGroupsAsRules(t *testing.T) {
	ns, err := netns.Create(t.TempDir() + "/nsg")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Remove()
	decided, compared := 0, 0
	for seed := range uint64(25) {
		m := nsgMaker{rand.New(rand.NewPCG(seed, 1))}
		n := network(t, 2, 2)
		if seed%2 == 0 {
			n.RouteTables = []vnet.RouteTable{{Name: "t", Routes: []vnet.UserRoute{
				{Name: "r", Prefix: netip.MustParsePrefix([]string{"198.51.100.0/25", "0.0.0.0/0"}[seed/2%2]), NextHopType: vnet.NextHopAppliance,
					NextHop: netip.MustParseAddr("10.13.1.4")},
			}}}
			n.VNets[0].Subnets[0].RouteTable = "t"
			n.NICs[2].IPForwarding = true
		}
		if seed%3 == 0 {
			n.Overlay, n.NICs[0].Overlay = netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.3.0/24")
		}
		m.secure(&n)
		if err := n.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := ruleset.ApplyNFT(t.Context(), ns, vnet.NewPlan(n, vnet.Health{}).NFT); err != nil {
			t.Fatal(err)
		}
		chains, walked := securityChains(t, ns), map[string]*netfilter.Chain(nil)
		links := map[string]string{}
		if !n.Overlay.IsValid() { // which is not among the network's resources
			walked, links = walkedChains(t, n)
		}
		for range 400 {
			nic := n.NICs[m.IntN(len(n.NICs))]
			direction := m.one(vnet.DirectionInbound, vnet.DirectionOutbound)
			f := m.flow(nic, direction)
			want := fmt.Sprint(n.Decide(nic, direction, f))
			if got := evaluate(t, chains[direction], nic.Link(), direction, f); got != want {
				t.Fatalf("seed %d: %s %s %+v:\nrules  %s\nDecide %s\n%+v", seed, nic.Name, direction, f, got, want, n.SecurityGroups)
			}
			if walked != nil {
				if got := evaluate(t, walked[direction], links[nic.Name], direction, f); got != want {
					t.Fatalf("seed %d: %s %s %+v:\nwalk   %s\nDecide %s\n%+v", seed, nic.Name, direction, f, got, want, n.SecurityGroups)
				}
				compared++
			}
			if want != "[]" {
				decided++
			}
		}
	}
	if decided < 2000 || compared < 4000 {
		t.Errorf("only %d flows were judged by a group, %d by a walk", decided, compared)
	}
}

func (m nsgMaker) flow(nic vnet.NIC, direction string) vnet.SecurityFlow {
	port := func() uint16 { return uint16(77 + m.IntN(9)) }
	own := netip.AddrPortFrom(nic.Primary().Address, port())
	if m.IntN(4) == 0 {
		own = netip.AddrPortFrom(netip.MustParseAddr(vip), port()) // floating IP
	}
	other := netip.AddrPortFrom(netip.MustParseAddr(m.one(client, server, "10.13.1.4", "10.13.64.4", "10.13.64.6", "168.63.129.16",
		"169.254.169.254", "10.244.3.7", "10.244.9.9", "172.16.0.1", "203.0.113.2")), port())
	f := vnet.SecurityFlow{Protocol: []uint8{1, 6, 17}[m.IntN(3)], Source: other, Destination: own}
	if direction == vnet.DirectionOutbound {
		f.Source, f.Destination = netip.AddrPortFrom(nic.Primary().Address, uint16(900+m.IntN(2000))), other
	}
	return f
}

// noHosts is a source without machines.
type noHosts struct{}

func (noHosts) Names() []string                          { return nil }
func (noHosts) Host(name string) (*snapshot.Host, error) { return nil, snapshot.NotFound(name, nil) }
func (noHosts) Objects() (none snapshot.Objects)         { return none }

// walkedChains returns the base chains that ask the groups in a walk by the network's resources, and the names of its links by the NICs'.
func walkedChains(t *testing.T, n vnet.Network) (chains map[string]*netfilter.Chain, links map[string]string) {
	t.Helper()
	known, all := armview.NewResources(), arm.NewResources(n)
	for _, list := range []any{all.Interfaces, all.VirtualNetworks, all.RouteTables, all.SecurityGroups, all.PublicIPAddresses,
		all.LoadBalancers, all.NATGateways} {
		text, err := json.Marshal(list)
		if err == nil && string(text) != "null" {
			err = known.Read("", text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	source, err := armview.Extend(noHosts{}, known)
	if err != nil {
		t.Fatal(err)
	}
	host, err := source.Host(armview.Host)
	if err != nil {
		t.Fatal(err)
	}
	links = map[string]string{}
	for _, nic := range n.NICs {
		for _, r := range host.FIB.Routes {
			if r.Destination == netip.PrefixFrom(nic.Primary().Address, 32) {
				links[nic.Name] = r.Link
			}
		}
	}
	return chainsOf(host.Rules), links
}

// securityChains returns the base chains that ask the groups.
func securityChains(t *testing.T, ns *netns.Namespace) map[string]*netfilter.Chain {
	t.Helper()
	rules, err := nftables.Parse([]byte(run(t, ns, "nft", "-j", "list", "ruleset")))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := nftables.Lower(rules)
	if err != nil {
		t.Fatal(err)
	}
	set := &netfilter.Ruleset{Tables: tables}
	set.Index()
	return chainsOf(set)
}

func chainsOf(set *netfilter.Ruleset) map[string]*netfilter.Chain {
	found := map[string]*netfilter.Chain{}
	for direction, at := range map[string]struct {
		hook netfilter.Hook
		name string
	}{vnet.DirectionInbound: {netfilter.Postrouting, "nsg-in"}, vnet.DirectionOutbound: {netfilter.Prerouting, "lb"}} {
		for _, c := range set.Hook(netfilter.IPv4, at.hook) {
			if c.Name == at.name {
				found[direction] = c
			}
		}
	}
	return found
}

// evaluate takes a flow's first packet through the chain and gives the decisions that it met, as Decide prints them.
func evaluate(t *testing.T, chain *netfilter.Chain, link, direction string, f vnet.SecurityFlow) string {
	t.Helper()
	if chain == nil { // no NIC has a group
		return "[]"
	}
	p := packet.Packet{Frame: packet.Frame{Type: packet.EtherIPv4}, TTL: 64}
	p.Source, p.Destination, p.Protocol = f.Source.Addr(), f.Destination.Addr(), packet.Protocol(f.Protocol)
	p.SourcePort, p.DestinationPort = packet.Exactly(f.Source.Port()), packet.Exactly(f.Destination.Port())
	p.Track = packet.Track{Flow: &packet.Flow{}, State: packet.New}
	ctx := &netfilter.Context{Packet: &p, Family: netfilter.IPv4, Hook: netfilter.Postrouting, Host: emptyHost{}, Chooser: emptyHost{}}
	if p.Out = link; direction == vnet.DirectionOutbound {
		ctx.Hook, p.In, p.Out = netfilter.Prerouting, link, ""
	}
	verdict, err := chain.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var met []string
	for _, v := range ctx.Visits {
		if group, ok := strings.CutPrefix(v.Chain.Name, "nsg/"); ok && v.Rule != nil && v.Rule.Comment != "what Azure's host serves" &&
			(v.Verdict.Kind == netfilter.Return || v.Verdict.Kind == netfilter.Drop) {
			group, _, _ = strings.Cut(group, "/")
			does := map[netfilter.VerdictKind]string{netfilter.Return: "allows", netfilter.Drop: "denies"}[v.Verdict.Kind]
			met = append(met, fmt.Sprintf("NSG %s rule %s %s", group, v.Rule.Comment, does))
		}
	}
	denied := len(met) > 0 && strings.HasSuffix(met[len(met)-1], "denies")
	if denied != (verdict.Kind == netfilter.Drop) {
		t.Errorf("verdict %s after %s", verdict.Kind, met)
	}
	return "[" + strings.Join(met, " ") + "]"
}

// TestSecurityGroupsInKernel shows that random flows get through exactly where Network.Decide says that they do. A port without a listener
// refuses the flows that reach it. Flows that a group denies get no answer.
func TestSecurityGroupsInKernel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 1)
	w.update(func(n *vnet.Network) error {
		n.PublicIPs = []vnet.PublicIP{{Name: "pip", Address: netip.MustParseAddr("203.0.113.3")}}
		n.NICs[2].IPConfigs[0].PublicIP = "pip"
		return nil
	})
	for _, ns := range w.ns { // errors for datagrams are one a second to a sender otherwise
		run(t, ns, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0")
	}
	counts := map[bool]int{}
	for seed := range uint64(6) {
		m := nsgMaker{rand.New(rand.NewPCG(seed, 2))}
		w.update(func(n *vnet.Network) error {
			m.secure(n)
			return nil
		})
		n, _ := w.fabric.Snapshot()
		var all sync.WaitGroup
		for range 24 {
			f := m.route(n)
			counts[f.passes]++
			all.Go(func() { w.try(t, seed, f) })
		}
		all.Wait()
	}
	if counts[true] < 20 || counts[false] < 20 {
		t.Errorf("flows by whether they pass: %v", counts)
	}
}

// routedFlow is a flow between two machines, and whether its groups let it.
type routedFlow struct {
	from, network, to string
	passes            bool
	why               []vnet.SecurityDecision
}

// route makes a random flow: inside the network, out of it, or in by the VM's public address.
func (m nsgMaker) route(n vnet.Network) routedFlow {
	network := m.one("tcp", "udp")
	protocol := map[string]uint8{"tcp": 6, "udp": 17}[network]
	port := uint16(77 + m.IntN(9))
	const ephemeral = 45000 // the kernel's choice: rules of this test hold no range that tells ephemeral ports apart
	receiver := n.NICs[m.IntN(len(n.NICs))]
	to := receiver.Primary().Address
	if m.IntN(3) == 0 {
		f := routedFlow{from: "client", network: network, to: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.3"), port).String()}
		receiver = n.NICs[2]
		f.decide(n.Decide(receiver, vnet.DirectionInbound, vnet.SecurityFlow{
			Protocol: protocol, Source: netip.AddrPortFrom(netip.MustParseAddr(client), ephemeral),
			Destination: netip.AddrPortFrom(receiver.Primary().Address, port),
		}))
		return f
	}
	sender := n.NICs[m.IntN(len(n.NICs))]
	for sender.Name == receiver.Name {
		sender = n.NICs[m.IntN(len(n.NICs))]
	}
	source := netip.AddrPortFrom(sender.Primary().Address, ephemeral)
	if m.IntN(3) == 0 {
		to = netip.MustParseAddr(server)
	}
	f := routedFlow{from: sender.Machine, network: network, to: netip.AddrPortFrom(to, port).String()}
	flow := vnet.SecurityFlow{Protocol: protocol, Source: source, Destination: netip.AddrPortFrom(to, port)}
	f.decide(n.Decide(sender, vnet.DirectionOutbound, flow))
	if f.passes && to != netip.MustParseAddr(server) {
		f.decide(n.Decide(receiver, vnet.DirectionInbound, flow))
	}
	return f
}

func (f *routedFlow) decide(d []vnet.SecurityDecision) {
	f.why = append(f.why, d...)
	f.passes = len(d) == 0 || d[len(d)-1].Allowed()
}

// try sends the flow's first packet.
func (w *world) try(t *testing.T, seed uint64, f routedFlow) {
	limit := 400 * time.Millisecond
	if f.passes {
		limit = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := w.ns[f.from].DialFrom(ctx, f.network, netip.Addr{}, f.to)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(limit))
		if _, err = c.Write([]byte("x")); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
	}
	if reached := errors.Is(err, syscall.ECONNREFUSED); reached != f.passes {
		t.Errorf("seed %d: %s → %s/%s: %v, but %v", seed, f.from, f.to, f.network, err, f.why)
	}
}

// TestSecurityGroupsState: rules hold for flows that begin. A flow goes on when a rule comes that would deny it, one inside the network
// too, which the kernel did not track until then; and its end of the rule changes nothing again. Probes are judged.
func TestSecurityGroupsState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 1)
	w.update(addService)
	w.update(func(n *vnet.Network) error {
		n.PublicIPs = []vnet.PublicIP{{Name: "pip", Address: netip.MustParseAddr("203.0.113.3")}}
		n.NICs[0].IPConfigs[0].PublicIP = "pip"
		return nil
	})
	w.node("node0")
	w.awaitUp("node0")
	w.listen("testvm", "0.0.0.0:22")
	vm := w.address("testvm")
	onNode := fmt.Sprintf("203.0.113.3:%d", nodePort)
	w.mustAsk("client", onNode)
	inside, err := w.dial("node0", "", vm+":22")
	if err != nil {
		t.Fatal(err)
	}
	outside, err := w.dial("client", "", vip+":80")
	if err != nil {
		t.Fatal(err)
	}
	both := func(when string) {
		t.Helper()
		for name, c := range map[string]*conn{"inside": inside, "from the internet": outside} {
			if _, err := c.ask(); err != nil {
				t.Errorf("%s: the flow %s: %v", when, name, err)
			}
		}
	}
	both("before")
	group := func(rules ...vnet.SecurityRule) {
		w.update(func(n *vnet.Network) error {
			n.SecurityGroups = []vnet.SecurityGroup{{Name: "g", Rules: rules}}
			for i := range n.NICs {
				n.NICs[i].SecurityGroup = "g"
			}
			return nil
		})
	}
	group() // closed to the internet
	both("with a group")
	for _, to := range []string{vip + ":80", onNode} {
		if _, err := w.dialShort("client", "", to); err == nil {
			t.Error("the internet gets in:", to)
		}
	}
	w.mustAsk("node0", vm+":22")
	rule := vnet.SecurityRule{Name: "r", Priority: 100, Direction: vnet.DirectionInbound, Access: vnet.AccessDeny, Protocol: vnet.Any}
	group(rule)
	both("with all denied")
	w.awaitAll(false, "node0") // the probes are denied, too; a Basic load balancer ends its flows then
	if _, err := inside.ask(); err != nil {
		t.Error("later:", err)
	}
	if _, err := w.dialShort("node0", "", vm+":22"); err == nil {
		t.Error("a new flow inside begins")
	}
	rule.Access, rule.Sources = vnet.AccessAllow, []string{vnet.TagInternet}
	group(rule)
	w.awaitAll(true, "node0")
	if _, err := inside.ask(); err != nil {
		t.Error("with the rule gone:", err)
	}
	w.mustAsk("node0", vm+":22")
	w.mustAsk("client", vip+":80")
}
