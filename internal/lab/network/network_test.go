package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/status"
)

// TestDeniedProbe: a front end without a healthy back end says which security rule denies the probes.
func TestDeniedProbe(t *testing.T) {
	n := vnet.Network{
		VNets: []vnet.VNet{{Name: "v", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
			Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("10.13.76.0/24"), SecurityGroup: "web"}}}},
		NICs: []vnet.NIC{{Name: "nic", Machine: "node", VNet: "v", Subnet: "s", ID: 1,
			IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.4"), Primary: true}}}},
		SecurityGroups: []vnet.SecurityGroup{{Name: "web", Rules: []vnet.SecurityRule{{Name: "closed", Priority: 100, Access: vnet.AccessDeny,
			Direction: vnet.DirectionInbound, Protocol: vnet.ProtocolTCP, DestinationPorts: []vnet.PortRange{{First: 30064, Last: 30064}}}}}},
		LoadBalancers: []vnet.LoadBalancer{{
			Name: "lb", Frontends: []vnet.Frontend{{Name: "f", Address: netip.MustParseAddr("203.0.113.10")}},
			BackendPools: []vnet.BackendPool{{Name: "p", Members: []vnet.IPConfigRef{{NIC: "nic", IPConfig: "ipconfig1"}}}},
			Probes:       []vnet.Probe{{Name: "r", Protocol: vnet.ProtocolTCP, Port: 30064}},
			Rules: []vnet.Rule{{Name: "r", Frontend: "f", BackendPool: "p", Probe: "r", Protocol: vnet.ProtocolTCP, FrontendPort: 80,
				BackendPort: 80}},
		}},
	}
	s := status.Status{Ready: true, Frontends: Frontends(n, vnet.Health{})}
	const want = "203.0.113.10:80 has no healthy back end: the load balancer drops new connections; NSG web rule closed (100) denies the probe of node"
	if got := s.DerivedProblems(); !slices.Equal(got, []string{want}) {
		t.Errorf("got %q", got)
	}
	if text := vnet.NewPlan(n, vnet.Health{}).NFT; !strings.Contains(text, `drop comment "no back end is up: NSG web rule closed (100) denies the probe of node"`) {
		t.Errorf("the fabric's rule does not say it:\n%s", text)
	}
	n.LoadBalancers[0].Probes[0].Port++
	s.Frontends = Frontends(n, vnet.Health{})
	if got := s.DerivedProblems(); len(got) != 1 || strings.Contains(got[0], "denies") {
		t.Errorf("with another port: %q", got)
	}
}

// TestAPIObstacles: what keeps a node's packets from the API server is the user-defined route of the longest prefix that holds its address,
// or a security rule.
func TestAPIObstacles(t *testing.T) {
	everything, api := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("203.0.113.0/24")
	other := netip.MustParsePrefix("192.0.2.0/24")
	appliance := netip.MustParseAddr("10.13.1.4")
	deny := []vnet.SecurityRule{{Name: "shut", Priority: 100, Access: vnet.AccessDeny, Direction: vnet.DirectionOutbound, Protocol: vnet.Any,
		Destinations: []string{vnet.TagInternet}}}
	for name, test := range map[string]struct {
		routes []vnet.UserRoute
		rules  []vnet.SecurityRule
		want   []string
		isCut  bool // while the node is still Ready
	}{
		"none":            {nil, nil, nil, false},
		"elsewhere":       {[]vnet.UserRoute{{Name: "o", Prefix: other, NextHopType: vnet.NextHopNone}}, nil, nil, false},
		"to the internet": {[]vnet.UserRoute{{Name: "i", Prefix: everything, NextHopType: vnet.NextHopInternet}}, nil, nil, false},
		"of everything, to nowhere": {[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopNone}}, nil,
			[]string{"route all (0.0.0.0/0) of route table fw leads its packets for the API server 203.0.113.1:443 to next hop None"}, true},
		"of everything, to an appliance": {
			[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopAppliance, NextHop: appliance}}, nil,
			[]string{"route all (0.0.0.0/0) of route table fw leads its packets for the API server 203.0.113.1:443 " +
				"to next hop VirtualAppliance 10.13.1.4"}, false},
		"to an address without an appliance": {
			[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopAppliance, NextHop: appliance.Next()}}, nil,
			[]string{"route all (0.0.0.0/0) of route table fw leads its packets for the API server 203.0.113.1:443 " +
				"to next hop VirtualAppliance 10.13.1.5"}, true},
		"a longer prefix to the internet": {[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopNone},
			{Name: "api", Prefix: api, NextHopType: vnet.NextHopInternet}}, nil, nil, false},
		"a longer prefix to nowhere": {[]vnet.UserRoute{{Name: "api", Prefix: api, NextHopType: vnet.NextHopNone},
			{Name: "all", Prefix: everything, NextHopType: vnet.NextHopInternet}}, nil,
			[]string{"route api (203.0.113.0/24) of route table fw leads its packets for the API server 203.0.113.1:443 to next hop None"}, true},
		"a security rule": {nil, deny, []string{"NSG web rule shut (100) denies its packets for the API server 203.0.113.1:443"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := vnet.Network{
				VNets: []vnet.VNet{{Name: "v", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
					Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("10.13.76.0/24"), RouteTable: "fw", SecurityGroup: "web"}}}},
				NICs: []vnet.NIC{{Name: "nic", Machine: "node", VNet: "v", Subnet: "s", ID: 1,
					IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.4"), Primary: true}}},
					{Name: "firewall", Machine: "firewall", VNet: "v", IPForwarding: true, ID: 2,
						IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: appliance, Primary: true}}}},
				RouteTables:    []vnet.RouteTable{{Name: "fw", Routes: test.routes}},
				SecurityGroups: []vnet.SecurityGroup{{Name: "web", Rules: test.rules}},
			}
			if got := APIObstacles(n, "nic"); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			want := ""
			if test.isCut {
				want = "cut off from the API server: " + test.want[0]
			}
			if got := APICut(n, "nic"); got != want {
				t.Errorf("of a Ready node %q, want %q", got, want)
			}
		})
	}
}
