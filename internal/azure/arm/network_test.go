package arm_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
)

// TestRoundTrip: the resources of a random network describe the network. What no resource says comes from another network, which has nothing
// else of it.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		n := randomNetwork(rand.New(rand.NewPCG(seed, 1)))
		if err := n.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		base := n.Clone()
		base.LoadBalancers, base.RouteTables, base.SecurityGroups, base.NATGateways = nil, nil, nil, nil
		for i := range base.VNets {
			if v := &base.VNets[i]; !v.Platform {
				v.AddressPrefixes, v.Subnets = nil, nil
			}
		}
		for i := range base.NICs {
			nic := &base.NICs[i]
			if !nic.ContainerGroup && nic.VNet != "container-hosts" {
				nic.VNet, nic.Subnet, nic.IPForwarding, nic.SecurityGroup, nic.IPConfigs = "", "", !nic.IPForwarding, "", nil
			}
		}
		got, err := arm.NewResources(arm.Visible(n)).Network(base)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if d := cmp.Diff(n, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, d)
		}
	}
}

// randomNetwork returns a valid network.
func randomNetwork(r *rand.Rand) vnet.Network {
	n := vnet.Network{Subscription: "e7da9914-9b05-4891-893c-546cb7b0422e", ResourceGroup: "akstest", NodeResourceGroup: "MC_akstest",
		Location: "westeurope", DefaultOutbound: vnet.DefaultOutboundAddress,
		Hosts: []vnet.Host{{Name: "client", Address: netip.MustParseAddr("198.51.100.10")}}}
	coin := func() bool { return r.IntN(2) == 0 }
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	for _, name := range []string{"aks-agentpool-nsg", "web"}[:r.IntN(3)] {
		n.SecurityGroups = append(n.SecurityGroups, randomGroup(r, name))
	}
	group := func() string {
		if len(n.SecurityGroups) == 0 || coin() {
			return ""
		}
		return n.SecurityGroups[r.IntN(len(n.SecurityGroups))].Name
	}
	for _, name := range []string{"aks-agentpool-routetable", "udr"}[:r.IntN(3)] {
		table := vnet.RouteTable{Name: name}
		for i := range r.IntN(4) {
			route := vnet.UserRoute{Name: fmt.Sprintf("r%d", i), Prefix: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
				NextHopType: pick(vnet.NextHopAppliance, vnet.NextHopNone, vnet.NextHopInternet, vnet.NextHopVNetLocal)}
			if route.NextHopType == vnet.NextHopAppliance {
				route.NextHop = netip.MustParseAddr("10.13.76.4")
			}
			table.Routes = append(table.Routes, route)
		}
		n.RouteTables = append(n.RouteTables, table)
	}
	for i := range 1 + r.IntN(3) {
		v := vnet.VNet{Name: fmt.Sprintf("vnet%d", i), AddressPrefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 13+i))}}
		if coin() {
			v.ResourceGroup = pick("akstest", "other")
		}
		for j := range 1 + r.IntN(3) {
			s := vnet.Subnet{Name: fmt.Sprintf("s%d", j), Prefix: netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 13+i, j)), SecurityGroup: group(),
				Private: coin()}
			if len(n.RouteTables) > 0 && coin() {
				s.RouteTable = n.RouteTables[r.IntN(len(n.RouteTables))].Name
			}
			v.Subnets = append(v.Subnets, s)
		}
		n.VNets = append(n.VNets, v)
	}
	for i := range n.VNets {
		for j := range n.VNets {
			if i != j && coin() {
				n.VNets[i].Peerings = append(n.VNets[i].Peerings,
					vnet.Peering{Name: n.VNets[i].Name + "-to-" + n.VNets[j].Name, RemoteVNet: n.VNets[j].Name, Parted: coin()})
			}
		}
	}
	if coin() {
		n.VNets = append(n.VNets, vnet.ContainerHosts(netip.MustParsePrefix("100.64.0.0/16")))
	}
	addNICs(r, &n, group)
	if coin() {
		p, err := n.AllocatePublicIP("nat-pip", netip.Addr{})
		if err != nil {
			panic(err)
		}
		n.NATGateways = []vnet.NATGateway{{Name: pick("aks-nat", "nat"), PublicIPs: []string{p.Name}, IdleTimeoutMinutes: 4 + r.IntN(10)}}
		n.VNets[len(n.VNets)-1].Subnets[0].NATGateway = n.NATGateways[0].Name
	}
	if coin() {
		n.LoadBalancers = append(n.LoadBalancers, randomBalancer(r, &n))
	}
	return n
}

func addNICs(r *rand.Rand, n *vnet.Network, group func() string) {
	coin := func() bool { return r.IntN(2) == 0 }
	for i := range 1 + r.IntN(4) {
		v := n.VNets[r.IntN(len(n.VNets))]
		machine := fmt.Sprintf("aks-nodepool1-%d", i)
		if coin() {
			machine = fmt.Sprintf("vm%d", i)
		}
		if _, err := n.AllocateNIC(machine, v.Name, v.Subnets[r.IntN(len(v.Subnets))].Name, 1+r.IntN(4)); err != nil {
			panic(err)
		}
		nic := &n.NICs[len(n.NICs)-1]
		if v.Platform {
			continue
		}
		nic.IPForwarding, nic.SecurityGroup, nic.ContainerGroup = coin(), group(), r.IntN(5) == 0
		if !nic.ContainerGroup && coin() {
			p, err := n.AllocatePublicIP(machine+"-pip", netip.Addr{})
			if err != nil {
				panic(err)
			}
			nic.IPConfigs[0].PublicIP = p.Name
		}
	}
}

func randomGroup(r *rand.Rand, name string) vnet.SecurityGroup {
	g := vnet.SecurityGroup{Name: name}
	some := func(words ...string) []string { return words[:r.IntN(len(words)+1)] }
	ports := func() []vnet.PortRange {
		return []vnet.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8999}}[:r.IntN(3)]
	}
	for i := range r.IntN(5) {
		rule := vnet.SecurityRule{Name: fmt.Sprintf("rule%d", i), Priority: 100 + i,
			Direction: []string{vnet.DirectionInbound, vnet.DirectionOutbound}[r.IntN(2)], Access: []string{vnet.AccessAllow, vnet.AccessDeny}[r.IntN(2)],
			Protocol: []string{vnet.ProtocolTCP, vnet.ProtocolUDP, vnet.ProtocolICMP, vnet.Any}[r.IntN(4)],
			Sources:  some("10.0.0.0/8", "Internet", "198.51.100.10"), Destinations: some("VirtualNetwork", "203.0.113.10"),
			SourcePorts: ports(), DestinationPorts: ports()}
		if rule.Protocol == vnet.ProtocolICMP {
			rule.SourcePorts, rule.DestinationPorts = nil, nil
		}
		g.Rules = append(g.Rules, rule)
	}
	return g
}

func randomBalancer(r *rand.Rand, n *vnet.Network) vnet.LoadBalancer {
	coin := func() bool { return r.IntN(2) == 0 }
	lb := vnet.LoadBalancer{Name: "kubernetes", SKU: []string{vnet.SKUBasic, vnet.SKUStandard}[r.IntN(2)],
		BackendPools: []vnet.BackendPool{{Name: "kubernetes"}, {Name: "aksOutboundBackendPool"}}}
	if len(n.NATGateways) > 0 {
		lb.SKU = vnet.SKUStandard
	}
	for _, nic := range n.NICs {
		for i := range lb.BackendPools {
			if pool := &lb.BackendPools[i]; !nic.ContainerGroup && coin() && nic.VNet == n.VNets[0].Name {
				pool.Members = append([]vnet.IPConfigRef{{NIC: nic.Name, IPConfig: nic.Primary().Name}}, pool.Members...)
			}
		}
	}
	if at := n.VNets[0]; coin() {
		address, err := n.AllocateFrontend(at.Name, at.Subnets[0].Name, netip.Addr{})
		if err != nil {
			panic(err)
		}
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: "internal", Address: address, VNet: at.Name, Subnet: at.Subnets[0].Name})
	}
	for i := range 1 + r.IntN(3) {
		name := fmt.Sprintf("a%d", i)
		p, err := n.AllocatePublicIP("kubernetes-"+name, netip.Addr{})
		if err != nil {
			panic(err)
		}
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: name, Address: p.Address})
		rule := vnet.Rule{Name: name + "-TCP-80", Frontend: name, BackendPool: "kubernetes", Protocol: vnet.ProtocolTCP, FrontendPort: 80,
			BackendPort: 80, FloatingIP: coin(), IdleTimeoutMinutes: 4 + r.IntN(10),
			LoadDistribution: []string{vnet.DistributionDefault, vnet.DistributionSourceIP, vnet.DistributionSourceIPProtocol}[r.IntN(3)],
			TCPReset:         coin(), DisableOutboundSNAT: coin()}
		if coin() {
			rule.Probe = rule.Name
			probe := vnet.Probe{Name: rule.Name, Protocol: vnet.ProtocolTCP, Port: 30000 + uint16(i), IntervalSeconds: 5, Count: 1 + r.IntN(3)}
			if coin() {
				probe.Protocol, probe.RequestPath = vnet.ProtocolHTTP, "/healthz"
			}
			lb.Probes = append(lb.Probes, probe)
		}
		lb.Rules = append(lb.Rules, rule)
	}
	if lb.SKU == vnet.SKUStandard && coin() {
		lb.OutboundRules = append(lb.OutboundRules, vnet.OutboundRule{Name: "aksOutboundRule", Frontends: []string{"a0"},
			BackendPool: "aksOutboundBackendPool", AllocatedOutboundPorts: 8 * r.IntN(10), IdleTimeoutMinutes: 30, TCPReset: coin(),
			Protocol: []string{"", vnet.ProtocolTCP, vnet.ProtocolUDP}[r.IntN(3)]})
	}
	return lb
}
