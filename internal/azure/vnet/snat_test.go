package vnet_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/azure/vnet"
)

// leaving returns a network with one node, whose load balancer has the front ends .10, .11, …
func leaving(t *testing.T, sku string, frontends, ports int) vnet.Network {
	t.Helper()
	n := worldA(t)
	if _, err := n.AllocateNIC("node", "aksVnet", "aks", 1); err != nil {
		t.Fatal(err)
	}
	lb := vnet.LoadBalancer{Name: "kubernetes", SKU: sku,
		BackendPools: []vnet.BackendPool{{Name: "kubernetes", Members: []vnet.IPConfigRef{{NIC: "node-nic", IPConfig: "ipconfig1"}}}}}
	rule := vnet.OutboundRule{Name: "all", BackendPool: "kubernetes", AllocatedOutboundPorts: ports, IdleTimeoutMinutes: 4}
	for i := range frontends {
		f := vnet.Frontend{Name: fmt.Sprint("f", i), Address: netip.MustParseAddr(fmt.Sprint("203.0.113.", 10+i))}
		lb.Frontends, rule.Frontends = append(lb.Frontends, f), append(rule.Frontends, f.Name)
		if sku == vnet.SKUBasic {
			lb.Rules = append(lb.Rules, vnet.Rule{Name: f.Name, Frontend: f.Name, BackendPool: "kubernetes", Protocol: vnet.ProtocolTCP,
				FrontendPort: 80, BackendPort: 80, FloatingIP: true})
		}
	}
	if sku == vnet.SKUStandard {
		lb.OutboundRules = []vnet.OutboundRule{rule}
	}
	n.LoadBalancers = []vnet.LoadBalancer{lb}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	return n
}

// flowsTo returns flows of the node to one destination from each of the front end's ports from first to last.
func flowsTo(destination, frontend string, first, last int) []vnet.TranslatedFlow {
	var all []vnet.TranslatedFlow
	for p := first; p <= last; p++ {
		all = append(all, vnet.TranslatedFlow{
			Protocol: 6, Private: netip.AddrPortFrom(netip.MustParseAddr("10.13.76.4"), uint16(30000+p)),
			Public:      netip.AddrPortFrom(netip.MustParseAddr(frontend), uint16(p)),
			Destination: netip.MustParseAddrPort(destination),
		})
	}
	return all
}

func TestPortUses(t *testing.T) {
	n := leaving(t, vnet.SKUBasic, 2, 0)
	flows := flowsTo("198.51.100.80:80", "203.0.113.10", 1024, 1063)
	flows = append(flows, flowsTo("198.51.100.80:80", "203.0.113.11", 1024, 1033)...)
	flows = append(flows, flowsTo("198.51.100.80:443", "203.0.113.10", 1060, 1069)...)
	flows = append(flows, flowsTo("198.51.100.80:443", "203.0.113.99", 1060, 1999)...) // an unknown front end
	want := []vnet.PortUse{{
		Machine: "node", Private: netip.MustParseAddr("10.13.76.4"), Ports: 2048, InUse: 40 + 10 + 6,
		Frontends: []vnet.FrontendPorts{
			{Address: netip.MustParseAddr("203.0.113.10"), Ports: 1024}, {Address: netip.MustParseAddr("203.0.113.11"), Ports: 1024},
		},
		Fullest: vnet.DestinationUse{Protocol: 6, Destination: netip.MustParseAddrPort("198.51.100.80:80"), InUse: 50},
	}}
	if d := cmp.Diff(want, vnet.PortUses(n, flows), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
		t.Error(d)
	}
}

func TestSpares(t *testing.T) {
	const web = "198.51.100.80:80"
	basic, two, turns := leaving(t, vnet.SKUBasic, 1, 0), leaving(t, vnet.SKUBasic, 2, 0), leaving(t, vnet.SKUStandard, 2, 400)
	small := leaving(t, vnet.SKUStandard, 1, 128)
	first := func(last int) []vnet.TranslatedFlow { return flowsTo(web, "203.0.113.10", 1024, last) }
	second := func(last int) []vnet.TranslatedFlow { return flowsTo(web, "203.0.113.11", 1024, last) }
	elsewhere := vnet.TranslatedFlow{Protocol: 6, Private: netip.MustParseAddrPort("10.13.1.4:1"),
		Public: netip.MustParseAddrPort("203.0.113.3:1"), Destination: netip.MustParseAddrPort(web)}
	holed := slices.Delete(slices.Delete(first(2047), 500, 502), 40, 41) // two of the holes in one row
	for _, c := range []struct {
		name  string
		n     vnet.Network
		flows []vnet.TranslatedFlow
		want  string // front end, first and last port
	}{
		{"plenty", basic, first(1842), ""},
		{"few", basic, first(1843), "203.0.113.10 1920-2047"},
		{"the last one", basic, first(2046), "203.0.113.10 1920-2047"},
		{"none", basic, first(2047), "none"},
		{"none of two front ends", two, append(second(2047), first(2047)...), "none"},
		{"holes", basic, holed, "203.0.113.10 1408-1535"},
		{"two front ends, the second unused", two, first(2047), ""},
		{"two front ends, few", two, append(second(1700), first(2047)...), "203.0.113.11 1792-1919"},
		{"in turn, the first is unused", turns, nil, ""},
		{"in turn, few", turns, first(1200), "203.0.113.10 1152-1223"},
		{"in turn, the second one's turn", turns, first(1223), "203.0.113.11 1024-1223"},
		{"in turn, few of the second", turns, append(first(1223), second(1183)...), "203.0.113.11 1152-1223"},
		{"in turn, none", turns, append(first(1223), second(1223)...), "none"},
		{"the kernel finds every one", small, first(1150), ""},
		{"the kernel would take one that has ended", small, first(1151), "none"},
		{"another's flows", basic, []vnet.TranslatedFlow{elsewhere}, ""},
	} {
		got := ""
		for _, s := range vnet.Spares(c.n, c.flows) {
			if got = fmt.Sprintf("%s %d-%d", s.Frontend, s.First, s.Last); !s.Frontend.IsValid() {
				got = "none"
			}
			if s.Protocol != 6 || s.Private.String() != "10.13.76.4" || s.Destination.String() != web {
				t.Errorf("%s: for %+v", c.name, s)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSparesFrom(t *testing.T) {
	for want, n := range map[int]vnet.Network{
		820: leaving(t, vnet.SKUBasic, 2, 0), 160: leaving(t, vnet.SKUStandard, 2, 400), 103: leaving(t, vnet.SKUStandard, 1, 128),
	} {
		if got := vnet.SparesFrom(n); got != want {
			t.Errorf("from %d flows on, want %d", got, want)
		}
	}
}
