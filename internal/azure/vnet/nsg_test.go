package vnet_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
)

// nsgWorld returns a network with a VM behind two groups, a node behind one and a VM behind none, in two peered networks.
func nsgWorld(t *testing.T) vnet.Network {
	t.Helper()
	n := worldA(t)
	n.VNets[0].Peerings = []vnet.Peering{{Name: "to-b", RemoteVNet: "b"}}
	n.VNets[0].Subnets[1].SecurityGroup = "subnet"
	n.VNets = append(n.VNets, vnet.VNet{
		Name: "b", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")},
		Peerings: []vnet.Peering{{Name: "to-a", RemoteVNet: "aksVnet"}},
		Subnets:  []vnet.Subnet{{Name: "servers", Prefix: netip.MustParsePrefix("172.17.0.0/24")}},
	})
	n.SecurityGroups = []vnet.SecurityGroup{
		{Name: "subnet", Rules: []vnet.SecurityRule{
			{Name: "web", Priority: 300, Direction: vnet.DirectionInbound, Access: vnet.AccessAllow, Protocol: vnet.ProtocolTCP,
				Sources:          []string{vnet.TagInternet},
				DestinationPorts: []vnet.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8010}}},
			{Name: "no-peer", Priority: 310, Direction: vnet.DirectionInbound, Access: vnet.AccessDeny, Protocol: vnet.Any,
				Sources: []string{"172.17.0.0/16"}},
		}},
		{Name: "nic", Rules: []vnet.SecurityRule{
			{Name: "not-8001", Priority: 100, Direction: vnet.DirectionInbound, Access: vnet.AccessDeny, Protocol: vnet.ProtocolTCP,
				DestinationPorts: []vnet.PortRange{{First: 8001, Last: 8001}}},
			{Name: "web", Priority: 200, Direction: vnet.DirectionInbound, Access: vnet.AccessAllow, Protocol: vnet.ProtocolTCP,
				DestinationPorts: []vnet.PortRange{{First: 0, Last: 65535}}},
			{Name: "no-ping", Priority: 100, Direction: vnet.DirectionOutbound, Access: vnet.AccessDeny, Protocol: vnet.ProtocolICMP},
		}},
		{Name: "nodes"},
	}
	for _, m := range []struct{ name, vnet, subnet, group string }{
		{"vm", "aksVnet", "vmsubnet", "nic"}, {"node", "aksVnet", "aks", "nodes"}, {"other", "b", "servers", ""},
	} {
		if _, err := n.AllocateNIC(m.name, m.vnet, m.subnet, 1); err != nil {
			t.Fatal(err)
		}
		n.NICs[len(n.NICs)-1].SecurityGroup = m.group
	}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDecide: each case's groups and rules in the order in which they are asked.
func TestDecide(t *testing.T) {
	n := nsgWorld(t)
	const in, out = vnet.DirectionInbound, vnet.DirectionOutbound
	const icmp, tcp, udp = 1, 6, 17
	for _, c := range []struct {
		nic, direction string
		protocol       uint8
		from, to       string
		want           string
	}{
		{"vm-nic", in, tcp, "198.51.100.10:4000", "10.13.1.4:80", "subnet web 300, nic web 200"},
		{"vm-nic", in, tcp, "198.51.100.10:4000", "10.13.1.4:8001", "subnet web 300, nic not-8001 100 Deny"},
		{"vm-nic", in, tcp, "198.51.100.10:4000", "10.13.1.4:22", "subnet DenyAllInBound 65500 Deny"},
		{"vm-nic", in, udp, "198.51.100.10:4000", "10.13.1.4:80", "subnet DenyAllInBound 65500 Deny"},
		{"vm-nic", in, tcp, "10.13.76.4:4000", "10.13.1.4:22", "subnet AllowVnetInBound 65000, nic web 200"},
		{"vm-nic", in, icmp, "10.13.76.4:0", "10.13.1.4:0", "subnet AllowVnetInBound 65000, nic AllowVnetInBound 65000"},
		{"vm-nic", in, icmp, "172.17.0.4:0", "10.13.1.4:0", "subnet no-peer 310 Deny"},
		{"vm-nic", in, tcp, "10.99.0.1:4000", "10.13.1.4:80", "subnet DenyAllInBound 65500 Deny"}, // private, and in no network that is known
		{"vm-nic", out, icmp, "10.13.1.4:0", "10.13.76.4:0", "nic no-ping 100 Deny"},
		{"vm-nic", out, tcp, "10.13.1.4:4000", "198.51.100.80:80", "nic AllowInternetOutBound 65001, subnet AllowInternetOutBound 65001"},
		{"vm-nic", out, tcp, "10.13.1.4:4000", "172.17.0.4:80", "nic AllowVnetOutBound 65000, subnet AllowVnetOutBound 65000"},
		{"vm-nic", out, tcp, "10.13.1.4:4000", "10.99.0.1:80", "nic DenyAllOutBound 65500 Deny"},
		{"vm-nic", out, udp, "10.13.1.4:4000", "168.63.129.16:53", ""},
		{"node-nic", in, tcp, "168.63.129.16:4000", "10.13.76.4:30080", "nodes AllowVnetInBound 65000"},
		{"node-nic", in, tcp, "168.63.129.16:4000", "203.0.113.10:80", "nodes AllowAzureLoadBalancerInBound 65001"},
		{"node-nic", in, tcp, "198.51.100.10:4000", "203.0.113.10:80", "nodes DenyAllInBound 65500 Deny"},
		{"node-nic", in, tcp, "172.17.0.4:4000", "10.13.76.4:30080", "nodes AllowVnetInBound 65000"},
		{"other-nic", in, tcp, "198.51.100.10:4000", "172.17.0.4:22", ""},
	} {
		nic, ok := n.NIC(c.nic)
		if !ok {
			t.Fatal(c.nic)
		}
		flow := vnet.SecurityFlow{Protocol: c.protocol, Source: netip.MustParseAddrPort(c.from), Destination: netip.MustParseAddrPort(c.to)}
		if got := decisions(n.Decide(nic, c.direction, flow)); got != c.want {
			t.Errorf("%s %s %d %s → %s: %q, want %q", c.nic, c.direction, c.protocol, c.from, c.to, got, c.want)
		}
	}
}

func decisions(all []vnet.SecurityDecision) string {
	var words []string
	for _, d := range all {
		s := strings.Fields(strings.NewReplacer("NSG ", "", "rule ", "", "(", "", ")", "").Replace(d.String()))
		s = s[:3]
		if !d.Allowed() {
			s = append(s, d.Rule.Access)
		}
		words = append(words, strings.Join(s, " "))
	}
	return strings.Join(words, ", ")
}

// TestUserRoutesInTag: the prefixes of routes to appliances are in VirtualNetwork, for the subnets that have the table.
func TestUserRoutesInTag(t *testing.T) {
	n := nsgWorld(t)
	n.RouteTables = []vnet.RouteTable{{Name: "t", Routes: []vnet.UserRoute{
		{Name: "pods", Prefix: netip.MustParsePrefix("192.168.0.0/24"), NextHopType: vnet.NextHopAppliance,
			NextHop: netip.MustParseAddr("10.13.76.4")},
		{Name: "out", Prefix: netip.MustParsePrefix("198.51.100.0/24"), NextHopType: vnet.NextHopInternet},
	}}}
	decide := func(from string) bool {
		nic, _ := n.NIC("node-nic")
		all := n.Decide(nic, vnet.DirectionInbound, vnet.SecurityFlow{
			Protocol: 6, Source: netip.AddrPortFrom(netip.MustParseAddr(from), 1), Destination: netip.MustParseAddrPort("10.13.76.4:80"),
		})
		return all[len(all)-1].Allowed()
	}
	if decide("192.168.0.5") {
		t.Error("a pod's address is let in without the route")
	}
	n.VNets[0].Subnets[0].RouteTable = "t"
	if !decide("192.168.0.5") {
		t.Error("a pod's address is not let in with the route")
	}
	if decide("198.51.100.10") {
		t.Error("a route to the internet lets the internet in")
	}
}

// TestInternetDoubt shows that the readings of the tag Internet decide a flow only where a user-defined route leads its public address to
// an appliance, and where no other rule decides the same.
func TestInternetDoubt(t *testing.T) {
	const in, out = vnet.DirectionInbound, vnet.DirectionOutbound
	rule := func(direction, access string, from, to []string) []vnet.SecurityRule {
		return []vnet.SecurityRule{{Name: "r", Priority: 200, Direction: direction, Access: access, Protocol: vnet.ProtocolTCP, Sources: from,
			Destinations: to, DestinationPorts: []vnet.PortRange{{First: 80, Last: 80}}}}
	}
	internet := []string{vnet.TagInternet}
	for name, c := range map[string]struct {
		route, from, to string
		rules           []vnet.SecurityRule
		want            string
		unknown         bool
	}{
		"denied outbound, everything to the appliance": {"0.0.0.0/0", "10.13.76.4:4000", "198.51.100.80:80", rule(out, vnet.AccessDeny, nil, internet),
			"NSG nodes rule r (200), if Internet holds routed prefixes denies", true},
		"denied outbound, another prefix to the appliance": {"203.0.113.0/24", "10.13.76.4:4000", "198.51.100.80:80",
			rule(out, vnet.AccessDeny, nil, internet), "NSG nodes rule r (200) denies", false},
		"denied outbound, the appliance's network": {"0.0.0.0/0", "10.13.76.4:4000", "172.17.0.4:80", rule(out, vnet.AccessDeny, nil, internet),
			"NSG nodes rule AllowVnetOutBound (65000) allows", false},
		"another rule denies": {"0.0.0.0/0", "10.13.76.4:4000", "198.51.100.80:80", append(rule(out, vnet.AccessDeny, nil, internet),
			vnet.SecurityRule{Name: "all", Priority: 300, Direction: out, Access: vnet.AccessDeny, Protocol: vnet.Any}),
			"NSG nodes rule r (200), or a later rule that does the same denies", false},
		"let in to a front end, which the tag VirtualNetwork holds": {"0.0.0.0/0", "198.51.100.10:4000", "203.0.113.10:80",
			rule(in, vnet.AccessAllow, internet, []string{"203.0.113.10"}), "NSG nodes rule r (200), or a later rule that does the same allows", false},
		"let in to a front end, which it does not": {"198.51.100.0/24", "198.51.100.10:4000", "203.0.113.10:80",
			rule(in, vnet.AccessAllow, internet, []string{"203.0.113.10"}), "NSG nodes rule r (200), if Internet holds routed prefixes allows", true},
		"let in with a deny of others": {"0.0.0.0/0", "198.51.100.10:4000", "203.0.113.10:80",
			append(rule(in, vnet.AccessAllow, internet, []string{"203.0.113.10"}),
				vnet.SecurityRule{Name: "others", Priority: 4000, Direction: in, Access: vnet.AccessDeny, Protocol: vnet.Any}),
			"NSG nodes rule r (200), if Internet holds routed prefixes allows", true},
		"denied on another port": {"0.0.0.0/0", "10.13.76.4:4000", "198.51.100.80:443", rule(out, vnet.AccessDeny, nil, internet),
			"NSG nodes rule AllowVnetOutBound (65000) allows", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := nsgWorld(t)
			n.RouteTables = []vnet.RouteTable{{Name: "t", Routes: []vnet.UserRoute{{Name: "r", Prefix: netip.MustParsePrefix(c.route),
				NextHopType: vnet.NextHopAppliance, NextHop: netip.MustParseAddr("10.13.1.4")}}}}
			n.VNets[0].Subnets[0].RouteTable = "t"
			n.SecurityGroups[2].Rules = c.rules
			nic, _ := n.NIC("node-nic")
			f := vnet.SecurityFlow{Protocol: 6, Source: netip.MustParseAddrPort(c.from), Destination: netip.MustParseAddrPort(c.to)}
			got := n.Decide(nic, c.rules[0].Direction, f)
			if len(got) != 1 || got[0].String() != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if got := n.IsUnknown(nic, c.rules[0].Direction, f); got != c.unknown {
				t.Errorf("unknown: %t", got)
			}
		})
	}
}

// TestInternetDoubtOfRandomRules shows that a rule's access is doubted wherever the readings of the tag Internet decide a flow differently.
func TestInternetDoubtOfRandomRules(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	one := func(list ...string) string { return list[random.IntN(len(list))] }
	addresses := func() []string {
		switch random.IntN(4) {
		case 0:
			return []string{vnet.TagInternet}
		case 1:
			return []string{vnet.TagVirtualNetwork}
		case 2:
			return []string{one("198.51.100.0/25", "198.51.100.0/24", "203.0.113.0/24", "10.13.76.0/24")}
		}
		return nil
	}
	end := func() netip.AddrPort {
		a := netip.MustParseAddr(one("198.51.100.10", "198.51.100.200", "203.0.113.10", "10.13.76.4", "10.13.76.5"))
		return netip.AddrPortFrom(a, uint16(80+random.IntN(4)))
	}
	unknown, settled := 0, 0
	for range 300 {
		n := nsgWorld(t)
		n.RouteTables = []vnet.RouteTable{{Name: "t", Routes: []vnet.UserRoute{{Name: "r", Prefix: netip.MustParsePrefix(
			one("0.0.0.0/0", "198.51.100.0/25", "203.0.113.0/24")), NextHopType: vnet.NextHopAppliance, NextHop: netip.MustParseAddr("10.13.1.4")}}}}
		n.VNets[0].Subnets[0].RouteTable = "t"
		for i := range random.IntN(6) {
			r := vnet.SecurityRule{Name: "r" + strconv.Itoa(i), Priority: 100 + i, Direction: vnet.DirectionInbound, Sources: addresses(),
				Destinations: addresses(), Access: one(vnet.AccessAllow, vnet.AccessDeny), Protocol: one(vnet.Any, vnet.ProtocolTCP, vnet.ProtocolUDP)}
			for range random.IntN(3) {
				first := uint16(80 + random.IntN(4))
				r.DestinationPorts = append(r.DestinationPorts, vnet.PortRange{First: first, Last: first + uint16(random.IntN(3))})
			}
			n.SecurityGroups[2].Rules = append(n.SecurityGroups[2].Rules, r)
		}
		nic, _ := n.NIC("node-nic")
		for range 50 {
			f := vnet.SecurityFlow{Protocol: []uint8{1, 6, 17}[random.IntN(3)], Source: end(), Destination: end()}
			d := n.Decide(nic, vnet.DirectionInbound, f)[0]
			is := n.IsUnknown(nic, vnet.DirectionInbound, f)
			if is && d.Doubt != vnet.DoubtAccess {
				t.Fatalf("%+v: %s, doubt %d\n%+v", f, d, d.Doubt, n.SecurityGroups[2].Rules)
			}
			if is {
				unknown++
			}
			if d.Doubt == vnet.DoubtRule {
				settled++
			}
		}
	}
	if unknown < 200 || settled < 200 {
		t.Errorf("only %d flows are unknown, and %d are not in spite of the doubt", unknown, settled)
	}
}

// TestSecurityValidate: what is wrong with groups is said.
func TestSecurityValidate(t *testing.T) {
	n := nsgWorld(t)
	n.SecurityGroups = append(n.SecurityGroups, vnet.SecurityGroup{Name: "bad", Rules: []vnet.SecurityRule{
		{Name: "a", Priority: 99, Direction: "in", Access: "no", Protocol: "TCP", Sources: []string{"Storage"},
			DestinationPorts: []vnet.PortRange{{First: 2, Last: 1}}},
		{Name: "a", Priority: 99, Direction: "in"},
	}})
	n.VNets[0].Subnets[0].SecurityGroup, n.NICs[0].SecurityGroup = "none", "none"
	err := n.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`priority 99 is not from 100 to 4096`, `unknown direction "in"`, `unknown access "no"`, `unknown protocol "TCP"`,
		`"Storage" is no IPv4 prefix`,
		`the last is less than the first`, `priority 99 is a's`, `the name is taken`, `subnet aksVnet/aks: no security group none`,
		`NIC vm-nic: no security group none`,
	} {
		if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(l string) bool { return strings.Contains(l, want) }) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}
