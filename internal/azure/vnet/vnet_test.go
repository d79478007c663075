package vnet_test

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/desired"
	"packetwalk.dev/internal/testing/goldentest"
)

// scenario is what a txtar file's network.yaml holds: a network, machines that get NICs, and the members that are down.
type scenario struct {
	vnet.Network
	Machines []struct {
		Name, VNet, Subnet string
		Addresses          int
		PublicIP           string
		SecurityGroup      string
		IPForwarding       bool
		Pods               int // bits of its part of the overlay, 0 for none
	}
	Down []string // machines
}

func (s scenario) build(t *testing.T) (vnet.Network, vnet.Health) {
	t.Helper()
	n, h := s.Network, vnet.Health{}
	for _, m := range s.Machines {
		if _, err := n.AllocateNIC(m.Name, m.VNet, m.Subnet, m.Addresses); err != nil {
			t.Fatal(err)
		}
		nic := &n.NICs[len(n.NICs)-1]
		if m.Pods > 0 {
			if err := n.AllocateOverlay(nic.Name, m.Pods); err != nil {
				t.Fatal(err)
			}
		}
		nic.IPConfigs[0].PublicIP, nic.SecurityGroup, nic.IPForwarding = m.PublicIP, m.SecurityGroup, nic.IPForwarding || m.IPForwarding
	}
	for _, lb := range n.LoadBalancers {
		for _, p := range lb.Probes {
			for _, bp := range lb.BackendPools {
				for _, m := range bp.Members {
					up := !slices.Contains(s.Down, strings.TrimSuffix(m.NIC, "-nic"))
					h[vnet.ProbeTarget{LoadBalancer: lb.Name, Probe: p.Name, Member: m}] = up
				}
			}
		}
	}
	return n, h
}

// TestPlan: a scenario in, the plan of its network out.
func TestPlan(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		var s scenario
		if err := yaml.UnmarshalStrict(in[0].Data, &s); err != nil {
			t.Fatal(err)
		}
		n, h := s.build(t)
		if err := n.Validate(); err != nil {
			t.Fatal(err)
		}
		got := vnet.NewPlan(n, h).String()
		if again := vnet.NewPlan(n.Clone(), h).String(); again != got {
			t.Error("the same network gives another plan")
		}
		if set := protocolRange.FindString(got); set != "" {
			t.Errorf("Linux 6.8 with nft 1.0.9 refuses rules with this:\n%s", set)
		}
		return []txtar.File{{Name: "plan", Data: []byte(got)}}
	})
}

// protocolRange is a set or map with ranges of keys that have a protocol.
var protocolRange = regexp.MustCompile(`(?m)^.*type .*\binet_proto\b.*\n\s*flags .*\binterval\b.*$`)

func worldA(t *testing.T) vnet.Network {
	t.Helper()
	return vnet.Network{
		NodeResourceGroup: "MC_packetwalk",
		VNets: []vnet.VNet{{
			Name: "aksVnet", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
			Subnets: []vnet.Subnet{{Name: "aks", Prefix: netip.MustParsePrefix("10.13.76.0/24")},
				{Name: "vmsubnet", Prefix: netip.MustParsePrefix("10.13.1.0/29")}},
		}},
		DefaultOutbound: vnet.DefaultOutboundAddress,
	}
}

// TestRoutesToNowhere: a user-defined route of everything to an appliance takes Azure's own routes to nowhere away; no other does.
func TestRoutesToNowhere(t *testing.T) {
	n := worldA(t)
	appliance := netip.MustParseAddr("10.13.1.4")
	for _, c := range []struct {
		prefix, kind string
		hop          netip.Addr
		want         int
	}{
		{"0.0.0.0/0", vnet.NextHopAppliance, appliance, 0},
		{"0.0.0.0/1", vnet.NextHopAppliance, appliance, 4},
		{"0.0.0.0/0", vnet.NextHopInternet, netip.Addr{}, 4},
		{"0.0.0.0/0", vnet.NextHopNone, netip.Addr{}, 5},
	} {
		n.RouteTables = []vnet.RouteTable{{Name: "t", Routes: []vnet.UserRoute{
			{Name: "r", Prefix: netip.MustParsePrefix(c.prefix), NextHopType: c.kind, NextHop: c.hop}}}}
		got := 0
		for _, r := range n.EffectiveRoutes("aksVnet", "t") {
			if r.Active && r.NextHopType == vnet.NextHopNone {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s to %s: %d routes to nowhere, want %d", c.prefix, c.kind, got, c.want)
		}
	}
}

func TestAllocateNIC(t *testing.T) {
	n := worldA(t)
	allocate := func(machine, subnet string, count int, first, last string) vnet.NIC {
		t.Helper()
		nic, err := n.AllocateNIC(machine, "aksVnet", subnet, count)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := nic.IPConfigs[0].Address.String(), nic.IPConfigs[count-1].Address.String(); a != first || b != last {
			t.Errorf("%s got %s to %s, want %s to %s", machine, a, b, first, last)
		}
		return nic
	}
	refuse := func(why string, machine, subnet string, count int) {
		t.Helper()
		before := n.Clone()
		if _, err := n.AllocateNIC(machine, "aksVnet", subnet, count); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("error %v, want one that says %q", err, why)
		}
		if diff := cmp.Diff(before, n, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("a refused request changed the network:\n%s", diff)
		}
	}
	n0 := allocate("node-0", "aks", 31, "10.13.76.4", "10.13.76.34")
	allocate("node-1", "aks", 31, "10.13.76.35", "10.13.76.65")
	if n0.ID != 1 || !strings.HasPrefix(n0.MAC, "00:0d:3a:") || !n0.IPConfigs[0].Primary || n0.IPConfigs[1].Primary ||
		n0.IPConfigs[30].Name != "ipconfig31" {
		t.Errorf("unexpected NIC %+v", n0)
	}
	n.ReleaseNIC("node-0-nic")
	n.ReleaseNIC("node-0-nic")
	if nic := allocate("node-2", "aks", 31, "10.13.76.4", "10.13.76.34"); nic.ID != 1 {
		t.Errorf("ID %d, want the lowest free one, 1", nic.ID)
	}
	// A /29 has eight addresses, of which Azure keeps five.
	allocate("vm-0", "vmsubnet", 1, "10.13.1.4", "10.13.1.4")
	refuse("no 3 free addresses in a row", "vm-1", "vmsubnet", 3)
	allocate("vm-1", "vmsubnet", 2, "10.13.1.5", "10.13.1.6")
	refuse("no 1 free", "vm-2", "vmsubnet", 1)
	refuse("there already", "node-1", "aks", 31)
	refuse("no such subnet", "vm-3", "nope", 1)
	refuse("1 to 256", "vm-3", "aks", 257)
	if err := n.Validate(); err != nil {
		t.Error(err)
	}
}

func TestAllocatePublicIP(t *testing.T) {
	n := worldA(t)
	var none netip.Addr
	for _, c := range []struct {
		name string
		want netip.Addr
		got  string
		err  string
	}{
		{"a", none, "203.0.113.10", ""},
		{"b", netip.MustParseAddr("203.0.113.12"), "203.0.113.12", ""},
		{"c", none, "203.0.113.11", ""},
		{"d", none, "203.0.113.13", ""},
		{"d", none, "", "name is taken"},
		{"e", netip.MustParseAddr("203.0.113.12"), "", "203.0.113.12 is in use"},
		{"e", netip.MustParseAddr("203.0.113.1"), "", "is not one of the lab's, 203.0.113.10 to 203.0.113.253"},
		{"e", netip.MustParseAddr("8.8.8.8"), "", "is not one of the lab's, 203.0.113.10 to 203.0.113.253"},
	} {
		p, err := n.AllocatePublicIP(c.name, c.want)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s %s: error %v, want %q", c.name, c.want, err, c.err)
			}
			continue
		}
		if err != nil || p.Address.String() != c.got {
			t.Errorf("%s: %v %v, want %s", c.name, p, err, c.got)
		}
	}
	n.ReleasePublicIP("a")
	if p, err := n.AllocatePublicIP("again", none); err != nil || p.Address.String() != "203.0.113.10" {
		t.Errorf("got %v %v, want the released address", p, err)
	}
}

func TestPublicAddresses(t *testing.T) {
	n := worldA(t)
	n.PublicAddresses = []netip.Addr{netip.MustParseAddr("203.0.113.30"), netip.MustParseAddr("203.0.113.20")}
	for _, want := range []string{"203.0.113.30", "203.0.113.20"} {
		if p, err := n.AllocatePublicIP(want, netip.Addr{}); err != nil || p.Address.String() != want {
			t.Errorf("got %v %v, want %s", p, err, want)
		}
	}
	if _, err := n.AllocatePublicIP("more", netip.Addr{}); err == nil || !strings.Contains(err.Error(), "all 2 are in use") {
		t.Error(err)
	}
}

func TestOutboundPorts(t *testing.T) {
	for size, want := range map[int]int{1: 1024, 50: 1024, 51: 512, 100: 512, 101: 256, 200: 256, 201: 128, 400: 128, 401: 64, 800: 64,
		801: 32, 1000: 32, 1001: 0} {
		if got := vnet.OutboundPorts(size); got != want {
			t.Errorf("pool of %d: %d ports, want %d", size, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	n := worldA(t)
	n.VNets[0].Subnets = append(n.VNets[0].Subnets, vnet.Subnet{Name: "x", Prefix: netip.MustParsePrefix("10.13.76.128/25")},
		vnet.Subnet{Name: "y", Prefix: netip.MustParsePrefix("10.14.0.0/24")})
	n.NICs = []vnet.NIC{{Name: "a", VNet: "aksVnet", Subnet: "aks", ID: 1,
		IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.3"), Primary: true, PublicIP: "none"}}}}
	n.Hosts = []vnet.Host{{Name: "fabric", Address: netip.MustParseAddr("198.51.100.10")},
		{Name: "other", Address: netip.MustParseAddr("198.51.100.10")}}
	n.LoadBalancers = []vnet.LoadBalancer{{Name: "lb", SKU: "Gold",
		Rules: []vnet.Rule{{Name: "r", Protocol: "Tcp", Frontend: "f", FrontendPort: 80, BackendPort: 81, FloatingIP: true}}}}
	err := n.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"10.13.76.128/25 overlaps", "10.14.0.0/24 is outside", "10.13.76.3 is not one of", "no public address none",
		"the name is the router's own",
		"198.51.100.10 is host fabric's", `SKU "Gold"`, "no front end f", "no back-end pool", "the ports are the same",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no error says %q in:\n%v", want, err)
		}
	}
}

func TestEndedFlows(t *testing.T) {
	data, err := txtar.ParseFile("testdata/world-a.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var s scenario
	if err := yaml.UnmarshalStrict(data.Files[0].Data, &s); err != nil {
		t.Fatal(err)
	}
	n, up := s.build(t)
	vip := func(l4 uint8, port uint16) desired.FlowFilter {
		return desired.FlowFilter{Protocol: l4, Destination: netip.MustParsePrefix("203.0.113.10/32"), DestinationPort: port}
	}
	down := vnet.Health{}
	one := vnet.Health{}
	for k := range up {
		one[k] = k.Member.NIC == "aks-nodepool1-0-nic"
	}
	standard := n.Clone()
	standard.LoadBalancers[0].SKU = vnet.SKUStandard
	without := n.Clone()
	without.LoadBalancers[0].Rules = without.LoadBalancers[0].Rules[1:]
	udp := n.Clone()
	udp.LoadBalancers[0].Rules[1].Probe = "a1-TCP-80"
	moved := vip(17, 53)
	moved.Mark, moved.Mask = 2, 0xffffffff
	gone := n.Clone()
	gone.ReleaseNIC("testvm-nic")
	for _, c := range []struct {
		name          string
		before, after vnet.Network
		hb, ha        vnet.Health
		want          []desired.FlowFilter
	}{
		{"nothing changed", n, n, up, up, nil},
		{"one of two down", n, n, up, one, nil},
		{"all down, Basic", n, n, up, down, []desired.FlowFilter{vip(6, 80)}},
		{"UDP moves", udp, udp, up, one, []desired.FlowFilter{moved}},
		{"still down", n, n, down, down, nil},
		{"all down, Standard", standard, standard, up, down, nil},
		{"rule deleted", n, without, up, up, []desired.FlowFilter{vip(6, 80)}},
		{"machine gone", n, gone, up, up, []desired.FlowFilter{{Mark: 3, Mask: 0xffffffff}, {Source: netip.MustParsePrefix("10.13.1.4/32")}}},
	} {
		got := vnet.EndedFlows(c.before, c.hb, c.after, c.ha)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
