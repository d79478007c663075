package fib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/model/packet"
)

var compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestPortSpan: a source port that the kernel has yet to pick, in and out of a rule's range.
func TestPortSpan(t *testing.T) {
	rule := Rule{Priority: 100, SourcePorts: RulePorts{First: 1000, Last: 40000}, Action: "unreachable", SuppressPrefixLength: -1,
		SuppressGroup: -1}
	s := &State{Rules: []Rule{rule, usualRules[0][1]},
		Routes: []Route{{Table: TableMain, Type: "unicast", Destination: prefix("0.0.0.0/0"), Link: "eth0"}}}
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
		a := s.Lookup(Query{Source: addr("10.0.0.1"), Destination: addr("1.1.1.1"), Protocol: packet.TCP, SourcePort: c.port,
			DestinationPort: packet.Exactly(80), In: "eth1"})
		if a.Type != c.kind || (a.Unknown != "") != c.unknown {
			t.Errorf("%v: %s, unknown %q", c.port, a.Type, a.Unknown)
		}
	}
}

// TestWays: a multipath route gives each way with its weight, and what each makes the sender's address.
func TestWays(t *testing.T) {
	s := &State{
		Addresses: []Address{{Link: "a", Prefix: prefix("10.0.0.1/24"), Scope: "global"},
			{Link: "b", Prefix: prefix("10.0.1.1/24"), Scope: "global"}},
		Routes: []Route{{Table: TableMain, Type: "unicast", Destination: prefix("0.0.0.0/0"), Scope: "global", Nexthops: []Nexthop{
			{Gateway: addr("10.0.0.254"), Link: "a", Weight: 2}, {Gateway: addr("10.0.1.254"), Link: "b", Weight: 1},
			{Gateway: addr("10.0.2.254"), Link: "c", Weight: 1, Dead: true}}}},
	}
	s.Index()
	a := s.Lookup(Query{Destination: addr("1.1.1.1")})
	want := []Nexthop{{Gateway: addr("10.0.0.254"), Link: "a", Weight: 2, Source: addr("10.0.0.1")},
		{Gateway: addr("10.0.1.254"), Link: "b", Weight: 1, Source: addr("10.0.1.1")}}
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
	s = &State{Routes: routes, Rules: append([]Rule{{Priority: 50, Mark: 9, Mask: 9, Action: "lookup", Table: 9, SuppressPrefixLength: -1,
		SuppressGroup: -1}}, usualRules[0]...)}
	s.Rules[0].Priority, s.Rules[1].Priority = 1, 0
	s.Index()
	if a := s.Lookup(Query{Destination: addr("10.1.2.3"), In: "eth1"}); a.Type != "local" || a.Unknown != "" {
		t.Errorf("with rules: %+v", a)
	}
}

func TestAddressType(t *testing.T) {
	s := &State{
		Addresses: []Address{
			{Link: "lo", Prefix: prefix("127.0.0.1/8"), Scope: "host"},
			{Link: "eth0", Prefix: prefix("10.0.0.1/24"), Broadcast: addr("10.0.0.255"), Scope: "global"},
			{Link: "eth0", Prefix: prefix("fd00::1/64"), Scope: "global"}},
		Routes: []Route{{Table: TableMain, Type: "blackhole", Destination: prefix("10.9.0.0/16")},
			{Table: TableMain, Type: "prohibit", Destination: prefix("fd09::/64"), Link: "lo"},
			{Table: TableMain, Type: "unicast", Destination: prefix("fd00::/64"), Link: "eth0"}},
	}
	s.Index()
	for _, c := range []struct{ a, link, want string }{
		{"10.0.0.1", "", "local"}, {"10.0.0.1", "eth0", "local"}, {"10.0.0.1", "eth1", "unicast"}, {"127.5.5.5", "", "local"},
		{"10.0.0.255", "", "broadcast"},
		{"255.255.255.255", "", "broadcast"}, {"0.1.2.3", "", "broadcast"}, {"224.0.0.1", "", "multicast"}, {"10.9.1.1", "", "unicast"},
		{"8.8.8.8", "", "unicast"},
		{"fd00::1", "", "local"}, {"fd00::1", "eth0", "local"}, {"fd00::1", "eth1", "unreachable"}, {"fd00::2", "", "unicast"},
		{"fd09::1", "", "prohibit"}, {"2001:db8::1", "", "unreachable"},
		{"ff02::1", "", "multicast"}, {"::", "", "unspec"},
	} {
		if got := s.AddressType(addr(c.a), c.link); got != c.want {
			t.Errorf("%s on %q: %s, want %s", c.a, c.link, got, c.want)
		}
	}
}

// linear finds a route in the simplest way: of all routes that fit, the one with the longest prefix, then the TOS, then the smallest
// metric, then the first.
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
		routes[i] = Route{Table: TableMain, Type: "unicast", Destination: p, Link: fmt.Sprint("l", r.IntN(9)), Metric: r.IntN(3),
			TOS: uint8(r.IntN(2) * r.IntN(2) * 0x10)}
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
