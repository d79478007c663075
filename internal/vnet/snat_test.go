package vnet_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/vnet"
)

// leaving is a network with one node, whose load balancer has the front ends .10, .11, …
func leaving(t *testing.T, sku string, frontends, ports int) vnet.Network {
	t.Helper()
	n := worldA(t)
	if _, err := n.AllocateNIC("node", "aksVnet", "aks", 1); err != nil {
		t.Fatal(err)
	}
	lb := vnet.LoadBalancer{Name: "kubernetes", SKU: sku, BackendPools: []vnet.BackendPool{{Name: "kubernetes", Members: []vnet.IPConfigRef{{NIC: "node-nic", IPConfig: "ipconfig1"}}}}}
	rule := vnet.OutboundRule{Name: "all", BackendPool: "kubernetes", AllocatedOutboundPorts: ports, IdleTimeoutMinutes: 4}
	for i := range frontends {
		f := vnet.Frontend{Name: fmt.Sprint("f", i), Address: netip.MustParseAddr(fmt.Sprint("203.0.113.", 10+i))}
		lb.Frontends, rule.Frontends = append(lb.Frontends, f), append(rule.Frontends, f.Name)
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

// flowsTo are flows of the node to one destination from each of the front end's ports from first to last.
func flowsTo(destination, frontend string, first, last int) []vnet.TranslatedFlow {
	var all []vnet.TranslatedFlow
	for p := first; p <= last; p++ {
		all = append(all, vnet.TranslatedFlow{
			Protocol: 6, Private: netip.AddrPortFrom(netip.MustParseAddr("10.13.76.4"), uint16(30000+p)), Public: netip.AddrPortFrom(netip.MustParseAddr(frontend), uint16(p)),
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
	flows = append(flows, flowsTo("198.51.100.80:443", "203.0.113.99", 1060, 1999)...) // nobody's front end
	flows[0].Ended = true
	want := []vnet.PortUse{{
		Machine: "node", Private: netip.MustParseAddr("10.13.76.4"), Ports: 2048, InUse: 39 + 10 + 6,
		Fullest: vnet.DestinationUse{Protocol: 6, Destination: netip.MustParseAddrPort("198.51.100.80:80"), InUse: 49},
	}}
	if d := cmp.Diff(want, vnet.PortUses(n, flows), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
		t.Error(d)
	}
}

func TestSpares(t *testing.T) {
	const web = "198.51.100.80:80"
	basic, two, turns := leaving(t, vnet.SKUBasic, 1, 0), leaving(t, vnet.SKUBasic, 2, 0), leaving(t, vnet.SKUStandard, 2, 200)
	first := func(last int) []vnet.TranslatedFlow { return flowsTo(web, "203.0.113.10", 1024, last) }
	holed := first(2047)
	for _, i := range []int{40, 500, 510} { // two of them in one row of 32
		holed[i].Ended = true
	}
	for _, c := range []struct {
		name  string
		n     vnet.Network
		flows []vnet.TranslatedFlow
		want  string // front end, first and last port
	}{
		{"plenty", basic, first(1982), ""},
		{"few", basic, first(1983), "203.0.113.10 1984-2015"},
		{"the last one", basic, first(2046), "203.0.113.10 2016-2047"},
		{"none", basic, first(2047), ""},
		{"ended ones are free", basic, holed, "203.0.113.10 1504-1535"},
		{"free ones are better", basic, holed[:1023], "203.0.113.10 2016-2047"},
		{"two front ends, the second unused", two, first(2047), ""},
		{"two front ends, few", two, append(flowsTo(web, "203.0.113.11", 1024, 1990), first(2047)...), "203.0.113.11 2016-2047"},
		{"in turn, the first is unused", turns, nil, ""},
		{"in turn, few", turns, first(1100), "203.0.113.10 1088-1119"},
		{"in turn, the last row is shorter", turns, first(1121), "203.0.113.10 1120-1123"},
		{"in turn, the second one's turn", turns, first(1123), ""},
		{"in turn, few of the second", turns, append(first(1123), flowsTo(web, "203.0.113.11", 1024, 1120)...), "203.0.113.11 1120-1123"},
	} {
		got := ""
		for _, s := range vnet.Spares(c.n, c.flows) {
			got += fmt.Sprintf("%s %d-%d", s.Frontend, s.First, s.Last)
			if s.Protocol != 6 || s.Private.String() != "10.13.76.4" || s.Destination.String() != web {
				t.Errorf("%s: for %+v", c.name, s)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
