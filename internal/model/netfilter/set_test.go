package netfilter

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/packet"
)

// reference does what Lookup does without an index: it finds the most specific element that holds the whole key, unless a more specific one
// may.
func reference(s *Set, key []Span) (*Element, Found) {
	var fallback, best *Element
	for i := range s.Elements {
		e := &s.Elements[i]
		if len(e.Key) == 0 {
			fallback = e
			continue
		}
		if overlap(e.Key, key) == no {
			continue
		}
		if best == nil || moreSpecific(e.Key, best.Key) {
			best = e
		}
	}
	switch {
	case best == nil && fallback == nil:
		return nil, NotFound
	case best == nil:
		return fallback, IsFound
	case best.Unsure || overlap(best.Key, key) == maybe:
		return nil, CannotTell
	}
	return best, IsFound
}

func moreSpecific(a, b []Span) bool {
	for i := range a {
		if x, y := a[i].Low.xor(a[i].High), b[i].Low.xor(b[i].High); x != y {
			return x.Compare(y) < 0
		}
	}
	return false
}

type randomSets struct{ *rand.Rand }

// prefix returns a random span of a field of so many bits, often a single value and always out of a small range.
func (r randomSets) prefix(width int) Span {
	v := Value{Lo: r.Uint64N(1 << min(width, 7))}
	if width > 64 {
		v.Hi = 0x20010db8 << 32
	}
	if r.IntN(2) == 0 {
		return Exactly(v)
	}
	return Wildcard(v, lowBits(r.IntN(5)).not())
}

func (r randomSets) key(widths []int) []Span {
	key := make([]Span, len(widths))
	for i, w := range widths {
		key[i] = r.prefix(w)
		if r.IntN(3) > 0 {
			key[i] = Exactly(key[i].Low)
		}
	}
	return key
}

// TestLookupPrefixes compares with the reference on sets of overlapping prefixes, as ipset has them.
func TestLookupPrefixes(t *testing.T) {
	for seed := range uint64(200) {
		r := randomSets{rand.New(rand.NewPCG(seed, 1))}
		widths := [][]int{{32}, {128}, {32, 8, 16}, {128, 32}}[r.IntN(4)]
		s := &Set{}
		seen := map[string]bool{}
		for range r.IntN(40) {
			key := make([]Span, len(widths))
			name := ""
			for i, w := range widths {
				key[i] = r.prefix(w)
				name += string(keyName(key[i]))
			}
			if !seen[name] {
				seen[name] = true
				s.Elements = append(s.Elements, Element{Key: key, NoMatch: r.IntN(4) == 0, Unsure: r.IntN(10) == 0})
			}
		}
		if r.IntN(4) == 0 {
			s.Elements = append(s.Elements, Element{Comment: "any"})
		}
		compareLookups(t, r, s, widths, seed)
	}
}

func keyName(s Span) []byte {
	var b []byte
	for _, n := range []uint64{s.Low.Hi, s.Low.Lo, s.High.Hi, s.High.Lo} {
		for i := range 8 {
			b = append(b, byte(n>>(8*i)))
		}
	}
	return b
}

// TestLookupIntervals compares with the reference on sets of ranges that do not overlap, as nft has them.
func TestLookupIntervals(t *testing.T) {
	for seed := range uint64(200) {
		r := randomSets{rand.New(rand.NewPCG(seed, 2))}
		widths := [][]int{{16}, {32, 16}, {128, 16, 8}}[r.IntN(3)]
		s := &Set{}
		for range r.IntN(30) {
			key := make([]Span, len(widths))
			for i := range widths {
				low := Value{Lo: r.Uint64N(128)}
				key[i] = Span{low, low.plus(Value{Lo: r.Uint64N(20)})}
			}
			free := true
			for _, e := range s.Elements {
				free = free && overlap(e.Key, key) == no
			}
			if free {
				s.Elements = append(s.Elements, Element{Key: key})
			}
		}
		compareLookups(t, r, s, widths, seed)
	}
}

func compareLookups(t *testing.T, r randomSets, s *Set, widths []int, seed uint64) {
	t.Helper()
	for range 200 {
		key := r.key(widths)
		e, found := s.Lookup(key)
		want, wantFound := reference(s, key)
		if found == CannotTell && wantFound == CannotTell {
			continue
		}
		if e != want || found != wantFound {
			t.Fatalf("seed %d: %v in %v: %v %v, want %v %v", seed, key, s.Elements, e, found, want, wantFound)
		}
	}
}

func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		low := r.Uint64N(300)
		s := Span{Value{Lo: low}, Value{Lo: low + r.Uint64N(300)}}
		covered := map[uint64]int{}
		for _, p := range pieces(s) {
			for v := p.value.Lo; v <= p.value.or(p.mask.not()).Lo; v++ {
				covered[v]++
			}
		}
		for v := uint64(0); v < 700; v++ {
			if want := v >= s.Low.Lo && v <= s.High.Lo; (covered[v] == 1) != want || covered[v] > 1 {
				t.Fatalf("%v: %d is covered %d times", s, v, covered[v])
			}
		}
	}
	if n := len(pieces(Span{High: AllOnes})); n != 1 {
		t.Errorf("everything is %d prefixes", n)
	}
	if n := len(pieces(Span{Value{Lo: 2}, Value{Lo: 1}})); n != 0 {
		t.Errorf("nothing is %d prefixes", n)
	}
}

// setHost has sets and nothing else.
type setHost map[string]*Set

func (setHost) Recent(string) (RecentList, bool)                   { return nil, false }
func (h setHost) IPSet(name string) (*Set, bool)                   { s, ok := h[name]; return s, ok }
func (setHost) AddressType(netip.Addr, string) (AddressType, bool) { return 0, false }
func (setHost) Route(RouteQuery) (RouteAnswer, bool)               { return RouteAnswer{}, false }
func (setHost) Link(string) (Link, bool)                           { return Link{}, false }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefixSpan(s string) Span {
	p := netip.MustParsePrefix(s)
	return Wildcard(AddressValue(p.Addr()), PrefixMask(p.Bits(), p.Addr().Is6()).or(lowBits(32).not()))
}

func TestSetMatches(t *testing.T) {
	tcp, udp := Number(6), Number(17)
	host := setHost{
		"nets": {Kind: "hash:net", Fields: []string{"ipv4_addr"}, Elements: []Element{
			{Key: []Span{prefixSpan("10.0.0.0/8")}}, {Key: []Span{prefixSpan("10.1.0.0/16")}, NoMatch: true},
			{Key: []Span{prefixSpan("10.1.2.0/24")}}}},
		"ports": {Kind: "hash:ip,port", Fields: []string{"ipv4_addr", "inet_proto", "inet_service"}, Elements: []Element{
			{Key: []Span{prefixSpan("10.0.0.2/32"), tcp, Number(80)}}, {Key: []Span{prefixSpan("10.0.0.2/32"), udp, Number(53)}}}},
		"numbers": {Kind: "bitmap:port", Fields: []string{"inet_service"}, Elements: []Element{{Key: []Span{Number(80)}}}},
		"macs":    {Kind: "hash:mac", Fields: []string{"ether_addr"}, Elements: []Element{{Key: []Span{Number(0xaabbccddeeff)}}}},
		"links": {Kind: "hash:net,iface", Fields: []string{"ipv4_addr", "ifname"}, Elements: []Element{
			{Key: []Span{prefixSpan("10.0.0.0/8"), Exactly(NameValue("eth0"))}},
			{Key: []Span{prefixSpan("10.9.0.0/16"), Exactly(NameValue("eth9"))}}}},
		"marks": {Kind: "hash:ip,mark", Fields: []string{"ipv4_addr", "mark"}, Masks: []Value{AllOnes, {Lo: 0xff}},
			Elements: []Element{{Key: []Span{prefixSpan("10.0.0.2/32"), Number(5)}}}},
		"six":  {Kind: "hash:net", Fields: []string{"ipv6_addr"}, Elements: []Element{{Key: []Span{{High: AllOnes}}}}},
		"list": {Kind: "list:set", Elements: []Element{{Set: "six"}, {Set: "ports"}}},
		"part": {Kind: "list:set", Elements: []Element{{Set: "six"}, {Set: "absent"}}},
	}
	base := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Source: addr("10.1.2.3"), Destination: addr("10.0.0.2"),
		SourcePort: packet.Exactly(1234), DestinationPort: packet.Exactly(80)},
		Frame: packet.Frame{Source: packet.MAC{0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}},
		Local: packet.Local{In: "eth0", Mark: 0x105}}
	src, dst := []bool{true}, []bool{false}
	for _, c := range []struct {
		set        string
		sources    []bool
		change     func(p *packet.Packet)
		exceptions bool
		want       truth
	}{
		{"nets", src, nil, false, yes},
		{"nets", src, func(p *packet.Packet) { p.Source = addr("10.1.3.3") }, false, no},
		{"nets", dst, nil, false, yes},
		{"nets", nil, nil, false, no},
		{"six", src, nil, false, no},
		{"ports", []bool{false, false}, nil, false, yes},
		{"ports", []bool{false, true}, nil, false, no},
		{"ports", dst, nil, false, no},
		{"ports", []bool{false, false}, func(p *packet.Packet) { p.Protocol = packet.UDP }, false, no},
		{"ports", []bool{false, false}, func(p *packet.Packet) { p.Offset = 8 }, false, no},
		{"ports", []bool{false, false}, func(p *packet.Packet) { p.DestinationPort = packet.OneOf(1, 100, 80) }, false, maybe},
		{"ports", []bool{false, false}, func(p *packet.Packet) { p.DestinationPort = packet.OneOf(100, 200, 100) }, false, no},
		{"numbers", dst, nil, false, yes},
		{"numbers", dst, func(p *packet.Packet) { p.Protocol = packet.ICMP }, false, no},
		{"macs", src, nil, false, yes},
		{"macs", src, func(p *packet.Packet) { p.Frame.Source = packet.MAC{} }, false, maybe},
		{"macs", src, func(p *packet.Packet) { p.In = "lo" }, false, no},
		{"links", []bool{false, true}, nil, false, yes},
		{"links", []bool{false, true}, func(p *packet.Packet) { p.In = "eth1" }, false, no},
		{"links", []bool{false, true}, func(p *packet.Packet) { p.Destination = addr("10.9.0.1") }, false, no},
		{"links", []bool{false, true}, func(p *packet.Packet) { p.Destination, p.In = addr("10.9.0.1"), "" }, false, maybe},
		{"links", []bool{false, true}, func(p *packet.Packet) { p.Destination = netip.Addr{} }, false, maybe},
		{"links", []bool{false, true}, func(p *packet.Packet) { p.In = "" }, false, maybe},
		{"marks", []bool{false, false}, nil, false, yes},
		{"marks", []bool{false, false}, func(p *packet.Packet) { p.Mark = 6 }, false, no},
		{"list", []bool{false, false}, nil, false, yes},
		{"part", []bool{false, false}, nil, false, maybe},
	} {
		p := base
		if c.change != nil {
			c.change(&p)
		}
		set, ok := host[c.set]
		if !ok {
			t.Fatalf("no set %s", c.set)
		}
		if got := set.matches(&Context{Packet: &p, Hook: Forward, Host: host}, c.sources, c.exceptions); got != c.want {
			t.Errorf("%s %v, %v: %d, want %d", c.set, c.sources, p.Tuple, got, c.want)
		}
	}
}
