package fib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/packet"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestParseLinks(t *testing.T) {
	links, err := ParseLinks([]byte(`[
		{"ifindex":2,"link_index":7,"ifname":"eth0","flags":["BROADCAST","UP","LOWER_UP"],"mtu":1500,"group":"default","link_type":"ether",
		 "address":"00:0d:3a:00:00:01","linkinfo":{"info_kind":"veth"},"link_netnsid":3,"new_field":[1]},
		{"ifindex":3,"ifname":"azure0","flags":["UP"],"mtu":1500,"group":"7","link_type":"ether","address":"00:0d:3a:00:00:02",
		 "linkinfo":{"info_kind":"bridge","info_data":{"stp_state":0,"vlan_filtering":1,"group_fwd_mask":"0x4000","nf_call_iptables":1}}},
		{"ifindex":4,"link":"p1","ifname":"p0","flags":[],"mtu":1400,"master":"azure0","group":"pods","link_type":"ether","address":"00:0d:3a:00:00:03",
		 "linkinfo":{"info_kind":"veth","info_slave_kind":"bridge","info_slave_data":{"state":"forwarding","hairpin":true,"learning":true,"flood":false,
		 "bcast_flood":true,"mcast_flood":true,"isolated":true,"proxy_arp":true,"neigh_suppress":false}}},
		{"ifindex":5,"link":"p0","ifname":"p1","link_type":"ether","address":"00:0d:3a:00:00:04","linkinfo":{"info_kind":"veth"}},
		{"ifindex":6,"link":"eth0","ifname":"eth0.5","link_type":"ether","linkinfo":{"info_kind":"vlan","info_data":{"protocol":"802.1Q","id":5,"flags":[]}}}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Link{
		{Index: 2, Name: "eth0", Kind: "veth", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 1}, MTU: 1500, Up: true, LowerUp: true, Peer: 7, PeerNetNS: 3},
		{Index: 3, Name: "azure0", Kind: "bridge", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 2}, MTU: 1500, Up: true, Group: 7, PeerNetNS: -1,
			Bridge: &Bridge{VLANFiltering: true, CallIPTables: true, GroupForward: 0x4000}},
		{Index: 4, Name: "p0", Kind: "veth", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 3}, MTU: 1400, Group: -1, Peer: 5, PeerNetNS: -1, Master: "azure0",
			Port: &Port{State: "forwarding", Hairpin: true, Learning: true, BroadcastFlood: true, MulticastFlood: true, Isolated: true, ProxyARP: true}},
		{Index: 5, Name: "p1", Kind: "veth", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 4}, Peer: 4, PeerNetNS: -1},
		{Index: 6, Name: "eth0.5", Kind: "vlan", Type: "ether", VLAN: 5, Parent: "eth0", PeerNetNS: -1},
	}
	if d := cmp.Diff(want, links); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	s := &State{Links: links}
	if s.Index(); s.Link("azure0") != &s.Links[1] || s.LinkByIndex(5) != &s.Links[3] || s.Link("eth9") != nil || len(s.Ports("azure0")) != 1 {
		t.Error("links are not found")
	}
}

func TestParseNeighboursAndFDB(t *testing.T) {
	list, err := ParseNeighbours([]byte(`[{"dst":"10.0.0.9","dev":"br0","lladdr":"00:11:22:33:44:55","state":["PERMANENT"]},{"dst":"10.0.0.8","dev":"br0","state":["FAILED"]}]`))
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := ParseNeighbours([]byte(`[{"dst":"fd00::10","dev":"br0","proxy":null}]`))
	if err != nil {
		t.Fatal(err)
	}
	fdb, err := ParseFDB([]byte(`[{"mac":"33:33:00:00:00:01","ifname":"v1","flags":["self"],"state":"permanent"},
		{"mac":"de:f3:71:ba:21:cd","ifname":"v0","vlan":1,"flags":[],"master":"br0","state":"permanent"},
		{"mac":"de:f3:71:ba:21:ce","ifname":"v0","flags":[],"master":"br0","state":""},
		{"mac":"de:f3:71:ba:21:cf","ifname":"v1","flags":[],"master":"br0","state":"static"}]`))
	if err != nil {
		t.Fatal(err)
	}
	s := &State{Neighbours: append(list, proxies...), FDB: fdb}
	s.Index()
	mac := packet.MAC{0, 0x11, 0x22, 0x33, 0x44, 0x55}
	if n := s.Neighbour("br0", addr("10.0.0.9")); n == nil || n.MAC != mac || n.State != "PERMANENT" {
		t.Errorf("neighbour %+v", n)
	}
	if n := s.Neighbour("br0", addr("10.0.0.8")); n == nil || !n.MAC.IsZero() || n.State != "FAILED" {
		t.Errorf("neighbour %+v", n)
	}
	if s.Neighbour("br0", addr("fd00::10")) != nil || s.ProxyNeighbour("br0", addr("fd00::10")) == nil || s.ProxyNeighbour("br1", addr("fd00::10")) != nil {
		t.Error("the proxy entry is not told from neighbours")
	}
	if len(fdb) != 3 {
		t.Errorf("%d entries, want those of the bridge", len(fdb))
	}
	if e := s.FDBEntry("br0", packet.MAC{0xde, 0xf3, 0x71, 0xba, 0x21, 0xcd}, 1); e == nil || !e.Local || e.Port != "v0" {
		t.Errorf("own address: %+v", e)
	}
	if e := s.FDBEntry("br0", packet.MAC{0xde, 0xf3, 0x71, 0xba, 0x21, 0xcf}, 0); e == nil || !e.Static || e.Local {
		t.Errorf("static entry: %+v", e)
	}
	if s.FDBEntry("br0", mac, 0) != nil {
		t.Error("found what is not there")
	}
}

func TestParseRoutes(t *testing.T) {
	got, err := ParseRoutes([]byte(`[
		{"dst":"default","gateway":"10.0.0.254","dev":"eth0","metric":100,"flags":["linkdown"]},
		{"type":"local","dst":"10.0.0.1","dev":"eth0","table":"local","protocol":"kernel","scope":"host","prefsrc":"10.0.0.1","flags":[]},
		{"dst":"10.8.1.0/24","via":{"family":"inet6","host":"fd00::9"},"dev":"eth0","table":"tunnels","tos":"0x10","flags":["onlink"]},
		{"dst":"default","dev":"eth0","metric":1024,"flags":[],"pref":"high"},
		{"dst":"fd02::/64","from":"fd00::/64","metric":1024,"flags":[],"nexthops":[{"gateway":"fd00::5","dev":"eth0","weight":1,"flags":["dead","linkdown"]},
		 {"gateway":"fd00::6","dev":"eth0","weight":3,"flags":[]}]},
		{"dst":"10.9.0.0/16","encap":"mpls","gateway":"10.0.0.9","dev":"eth0","table":"100","flags":[]},
		{"dst":"10.0.0.9","dev":"eth0","flags":["cloned"]}]`))
	if err != nil {
		t.Fatal(err)
	}
	number, _ := tableNumber("tunnels")
	want := []Route{
		{Table: 254, Type: "unicast", Destination: prefix("0.0.0.0/0"), Gateway: addr("10.0.0.254"), Link: "eth0", Metric: 100, Scope: "global", LinkDown: true},
		{Table: 255, Type: "local", Destination: prefix("10.0.0.1/32"), Link: "eth0", Protocol: "kernel", Scope: "host", Source: addr("10.0.0.1")},
		{Table: number, TableName: "tunnels", Type: "unicast", Destination: prefix("10.8.1.0/24"), TOS: 0x10, Gateway: addr("fd00::9"), Link: "eth0", Scope: "global", OnLink: true},
		{Table: 254, Type: "unicast", Destination: prefix("::/0"), Link: "eth0", Metric: 1024, Scope: "global", Preference: "high"},
		{Table: 254, Type: "unicast", Destination: prefix("fd02::/64"), From: prefix("fd00::/64"), Metric: 1024, Scope: "global", Nexthops: []Nexthop{
			{Gateway: addr("fd00::5"), Link: "eth0", Weight: 1, Dead: true, LinkDown: true}, {Gateway: addr("fd00::6"), Link: "eth0", Weight: 3}}},
		{Table: 100, Type: "unicast", Destination: prefix("10.9.0.0/16"), Gateway: addr("10.0.0.9"), Link: "eth0", Scope: "global", Unknown: "encap mpls"},
	}
	if d := cmp.Diff(want, got, compareAddresses); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if number >= 0 {
		t.Error("a table's name is taken for a number that another table can have")
	}
}

// TestUnknownRule: a rule with a field that is not understood is kept and said aloud, where the rest of it fits the packet.
func TestUnknownRule(t *testing.T) {
	rules, err := ParseRules([]byte(`[{"priority":0,"src":"all","table":"local"},
		{"priority":100,"src":"10.0.0.0","srclen":8,"tun_id":5,"table":"100"},{"priority":32766,"src":"all","table":"main"}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	s := &State{Rules: rules, Routes: []Route{{Table: TableMain, Type: "unicast", Destination: prefix("0.0.0.0/0"), Link: "eth0"}}}
	s.Index()
	for source, unknown := range map[string]bool{"10.0.0.1": true, "11.0.0.1": false} {
		a := s.Lookup(Query{Source: addr(source), Destination: addr("1.1.1.1"), In: "eth1"})
		if (a.Unknown != "") != unknown || a.Type != "unicast" {
			t.Errorf("from %s: %+v", source, a)
		}
	}
}

// TestPortSpan: a source port that the kernel has yet to pick, in and out of a rule's range.
func TestPortSpan(t *testing.T) {
	rule := Rule{Priority: 100, SourcePorts: [2]uint16{1000, 40000}, Action: "unreachable", SuppressPrefixLength: -1, SuppressGroup: -1}
	s := &State{Rules: []Rule{rule, usualRules[0][1]}, Routes: []Route{{Table: TableMain, Type: "unicast", Destination: prefix("0.0.0.0/0"), Link: "eth0"}}}
	s.Index()
	for _, c := range []struct {
		port    packet.Port
		kind    string
		unknown bool
	}{
		{packet.Exactly(2000), "unreachable", false}, {packet.OneOf(1000, 2000, 1500), "unreachable", false},
		{packet.OneOf(32768, 60999, 45000), "unicast", true}, {packet.OneOf(32768, 60999, 33000), "unreachable", true},
		{packet.OneOf(50000, 60999, 55000), "unicast", false},
	} {
		a := s.Lookup(Query{Source: addr("10.0.0.1"), Destination: addr("1.1.1.1"), Protocol: packet.TCP, SourcePort: c.port, DestinationPort: packet.Exactly(80), In: "eth1"})
		if a.Type != c.kind || (a.Unknown != "") != c.unknown {
			t.Errorf("%v: %s, unknown %q", c.port, a.Type, a.Unknown)
		}
	}
}

// TestWays: a multipath route gives each way with its weight, and what each makes the sender's address.
func TestWays(t *testing.T) {
	s := &State{
		Addresses: []Address{{Link: "a", Prefix: prefix("10.0.0.1/24"), Scope: "global"}, {Link: "b", Prefix: prefix("10.0.1.1/24"), Scope: "global"}},
		Routes: []Route{{Table: TableMain, Type: "unicast", Destination: prefix("0.0.0.0/0"), Scope: "global", Nexthops: []Nexthop{
			{Gateway: addr("10.0.0.254"), Link: "a", Weight: 2}, {Gateway: addr("10.0.1.254"), Link: "b", Weight: 1}, {Gateway: addr("10.0.2.254"), Link: "c", Weight: 1, Dead: true}}}},
	}
	s.Index()
	a := s.Lookup(Query{Destination: addr("1.1.1.1")})
	want := []Nexthop{{Gateway: addr("10.0.0.254"), Link: "a", Weight: 2, Source: addr("10.0.0.1")}, {Gateway: addr("10.0.1.254"), Link: "b", Weight: 1, Source: addr("10.0.1.1")}}
	if d := cmp.Diff(want, a.Ways, compareAddresses); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if b := a.Take(1); b.Link != "b" || b.Gateway != addr("10.0.1.254") || b.Source != addr("10.0.1.1") || b.Ways != nil {
		t.Errorf("taken: %+v", b)
	}
	if own := s.Lookup(Query{Destination: addr("10.0.1.1")}); own.Type != "local" || own.Link != "lo" || own.Source != addr("10.0.1.1") {
		t.Errorf("without a local table: %+v", own)
	}
}

// TestMerged: local and main are one table until there are rules; with a longer route in main that is to be said.
func TestMerged(t *testing.T) {
	routes := []Route{
		{Table: TableLocal, Type: "local", Destination: prefix("10.1.0.0/16"), Link: "lo", Scope: "host"},
		{Table: TableMain, Type: "unicast", Destination: prefix("10.1.2.0/24"), Link: "eth0", Scope: "link"},
	}
	s := &State{Routes: routes}
	s.Index()
	a := s.Lookup(Query{Destination: addr("10.1.2.3"), In: "eth1"})
	if a.Type != "unicast" || a.Unknown == "" {
		t.Errorf("without rules: %+v", a)
	}
	s = &State{Routes: routes, Rules: append([]Rule{{Priority: 50, Mark: 9, Mask: 9, Action: "lookup", Table: 9, SuppressPrefixLength: -1, SuppressGroup: -1}}, usualRules[0]...)}
	s.Rules[0].Priority, s.Rules[1].Priority = 1, 0
	s.Index()
	if a := s.Lookup(Query{Destination: addr("10.1.2.3"), In: "eth1"}); a.Type != "local" || a.Unknown != "" {
		t.Errorf("with rules: %+v", a)
	}
}

func TestAddressType(t *testing.T) {
	s := &State{
		Addresses: []Address{
			{Link: "lo", Prefix: prefix("127.0.0.1/8"), Scope: "host"}, {Link: "eth0", Prefix: prefix("10.0.0.1/24"), Broadcast: addr("10.0.0.255"), Scope: "global"},
			{Link: "eth0", Prefix: prefix("fd00::1/64"), Scope: "global"}},
		Routes: []Route{{Table: TableMain, Type: "blackhole", Destination: prefix("10.9.0.0/16")}, {Table: TableMain, Type: "prohibit", Destination: prefix("fd09::/64"), Link: "lo"},
			{Table: TableMain, Type: "unicast", Destination: prefix("fd00::/64"), Link: "eth0"}},
	}
	s.Index()
	for _, c := range []struct{ a, link, want string }{
		{"10.0.0.1", "", "local"}, {"10.0.0.1", "eth0", "local"}, {"10.0.0.1", "eth1", "unicast"}, {"127.5.5.5", "", "local"}, {"10.0.0.255", "", "broadcast"},
		{"255.255.255.255", "", "broadcast"}, {"0.1.2.3", "", "broadcast"}, {"224.0.0.1", "", "multicast"}, {"10.9.1.1", "", "unicast"}, {"8.8.8.8", "", "unicast"},
		{"fd00::1", "", "local"}, {"fd00::1", "eth0", "local"}, {"fd00::1", "eth1", "unreachable"}, {"fd00::2", "", "unicast"}, {"fd09::1", "", "prohibit"}, {"2001:db8::1", "", "unreachable"},
		{"ff02::1", "", "multicast"}, {"::", "", "unspec"},
	} {
		if got := s.AddressType(addr(c.a), c.link); got != c.want {
			t.Errorf("%s on %q: %s, want %s", c.a, c.link, got, c.want)
		}
	}
}

// linear is the dumb reference: of all routes that fit, the one with the longest prefix, then the TOS, then the smallest metric, then the first.
func linear(routes []Route, destination netip.Addr, tos uint8) *Route {
	var best *Route
	for i := range routes {
		r := &routes[i]
		if !r.Destination.Contains(destination) || r.TOS != 0 && r.TOS != tos&0x1c {
			continue
		}
		if best == nil || longer(r, best) {
			best = r
		}
	}
	return best
}

func longer(r, best *Route) bool {
	if d := r.Destination.Bits() - best.Destination.Bits(); d != 0 {
		return d > 0
	}
	if r.TOS != best.TOS {
		return r.TOS > best.TOS
	}
	return r.Metric < best.Metric
}

func randomRoutes(r *rand.Rand, n int) []Route {
	routes := make([]Route, n)
	for i := range routes {
		a := netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})
		p, _ := a.Prefix(8 + r.IntN(25))
		routes[i] = Route{Table: TableMain, Type: "unicast", Destination: p, Link: fmt.Sprint("l", r.IntN(9)), Metric: r.IntN(3), TOS: uint8(r.IntN(2) * r.IntN(2) * 0x10)}
	}
	return routes
}

func TestIndexAsLinear(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 10, 1000, 5000} {
		s := &State{Routes: randomRoutes(r, n)}
		s.Index()
		for range 1000 {
			d, tos := netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))}), uint8(r.IntN(2)*0x10)
			want, got := linear(s.Routes, d, tos), s.Lookup(Query{Destination: d, In: "x", TOS: tos})
			if got.Route != want {
				t.Fatalf("%d routes, %v TOS %#x: %+v, want %+v", n, d, tos, got.Route, want)
			}
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		s := &State{Routes: randomRoutes(rand.New(rand.NewPCG(5, 6)), n)}
		s.Index()
		b.Run(fmt.Sprint("routes=", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				s.Lookup(Query{Destination: netip.AddrFrom4([4]byte{10, byte(i), byte(i >> 8), 9}), In: "x"})
			}
		})
		b.Run(fmt.Sprint("linear/routes=", n), func(b *testing.B) {
			for i := range b.N {
				linear(s.Routes, netip.AddrFrom4([4]byte{10, byte(i), byte(i >> 8), 9}), 0)
			}
		})
	}
}

func BenchmarkIndex(b *testing.B) {
	s := &State{Routes: randomRoutes(rand.New(rand.NewPCG(5, 6)), 100_000)}
	for b.Loop() {
		s.Index()
	}
}

// FuzzParse: no parser panics, and nothing that they read makes a look-up panic or go on for ever.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"dst":"default","gateway":"10.0.0.1","dev":"eth0","flags":[]}]`), []byte(`[{"priority":0,"src":"all","goto":5},{"priority":5,"src":"10.0.0.0","srclen":8,"not":null,"table":"main"}]`))
	f.Add([]byte("default metric 5\n\tnexthop via 10.2.0.1 dev a3 weight 5 onlink\nlocal ::1 dev lo table local pref low"), []byte("5:\tfrom all fwmark 1/2 lookup 5 suppress_prefixlength 0"))
	f.Add([]byte("2: eth0@if3: <UP>\n    inet 10.0.0.1 peer 10.0.0.2/32 brd 1.2.3.4 scope link secondary eth0\n"), []byte(`[{"mac":"00:11:22:33:44:55","ifname":"v0","master":"br0","dst":"fe80::1%eth0","dev":"x"}]`))
	f.Fuzz(func(_ *testing.T, one, two []byte) {
		s := &State{}
		s.Links, _ = ParseLinks(one)
		s.Addresses, _ = ParseAddresses(one)
		s.Routes, _ = ParseRoutes(one)
		s.Neighbours, _ = ParseNeighbours(two)
		s.FDB, _ = ParseFDB(two)
		for _, ipv6 := range []bool{false, true} {
			rules, _ := ParseRules(two, ipv6)
			more, _ := ParseRulesText(string(two), ipv6)
			s.Rules = append(append(s.Rules, rules...), more...)
			routes, _ := ParseRoutesText(string(one), ipv6)
			s.Routes = append(s.Routes, routes...)
		}
		more, _ := ParseAddressesText(string(one))
		s.Addresses = append(s.Addresses, more...)
		s.Index()
		for _, d := range []string{"10.0.0.1", "fd00::1", "224.0.0.1", "::"} {
			s.Lookup(Query{Destination: addr(d)})
			s.Lookup(Query{Destination: addr(d), In: "eth0", Source: addr(d)})
			s.Lookup(Query{Destination: addr(d), Out: "eth0"})
			s.AddressType(addr(d), "eth0")
		}
	})
}
