package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

const (
	changeFrom = `
spec:
  nodePools: [{name: one}, {name: two, count: 2}]
  loadBalancer: {sku: standard, outbound: {managedIPs: 3}}
  azure:
    vnets:
    - {name: a, addressPrefixes: [10.240.0.0/16], subnets: [{name: aks, prefix: 10.240.0.0/24}, {name: old, prefix: 10.240.9.0/24}], peerings: [b]}
    - {name: b, addressPrefixes: [172.17.0.0/16], subnets: [{name: s, prefix: 172.17.0.0/24}], peerings: [a]}
    routeTables:
    - {name: t, routes: [{name: one, prefix: 10.0.0.0/8, nextHopType: None}, {name: two, prefix: 11.0.0.0/8, nextHopType: None}]}
    - {name: gone}
    vms:
    - {name: first, subnet: a/old, publicIP: true}
    - {name: moves, subnet: b/s, address: 172.17.0.9}
    - {name: web, subnet: b/s, address: 172.17.0.4, app: nginx, publicIP: true}
`
	changeTo = `
spec:
  nodePools: [{name: one}, {name: two, count: 4}]
  loadBalancer: {sku: standard, outbound: {managedIPs: 2, ports: 256, idleTimeoutMinutes: 10}}
  azure:
    vnets:
    - {name: a, addressPrefixes: [10.240.0.0/16], subnets: [{name: aks, prefix: 10.240.0.0/24}]}
    - {name: b, addressPrefixes: [172.17.0.0/16], subnets: [{name: s, prefix: 172.17.0.0/24, routeTable: t}], peerings: [a]}
    - {name: c, addressPrefixes: [172.18.0.0/16], subnets: [{name: s, prefix: 172.18.0.0/24}]}
    routeTables:
    - {name: t, routes: [{name: one, prefix: 10.0.0.0/8, nextHopType: VirtualAppliance, nextHopAddress: 172.17.0.4}, {name: three, prefix: 12.0.0.0/8, nextHopType: None}]}
    vms:
    - {name: web, subnet: b/s, address: 172.17.0.4, app: nginx, publicIP: true, ipForwarding: true}
    - {name: moves, subnet: b/s, address: 172.17.0.10, publicIP: true}
    - {name: new, subnet: c/s}
  internet:
    hosts: [{name: other, address: 198.51.100.10}]
`
)

func parsed(t *testing.T, source string) *cluster.Cluster {
	t.Helper()
	c, errs := cluster.Parse(nil, []byte(source))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return c
}

// TestRevise: a network that was changed is the one that would have been made so, but for the numbers of NICs, and what others added to it.
func TestRevise(t *testing.T) {
	from, to := parsed(t, changeFrom), parsed(t, changeTo)
	n, err := Network(from)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Network(to)
	if err != nil {
		t.Fatal(err)
	}
	want.VNets[1].Peerings[0].Parted = true        // a has taken its side away
	for _, n := range []*vnet.Network{&n, &want} { // a Service's front end, a route controller's table
		lb, _ := n.LoadBalancer(CloudName)
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: "a1", Address: netip.MustParseAddr("203.0.113.20")})
		n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: "kubernetes-a1", Address: netip.MustParseAddr("203.0.113.20")})
		n.RouteTables = append(n.RouteTables,
			vnet.RouteTable{Name: "nodes",
				Routes: []vnet.UserRoute{{Name: "r", Prefix: netip.MustParsePrefix("10.9.0.0/24"), NextHopType: vnet.NextHopNone}}})
		n.VNets[0].Subnets[0].RouteTable = "nodes"
	}
	for range 2 { // the second time changes nothing
		if err := Revise(&n, from, to); err != nil {
			t.Fatal(err)
		}
		if err := n.Validate(); err != nil {
			t.Fatal(err)
		}
		sortNetwork(&n)
		sortNetwork(&want)
		if d := cmp.Diff(want, n, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty(),
			cmpopts.IgnoreFields(vnet.NIC{}, "ID")); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	}
	to.Spec.LoadBalancer.Frontends = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")}
	if err := Revise(&n, from, to); err == nil || !strings.Contains(err.Error(), "203.0.113.20 is in use") {
		t.Errorf("a front end in use was taken away: %v", err)
	}
}

func sortNetwork(n *vnet.Network) {
	slices.SortFunc(n.NICs, func(a, b vnet.NIC) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(n.PublicIPs, func(a, b vnet.PublicIP) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(n.RouteTables, func(a, b vnet.RouteTable) int { return strings.Compare(a.Name, b.Name) })
	for _, lb := range n.LoadBalancers {
		slices.SortFunc(lb.Frontends, func(a, b vnet.Frontend) int { return strings.Compare(a.Name, b.Name) })
	}
}

// TestPeeringStates: a side whose other side was never there is Initiated, one whose other side was taken away Disconnected, until both are
// there.
func TestPeeringStates(t *testing.T) {
	with := func(a, b string) *cluster.Cluster {
		return parsed(t, `
spec:
  azure:
    vnets:
    - {name: a, addressPrefixes: [10.240.0.0/16], subnets: [{name: aks, prefix: 10.240.0.0/24}], peerings: [`+a+`]}
    - {name: b, addressPrefixes: [172.17.0.0/16], subnets: [{name: s, prefix: 172.17.0.0/24}], peerings: [`+b+`]}
`)
	}
	at := with("b", "")
	n, err := Network(at)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		to   *cluster.Cluster
		want string
	}{
		{at, "a Initiated"}, {with("b", "a"), "a Connected, b Connected"}, {with("", "a"), "b Disconnected"}, {with("", "a"), "b Disconnected"},
		{with("b", "a"), "a Connected, b Connected"}, {with("", ""), ""}, {with("", "a"), "b Initiated"},
	} {
		if err := Revise(&n, at, step.to); err != nil {
			t.Fatal(err)
		}
		at = step.to
		var got []string
		for _, v := range n.VNets {
			for _, p := range v.Peerings {
				got = append(got, v.Name+" "+n.PeeringState(v.Name, p))
			}
		}
		if text := strings.Join(got, ", "); text != step.want {
			t.Errorf("step %d: %q, want %q", i, text, step.want)
		}
	}
}

// TestHalfPeerings: a peering of one side is told, one of both is not.
func TestHalfPeerings(t *testing.T) {
	for source, want := range map[string]int{changeFrom: 0, changeTo: 1} {
		n, err := Network(parsed(t, source))
		if err != nil {
			t.Fatal(err)
		}
		if got := HalfPeerings(n); len(got) != want || want > 0 && !strings.HasPrefix(got[0], "the peering of VNet b with a carries nothing") {
			t.Errorf("%q, want %d", got, want)
		}
	}
}
