package armread_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/armread"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/kerneltest"
)

// machines is a source without Azure's side: nodes and VMs.
type machines struct{ snapshot.Source }

func (m machines) Names() []string {
	return slices.DeleteFunc(slices.Clone(m.Source.Names()), func(n string) bool {
		return !strings.HasPrefix(n, "node/") && !strings.HasPrefix(n, "vm/")
	})
}

func (m machines) Host(name string) (*snapshot.Host, error) {
	if !slices.Contains(m.Names(), name) {
		return nil, snapshot.NotFound(name, m.Names())
	}
	h, err := m.Source.Host(name)
	if err != nil {
		return nil, err
	}
	alone := *h
	alone.Peers = nil
	return &alone, nil
}

// TestEqual: a walk by what Azure's interface says ends as one by the rules that the lab's fabric has in the kernel: the same end, and
// the same source seen there. Each example's network gets machines in namespaces of their own. Some get random security groups and routes, others
// random load balancers and NAT gateways: between these, real flows arrive as the walks say.
func TestEqual(t *testing.T) {
	kerneltest.NeedRoot(t)
	for _, c := range []struct {
		example string
		change  func(*vnet.Network)
	}{
		{"azure-cni", nil}, {"outbound", nil}, {"shop", nil}, {"iptables", nil}, {"calico", nil}, {"outbound", addGateway},
		{"calico", addGateway}, {"calico", addInternal}, {"outbound", addInternal}, {"calico", closeOutbound}, {"calico", addInstance},
		{"outbound", secure(1)}, {"outbound", secure(2)}, {"calico", secure(3)}, {"calico", secure(4)}, {"shop", secure(5)},
		{"outbound", balance(1)}, {"calico", balance(3)}, {"calico", balance(4)}, {"shop", balance(6)},
	} {
		name, isSent := c.example, false
		if c.change != nil {
			full := runtime.FuncForPC(reflect.ValueOf(c.change).Pointer()).Name()
			name += full[strings.LastIndexByte(full, '.'):]
			isSent = strings.Contains(full, "balance.")
		}
		t.Run(name, func(t *testing.T) {
			l := labOf(t, c.example)
			balanced(&l.Network)
			if c.change != nil {
				c.change(&l.Network)
			}
			if err := l.Network.Validate(); err != nil {
				t.Fatal(err)
			}
			own, namespaces := networkOf(t, l.Network)
			r := armview.NewResources()
			scope := []string{"/subscriptions/" + l.Network.Subscription + "/resourceGroups/" + l.Network.NodeResourceGroup,
				"/subscriptions/" + l.Network.Subscription + "/resourceGroups/" + l.Network.ResourceGroup}
			if err := armread.Read(t.Context(), r, scope, static{}, serve(t, manager(l))); err != nil {
				t.Fatal(err)
			}
			own = armview.WithDoubts(own)
			sdk, err := armview.Extend(machines{own}, r)
			if err != nil {
				t.Fatal(err)
			}
			var flows []flow
			for _, from := range l.Network.NICs {
				for _, to := range destinations(l.Network, from) {
					flows = append(flows, compare(t, own, sdk, l.Network, from, to)...)
				}
			}
			flows = append(flows, inbound(t, own, sdk, l.Network)...)
			if len(flows) == 0 {
				t.Error("nothing was compared")
			}
			t.Logf("%d walks compared", len(flows))
			if isSent {
				exchange(t, l.Network, namespaces, slices.DeleteFunc(flows, func(f flow) bool { return f.from == "" }))
			}
		})
	}
}

// balanced gives a network what Services bring: a rule with floating IP and one without, and outbound rules where there can be any.
func balanced(n *vnet.Network) {
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		if len(lb.BackendPools) == 0 {
			continue
		}
		a := netip.MustParseAddr("203.0.113.77")
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: "web", Address: a})
		pool := lb.BackendPools[0].Name
		for _, r := range []vnet.Rule{{Name: "web-TCP-80", FrontendPort: 80, BackendPort: 80, FloatingIP: true},
			{Name: "web-TCP-81", FrontendPort: 81, BackendPort: 8081}} {
			r.Frontend, r.BackendPool, r.Protocol, r.IdleTimeoutMinutes = "web", pool, vnet.ProtocolTCP, 4
			r.LoadDistribution = vnet.DistributionDefault
			lb.Rules = append(lb.Rules, r)
		}
	}
}

// standard makes the network's load balancers Standard ones.
func standard(n *vnet.Network) {
	for i := range n.LoadBalancers {
		n.LoadBalancers[i].SKU = vnet.SKUStandard
	}
}

// addGateway gives the subnet of the first machine a NAT gateway, and that machine its own public address.
func addGateway(n *vnet.Network) {
	standard(n)
	n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: "gw-ip", Address: netip.MustParseAddr("203.0.113.90")})
	n.NATGateways = []vnet.NATGateway{{Name: "gw", PublicIPs: []string{"gw-ip"}, IdleTimeoutMinutes: 4}}
	for i := range n.VNets {
		for j := range n.VNets[i].Subnets {
			if n.VNets[i].Name == n.NICs[0].VNet && n.VNets[i].Subnets[j].Name == n.NICs[0].Subnet {
				n.VNets[i].Subnets[j].NATGateway = "gw"
			}
		}
	}
	addInstance(n)
}

// addInstance gives the first machine a public address.
func addInstance(n *vnet.Network) {
	n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: "instance-ip", Address: netip.MustParseAddr("203.0.113.91")})
	n.NICs[0].IPConfigs[0].PublicIP = "instance-ip"
}

// addInternal adds an internal load balancer with a rule with floating IP and one without.
func addInternal(n *vnet.Network) {
	standard(n)
	nic := n.NICs[0]
	a, err := n.AllocateFrontend(nic.VNet, nic.Subnet, netip.Addr{})
	if err != nil {
		panic(err)
	}
	lb := vnet.LoadBalancer{Name: "kubernetes-internal", SKU: vnet.SKUStandard,
		Frontends: []vnet.Frontend{{Name: "in", Address: a, VNet: nic.VNet, Subnet: nic.Subnet}},
		BackendPools: []vnet.BackendPool{{Name: "one",
			Members: []vnet.IPConfigRef{{NIC: nic.Name, IPConfig: nic.Primary().Name}}}}}
	for _, r := range []vnet.Rule{{Name: "in-TCP-80", FrontendPort: 80, BackendPort: 80, FloatingIP: true},
		{Name: "in-TCP-81", FrontendPort: 81, BackendPort: 8081}} {
		r.Frontend, r.BackendPool, r.Protocol, r.IdleTimeoutMinutes = "in", "one", vnet.ProtocolTCP, 4
		r.LoadDistribution = vnet.DistributionDefault
		lb.Rules = append(lb.Rules, r)
	}
	n.LoadBalancers = append(n.LoadBalancers, lb)
}

// closeOutbound makes all subnets private, and has no rule translate sources.
func closeOutbound(n *vnet.Network) {
	standard(n)
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		lb.OutboundRules = nil
		for j := range lb.Rules {
			lb.Rules[j].DisableOutboundSNAT = true
		}
	}
	for i := range n.VNets {
		for j := range n.VNets[i].Subnets {
			n.VNets[i].Subnets[j].Private = true
		}
	}
}

// secure gives a network random security groups, whose rules differ in priority, protocol, ports and what they hold, and user-defined routes.
func secure(seed uint64) func(*vnet.Network) {
	return func(n *vnet.Network) {
		r := rand.New(rand.NewPCG(seed, 41))
		one := func(list []string) string { return list[r.IntN(len(list))] }
		words := []string{vnet.TagVirtualNetwork, vnet.TagInternet, vnet.TagAzureLoadBalancer, "0.0.0.0/1", "203.0.113.0/24"}
		for _, v := range n.VNets {
			words = append(words, v.AddressPrefixes[0].String())
		}
		for _, nic := range n.NICs {
			words = append(words, nic.Primary().Address.String())
		}
		for _, h := range n.Hosts {
			words = append(words, h.Address.String())
		}
		addresses := func() (all []string) {
			for range r.IntN(3) {
				all = append(all, one(words))
			}
			return all
		}
		ranges := []vnet.PortRange{{First: 80, Last: 80}, {First: 22, Last: 81}, {First: 81, Last: 442}, {First: 443, Last: 9000}, {First: 0, Last: 65535}}
		var names []string
		for _, name := range []string{"a", "b", "c"} {
			g := vnet.SecurityGroup{Name: name}
			for i, p := range r.Perm(14) {
				rule := vnet.SecurityRule{Name: fmt.Sprintf("r%d", i), Priority: 100 + 11*p, Sources: addresses(), Destinations: addresses(),
					Direction: one([]string{vnet.DirectionInbound, vnet.DirectionOutbound}), Access: one([]string{vnet.AccessAllow, vnet.AccessDeny}),
					Protocol: one([]string{vnet.ProtocolTCP, vnet.ProtocolUDP, vnet.ProtocolICMP, vnet.Any})}
				if rule.Protocol != vnet.ProtocolICMP && r.IntN(4) > 0 {
					rule.DestinationPorts = []vnet.PortRange{ranges[r.IntN(len(ranges))]}
				}
				g.Rules = append(g.Rules, rule)
			}
			n.SecurityGroups, names = append(n.SecurityGroups, g), append(names, name)
		}
		names = append(names, "")
		hop := &n.NICs[len(n.NICs)-1]
		hop.IPForwarding = true
		table := vnet.RouteTable{Name: "random"}
		for i, p := range []string{"0.0.0.0/0", "198.51.100.0/26", "172.31.0.0/16", "10.0.0.0/8", "203.0.113.0/25"} {
			hops := []string{vnet.NextHopAppliance, vnet.NextHopNone}
			route := vnet.UserRoute{Name: fmt.Sprintf("r%d", i), Prefix: netip.MustParsePrefix(p)}
			if !route.Prefix.Addr().IsPrivate() {
				hops = append(hops, vnet.NextHopInternet)
			}
			route.NextHopType = one(hops)
			if route.NextHopType == vnet.NextHopAppliance {
				route.NextHop = hop.Primary().Address
			}
			if r.IntN(2) == 0 {
				table.Routes = append(table.Routes, route)
			}
		}
		n.RouteTables = append(n.RouteTables, table)
		for i := range n.VNets {
			for j := range n.VNets[i].Subnets {
				s := &n.VNets[i].Subnets[j]
				if s.SecurityGroup = one(names); s.RouteTable == "" && r.IntN(2) == 0 {
					s.RouteTable = table.Name
				}
			}
		}
		for i := range n.NICs {
			n.NICs[i].SecurityGroup = one(names)
		}
	}
}

// networkOf brings a network into the kernel, and reads it.
func networkOf(t *testing.T, n vnet.Network) (snapshot.Source, map[string]*netns.Namespace) {
	t.Helper()
	dir := t.TempDir()
	f, err := fabric.New(fabric.Config{Dir: dir, Network: n})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"fabric": dir + "/fabric", "internet": dir + "/internet"}
	made := map[string]*netns.Namespace{}
	t.Cleanup(func() {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
		for _, ns := range made {
			if err := ns.Remove(); err != nil {
				t.Error(err)
			}
		}
	})
	attach := func(name, file string, attach func(string, *netns.Namespace) error, what string) {
		if err := os.MkdirAll(dir+"/hosts", 0o700); err != nil {
			t.Fatal(err)
		}
		paths[name] = dir + "/hosts/" + file
		ns, err := netns.Create(paths[name])
		if err != nil {
			t.Fatal(err)
		}
		made[name] = ns
		if err := attach(what, ns); err != nil {
			t.Fatal(err)
		}
	}
	for _, nic := range n.NICs {
		attach(machineOf(nic), nic.Machine, f.AttachNIC, nic.Name)
	}
	for _, h := range n.Hosts {
		attach("internet/"+h.Name, h.Name, f.AttachHost, h.Name)
	}
	return capture.NewSource(dump.Origin(t.Context(), paths, "")), made
}

func machineOf(nic vnet.NIC) string {
	if strings.HasPrefix(nic.Machine, "aks-") {
		return "node/" + nic.Machine
	}
	return "vm/" + nic.Machine
}

// destinations returns addresses of all other machines and all hosts, an unassigned address, and an address in each route's prefix.
func destinations(n vnet.Network, from vnet.NIC) []netip.AddrPort {
	all := []netip.AddrPort{netip.MustParseAddrPort("172.31.255.1:80")}
	for _, h := range n.Hosts {
		all = append(all, netip.AddrPortFrom(h.Address, 80), netip.AddrPortFrom(h.Address, 443))
	}
	for _, nic := range n.NICs {
		if nic.Name != from.Name {
			all = append(all, netip.AddrPortFrom(nic.Primary().Address, 22))
		}
	}
	for _, lb := range n.LoadBalancers {
		for _, f := range lb.Frontends {
			for _, port := range []uint16{80, 81, 82} {
				if f.Internal() {
					all = append(all, netip.AddrPortFrom(f.Address, port))
				}
			}
		}
	}
	for _, t := range n.RouteTables {
		for _, r := range t.Routes {
			if r.Prefix.Bits() == 0 {
				continue // other destinations meet it
			}
			all = append(all, netip.AddrPortFrom(r.Prefix.Addr().Next(), 80))
		}
	}
	return all
}

// compare walks by both, and returns the flows that it compared. What the resources cannot tell, and the lab knows, is unknown by the
// resources, and nothing else is. Where Azure's choice is not documented, the lab's is one of those that the resources allow.
func compare(t *testing.T, own, sdk snapshot.Source, n vnet.Network, from vnet.NIC, to netip.AddrPort) []flow {
	t.Helper()
	var all []flow
	for _, protocol := range []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP} {
		p := packet.Packet{Tuple: packet.Tuple{Protocol: protocol, Destination: to.Addr()}, TTL: 64}
		f := flow{from: machineOf(from), to: to, protocol: strings.ToLower(protocol.String())}
		switch protocol {
		case packet.TCP:
			p.TCPFlags = packet.SYN
			fallthrough
		case packet.UDP:
			p.SourcePort, p.DestinationPort = packet.Exactly(40000), packet.Exactly(to.Port())
		default:
			p.Type, f.from = 8, ""
		}
		p.Source = from.Primary().Address
		req := walk.Request{Host: machineOf(from), Packet: p}
		want, got := seen(t, own, req), seen(t, sdk, req)
		if f.seen = want; to.Port() != 80 || !isHost(n, to.Addr()) {
			f.from = ""
		}
		all = append(all, f)
		azure, lab := sources(n, from, protocol)
		switch {
		case slices.Equal(got, []string{byDefaultOutbound}) && slices.Equal(want, []string{"at " + n.DefaultOutbound.String()}):
		case isHost(n, to.Addr()) && slices.Equal(want, leaving(lab)) && slices.Equal(got, leaving(azure)):
		case !slices.Equal(want, got) || isHost(n, to.Addr()) && len(n.RouteTables) == 0 && len(n.SecurityGroups) < 2:
			t.Errorf("%s > %s %s: by the lab %q, by Azure's interface %q, by the rules %q of %q", from.Machine, to, protocol, want, got, lab, azure)
		}
	}
	return all
}

func isHost(n vnet.Network, a netip.Addr) bool {
	return slices.ContainsFunc(n.Hosts, func(h vnet.Host) bool { return h.Address == a })
}

// leaving returns what is seen of flows with these sources.
func leaving(sources []string) []string {
	if len(sources) == 0 {
		return []string{"dropped"}
	}
	var all []string
	for _, s := range sources {
		all = append(all, "at "+s)
	}
	return unique(all)
}

// inbound walks from a host of the internet to all public addresses; for the resources' walk the packet comes in from the internet.
func inbound(t *testing.T, own, sdk snapshot.Source, n vnet.Network) []flow {
	t.Helper()
	var all []netip.Addr
	for _, p := range n.PublicIPs {
		all = append(all, p.Address)
	}
	for _, lb := range n.LoadBalancers {
		for _, f := range lb.Frontends {
			if !f.Internal() {
				all = append(all, f.Address)
			}
		}
	}
	from := n.Hosts[len(n.Hosts)-1]
	var flows []flow
	for _, a := range all {
		for _, protocol := range []packet.Protocol{packet.TCP, packet.UDP} {
			for _, port := range []uint16{80, 81, 82} {
				req := walk.Request{Host: "internet/" + from.Name, Packet: packet.Packet{Tuple: packet.Tuple{Protocol: protocol, Source: from.Address,
					SourcePort: packet.Exactly(40000), Destination: a, DestinationPort: packet.Exactly(port)}, TTL: 64}}
				if protocol == packet.TCP {
					req.Packet.TCPFlags = packet.SYN
				}
				beyond := req
				beyond.Host, beyond.Forwarded, beyond.Arrives = "fabric", true, "internet"
				got := seen(t, sdk, beyond)
				var want []string // of so many flows that each back end gets some
				for source := uint16(0); source < 64 && !slices.Equal(want, got); source++ {
					req.Packet.SourcePort = packet.Exactly(40000 + source)
					want = unique(append(want, seen(t, own, req)...))
				}
				isEqual := slices.Equal(want, got)
				if isBySource(n, a, protocol, port) {
					isEqual = len(want) == 1 && slices.Contains(got, want[0])
				}
				if !isEqual {
					t.Errorf("%s > %s:%d %s: by the lab %q, by Azure's interface %q", from.Name, a, port, protocol, want, got)
				}
				f := flow{from: "internet/" + from.Name, protocol: strings.ToLower(protocol.String()), to: netip.AddrPortFrom(a, port), seen: want}
				flows = append(flows, f)
			}
		}
	}
	return flows
}

// isBySource reports whether a rule sends all flows of a source to the same back end.
func isBySource(n vnet.Network, a netip.Addr, protocol packet.Protocol, port uint16) bool {
	for _, lb := range n.LoadBalancers {
		for _, r := range lb.Rules {
			if slices.Contains(addressesOf(lb, []string{r.Frontend}), a.String()) && strings.EqualFold(r.Protocol, protocol.String()) &&
				r.FrontendPort == port {
				return r.LoadDistribution != vnet.DistributionDefault
			}
		}
	}
	return false
}

const byDefaultOutbound = "unknown: default outbound access"

// seen returns the sources that a packet has at its destination, or that it does not arrive. A host on the internet is beyond what Azure's
// interface knows: there the source matters that leaves.
func seen(t *testing.T, src snapshot.Source, req walk.Request) []string {
	t.Helper()
	r, err := walk.Walk(src, req)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range r.Outcomes {
		switch {
		case o.End.Kind == walk.Undecided && strings.Contains(o.End.Why, "default outbound access"):
			all = append(all, byDefaultOutbound)
		case o.End.Kind == walk.Undecided:
			all = append(all, "unknown: "+o.End.Why)
		case o.End.Kind == walk.Dropped && (o.End.Host == "fabric"):
			all = append(all, "dropped")
		case strings.HasPrefix(o.End.Host, "node/") || strings.HasPrefix(o.End.Host, "vm/"):
			all = append(all, fmt.Sprintf("%s at %s: %s > %s", o.End.Kind, o.End.Host, o.End.Packet.Source, o.End.Packet.DestinationEnd()))
		case o.End.Kind == walk.Delivered || o.End.Kind == walk.Left:
			all = append(all, "at "+o.End.Packet.Source.String())
		default:
			all = append(all, fmt.Sprintf("%s at %s: %s", o.End.Kind, o.End.Host, o.End.Why))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
