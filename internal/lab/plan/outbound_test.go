package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// egressSpecs are what differs between clusters of each outbound type.
var egressSpecs = map[string]struct{ spec, subnet string }{
	"load balancer":  {spec: "outboundType: loadBalancer, loadBalancer: {sku: standard, outbound: {managedIPs: 2}}"},
	"managed":        {spec: "outboundType: managedNATGateway, natGateway: {managedIPs: 2, idleTimeoutMinutes: 10}"},
	"user assigned":  {spec: "outboundType: userAssignedNATGateway, loadBalancer: {sku: standard}", subnet: ", natGateway: gw"},
	"none":           {spec: "outboundType: none, loadBalancer: {sku: standard}"},
	"block":          {spec: "outboundType: block, loadBalancer: {sku: standard}"},
	"default access": {spec: "outboundType: none, loadBalancer: {sku: standard}", subnet: ", defaultOutboundAccess: true"},
}

func egressCluster(t *testing.T, name string, publicIPs bool) *cluster.Cluster {
	t.Helper()
	s := egressSpecs[name]
	return parsed(t, fmt.Sprintf(`spec: {%s, nodePools: [{name: one, count: 2, enableNodePublicIP: %t, vnetSubnet: v/aks}],
  azure: {natGateways: [{name: gw, publicIPs: 2}], vnets: [{name: v, addressPrefixes: [10.14.0.0/16], subnets: [{name: aks, prefix: 10.14.0.0/24%s}]}]}}`,
		s.spec, publicIPs, s.subnet))
}

// TestReviseOutbound: a network that changes to an outbound type is the one that would have been made so, except for which public address
// has which place.
func TestReviseOutbound(t *testing.T) {
	for from := range egressSpecs {
		for to := range egressSpecs {
			t.Run(from+" to "+to, func(t *testing.T) {
				before, after := egressCluster(t, from, from != "none"), egressCluster(t, to, to == "none")
				n, err := Network(before)
				if err != nil {
					t.Fatal(err)
				}
				want, err := Network(after)
				if err != nil {
					t.Fatal(err)
				}
				if err := Revise(&n, before, after); err != nil {
					t.Fatal(err)
				}
				if err := n.Validate(); err != nil {
					t.Fatal(err)
				}
				for _, n := range []*vnet.Network{&n, &want} {
					sortNetwork(n)
					for i := range n.PublicIPs {
						n.PublicIPs[i].Address = netip.Addr{}
					}
					for i := range n.LoadBalancers {
						for j := range n.LoadBalancers[i].Frontends {
							n.LoadBalancers[i].Frontends[j].Address = netip.Addr{}
						}
					}
				}
				if d := cmp.Diff(want, n, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); d != "" {
					t.Errorf("(-want +got)\n%s", d)
				}
			})
		}
	}
}

// TestOutboundOfTypes: what each type makes.
func TestOutboundOfTypes(t *testing.T) {
	for name, c := range map[string]struct {
		balancers, gateways, publicIPs int
		gateway                        string
		private, blocked               bool
	}{
		"load balancer":  {1, 1, 6, "", false, false},
		"managed":        {0, 2, 6, "aks-natgateway-", true, false},
		"user assigned":  {0, 1, 4, "gw", true, false},
		"none":           {0, 1, 4, "", true, false},
		"block":          {0, 1, 4, "", true, true},
		"default access": {0, 1, 4, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			cl := egressCluster(t, name, true)
			n, err := Network(cl)
			if err != nil {
				t.Fatal(err)
			}
			s, _ := n.Subnet("v", "aks")
			if c.gateway == "aks-natgateway-" {
				c.gateway += cl.ID()
			}
			if len(n.LoadBalancers) != c.balancers || len(n.NATGateways) != c.gateways || len(n.PublicIPs) != c.publicIPs ||
				s.NATGateway != c.gateway || s.Private != c.private {
				t.Errorf("%d load balancers, %d gateways, %d addresses, subnet %+v", len(n.LoadBalancers), len(n.NATGateways), len(n.PublicIPs), s)
			}
			for _, nic := range n.NICs {
				if nic.Primary().PublicIP != nic.Machine+"-pip" {
					t.Errorf("%s has public address %q", nic.Name, nic.Primary().PublicIP)
				}
			}
			g, _ := n.SecurityGroup(cl.NodeSecurityGroup())
			if (len(g.Rules) > 0) != c.blocked {
				t.Errorf("security rules %+v", g.Rules)
			}
		})
	}
}
