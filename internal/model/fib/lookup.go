package fib

import (
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Query is what a route is looked up for (kernel: struct flowi4, flowi6).
type Query struct {
	Source, Destination         netip.Addr // Source is zero while the sender has not chosen one
	In                          string     // interface that the packet came in by; "" for local output
	Out                         string     // bound interface; ""
	Mark                        uint32
	TOS                         uint8
	Protocol                    packet.Protocol
	SourcePort, DestinationPort packet.Port
	UID                         uint32 // of the sending socket's owner; 0 for packets that came in
	// PortIn decides whether a port is in the span that a policy rule tests. It is asked where the port is one out of several, of which
	// some are in the span. Where it is nil, the answer is Unknown.
	PortIn func(PortTest) bool
}

// PortTest is whether a packet's port is in the span of a policy rule, both ends included.
type PortTest struct {
	Port      packet.Port
	Low, High uint16
}

func (t PortTest) String() string {
	return fmt.Sprintf("the packet's port, one out of %s, is one of a policy rule's: %d-%d", t.Port, t.Low, t.High)
}

// Answer is where a packet goes and why.
type Answer struct {
	Type string // as Route.Type; "none" when no route fits (network is unreachable)
	// Route is what decided; nil for none: where no route fits, and where the kernel does without one (broadcasts and multicasts that
	// came in, and packets of a socket that is bound to Link, which are then taken to be for a neighbour on it).
	Route *Route
	Rule  *Rule // policy rule that led to it; nil where there are no rules in the state (then the usual three are assumed)
	// Link is the interface that it goes out of. For the machine's own addresses (Type "local", in IPv6 "anycast" too) it is the loopback
	// device, as in "ip route get"; the interface that has the address is in Route.
	Link    string
	Gateway netip.Addr // zero: the destination is on the link
	Source  netip.Addr // preferred source for local output
	// Ways are the possible next hops of a multipath route, each with its weight; Link and Gateway are those of the first.
	Ways []Nexthop
	// Considered are the policy rules that were met before, with why each did not decide.
	Considered []SkippedRule
	// Unknown is not empty where something that is not understood could have decided otherwise: what it is.
	Unknown string
}

// SkippedRule is a policy rule that did not decide.
type SkippedRule struct {
	Rule *Rule
	Why  string
}

// Take returns the answer for one of its Ways.
func (a Answer) Take(way int) Answer {
	w := a.Ways[way]
	a.Link, a.Gateway, a.Ways = w.Link, w.Gateway, nil
	if w.Source.IsValid() {
		a.Source = w.Source
	}
	return a
}

// NextHop returns the address whose link-layer address a packet to a destination needs.
func (a *Answer) NextHop(destination netip.Addr) netip.Addr {
	if a.Gateway.IsValid() {
		return a.Gateway
	}
	return destination
}

// Forwards reports whether the answer lets a packet go anywhere, rather than refusing it.
func (a Answer) Forwards() bool { return !refuses(a.Type) && a.Type != "none" }

// refuses tells of the types of routes and rules that answer with an error (fib_props, net/ipv4/fib_semantics.c).
func refuses(kind string) bool {
	switch kind {
	case "blackhole", "unreachable", "prohibit", "throw":
		return true
	}
	return false
}

// loopback is the name of the loopback device: the kernel makes it with every namespace.
const loopback = "lo"

var everyone = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// search is one look-up.
type search struct {
	s      *State
	x      *index
	q      Query
	fam    int
	link   string // that next hops should have: the bound one; for IPv6 also the one that the packet came in by
	strict bool   // no other link will do (IPv6: RT6_LOOKUP_F_IFACE)
	a      Answer
	// What was found: the next hop of the route that the search ended at, and those that the kernel's hash chooses from.
	way  Nexthop
	ways []Nexthop
}

// Lookup finds where a packet goes, as ip_route_input_slow and ip_route_output_key_hash_rcu do for IPv4 (net/ipv4/route.c), and
// ip6_route_input and ip6_route_output for IPv6 (net/ipv6/route.c). The checks around it are the caller's: martian addresses,
// rp_filter, forwarding.
func (s *State) Lookup(q Query) Answer {
	l := search{s: s, x: s.indexed(), q: q, fam: family(q.Destination), a: Answer{Type: "none"}}
	if l.fam == 0 && l.withoutRoute() {
		return l.a
	}
	l.link, l.strict = q.Out, q.Out != ""
	if l.fam == 1 {
		l.scopeIPv6()
	}
	if l.vrf() {
		l.unknown("links of a VRF: their routing is not understood")
	}
	if q.Out != "" && q.In == "" && !l.up(q.Out) {
		return l.a
	}
	l.rules()
	l.decide()
	return l.a
}

// scopeIPv6 finds what link an IPv6 look-up prefers or insists on (ip6_route_output_flags, ip6_route_input_lookup: rt6_need_strict).
func (l *search) scopeIPv6() {
	d := l.q.Destination
	if l.q.In != "" {
		l.link = l.q.In
	}
	l.strict = l.strict || d.IsMulticast() || d.IsLinkLocalUnicast() || d.IsLoopback()
}

func (l *search) vrf() bool {
	if !l.x.hasVRF {
		return false
	}
	for _, name := range []string{l.q.In, l.q.Out} {
		link := l.x.links[name]
		if link == nil {
			continue
		}
		if master := l.x.links[link.Master]; link.Kind == "vrf" || master != nil && master.Kind == "vrf" {
			return true
		}
	}
	return false
}

// up reports whether a link is up, as far as it is known.
func (l *search) up(name string) bool {
	link := l.x.links[name]
	return link == nil || link.Up
}

// localMulticast are groups that stay on their link (RFC 5771).
var localMulticast = netip.MustParsePrefix("224.0.0.0/24")

// withoutRoute answers for what IPv4 decides before it looks at routes: broadcast and multicast that came in
// (ip_route_input_rcu, ip_route_input_slow), or that a socket bound to a link or an address sends. Multicast beyond the link has a source
// by then.
func (l *search) withoutRoute() bool {
	q := l.q
	kind := "multicast"
	if q.Destination == everyone {
		kind = "broadcast"
	} else if !q.Destination.IsMulticast() {
		return false
	}
	if q.In != "" {
		l.a.Type, l.a.Link = kind, q.In
		return true
	}
	link := q.Out
	if link == "" && q.Source.IsValid() {
		link = l.linkOf(q.Source)
	}
	switch {
	case link == "" || !l.up(link):
		return false
	case q.Out != "" && kind == "multicast" && !localMulticast.Contains(q.Destination):
		if !q.Source.IsValid() {
			l.q.Source = l.s.selectAddress(link, netip.Addr{}, 0)
		}
		return false
	}
	l.a.Type, l.a.Link, l.a.Source = kind, link, q.Source
	if !q.Source.IsValid() {
		l.a.Source = l.s.selectAddress(link, netip.Addr{}, scopeLink)
	}
	return true
}

// linkOf returns the link that has an address of the machine; "" for none.
func (l *search) linkOf(a netip.Addr) string {
	found := ""
	for i := range l.s.Addresses {
		own := &l.s.Addresses[i]
		switch {
		case own.Prefix.Addr() != a:
		case found == "":
			found = own.Link
		case found != own.Link:
			l.unknown("address " + a.String() + " is on " + found + " and on " + own.Link + ": the kernel takes the one that was added last")
			return found
		}
	}
	return found
}

func (l *search) unknown(what string) {
	if l.a.Unknown != "" {
		what = l.a.Unknown + "; " + what
	}
	l.a.Unknown = what
}

func (l *search) considered(r *Rule, why string) {
	if r != nil {
		l.a.Considered = append(l.a.Considered, SkippedRule{r, why})
	}
}

// KernelSince reports whether the machine's kernel is of a release or a later one; known is false where its release is not known.
func (s *State) KernelSince(major, minor int) (since, known bool) {
	var a, b int
	if n, err := fmt.Sscanf(s.Kernel, "%d.%d", &a, &b); n != 2 || err != nil {
		return false, false
	}
	return a > major || a == major && b >= minor, true
}
