package fib

import (
	"fmt"
	"net/netip"
	"slices"

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
	Considered []Considered
	// Unknown is not empty where something that is not understood could have decided otherwise: what it is.
	Unknown string
}

// Considered is a policy rule that did not decide.
type Considered struct {
	Rule *Rule
	Why  string
}

// Take is the answer for one of its Ways.
func (a Answer) Take(way int) Answer {
	w := a.Ways[way]
	a.Link, a.Gateway, a.Ways = w.Link, w.Gateway, nil
	if w.Source.IsValid() {
		a.Source = w.Source
	}
	return a
}

// Forwards tells whether the answer lets a packet go anywhere, rather than refusing it.
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

// up tells whether a link is up, as far as it is known.
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

// linkOf is the link that has an address of the machine; "" for none.
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
		l.a.Considered = append(l.a.Considered, Considered{r, why})
	}
}

// table looks a table up. It returns nil where no route of it fits.
func (l *search) table(t *table) *Route {
	switch {
	case t == nil:
		return nil
	case l.fam == 0:
		return l.ipv4(t)
	}
	return l.ipv6(t)
}

// hops lists a route's next hops.
func (r *Route) hops() []Nexthop {
	if len(r.Nexthops) > 0 {
		return r.Nexthops
	}
	return []Nexthop{{Gateway: r.Gateway, Link: r.Link, Weight: 1, OnLink: r.OnLink, LinkDown: r.LinkDown, Dead: r.Dead}}
}

// usable tells of next hops that can be used at all (fib_lookup_good_nhc, find_match). A link without carrier is no reason against one
// unless the link is set so.
func (l *search) usable(n *Nexthop) bool {
	return !n.Dead && (!n.LinkDown || !l.s.IgnoreLinkDown[n.Link])
}

// ipv4 is fib_table_lookup (net/ipv4/fib_trie.c): longest prefix, TOS, priority; a route none of whose next hops can be used is passed
// over.
func (l *search) ipv4(t *table) *Route {
	for _, bits := range t.lengths {
		p, err := l.q.Destination.Prefix(bits)
		if err != nil {
			continue
		}
		for _, r := range t.routes[p] {
			if r.TOS != 0 && r.TOS != legacyTOS(l.q.TOS) {
				continue
			}
			if refuses(r.Type) || l.pickIPv4(r) {
				return r
			}
		}
	}
	return nil
}

// legacyTOS are the bits of the TOS field that IPv4's routes and rules compare (INET_DSCP_LEGACY_TOS_MASK, include/net/inet_dscp.h).
func legacyTOS(tos uint8) uint8 { return tos & 0x1c }

func (l *search) pickIPv4(r *Route) bool {
	if len(r.Nexthops) == 0 {
		n := Nexthop{Gateway: r.Gateway, Link: r.Link, Weight: 1, OnLink: r.OnLink, LinkDown: r.LinkDown, Dead: r.Dead}
		if !l.usable(&n) || l.q.Out != "" && n.Link != l.q.Out {
			return false
		}
		l.way, l.ways = n, nil
		return true
	}
	first := -1
	l.ways = nil
	for i := range r.Nexthops {
		n := &r.Nexthops[i]
		if !l.usable(n) {
			continue
		}
		if first < 0 && (l.q.Out == "" || n.Link == l.q.Out) {
			first = i
		}
		l.ways = append(l.ways, *n)
	}
	if first < 0 {
		return false
	}
	l.way = r.Nexthops[first]
	if l.q.Out != "" { // fib_select_path leaves bound packets where they are
		l.ways = nil
	}
	return true
}

// ipv6 is fib6_table_lookup (net/ipv6/route.c): from the longest destination prefix to shorter ones, and within each from the longest
// source prefix to none.
func (l *search) ipv6(t *table) *Route {
	started := false
	for _, bits := range t.lengths {
		p, err := l.q.Destination.Prefix(bits)
		if err != nil {
			continue
		}
		list := t.routes[p]
		if len(list) == 0 {
			continue
		}
		froms := l.sources(list)
		// A prefix that has routes for certain sources only, none of them this one, is not where the search starts, and then its other
		// routes are not looked at either (fib6_node_lookup_1). Once it has started, they are (fib6_backtrack), and ::/0 is always where it
		// ends up.
		if !started && bits > 0 && len(froms) == 0 && sourceSpecific(list) {
			continue
		}
		started = true
		for _, from := range append(froms, netip.Prefix{}) {
			if r := l.node(list, from); r != nil {
				return r
			}
		}
	}
	return nil
}

func sourceSpecific(list []*Route) bool {
	for _, r := range list {
		if r.From.IsValid() {
			return true
		}
	}
	return false
}

// sources lists the source prefixes among the routes that hold the query's source, longest first.
func (l *search) sources(list []*Route) []netip.Prefix {
	var froms []netip.Prefix
	source := l.q.Source
	if !source.IsValid() {
		source = netip.IPv6Unspecified()
	}
	for bits := 128; bits > 0; bits-- {
		for _, r := range list {
			if r.From.IsValid() && r.From.Bits() == bits && r.From.Contains(source) {
				froms = append(froms, r.From)
				break
			}
		}
		if !sourceSpecific(list) {
			break
		}
	}
	return froms
}

// node is rt6_select: the routes of one node, those of the lowest metric first; where none of these fits, all others alike
// (find_rr_leaf). The highest score wins, the first of equals.
func (l *search) node(list []*Route, from netip.Prefix) *Route {
	var best *Route
	score, metric, first := -1, 0, true
	for _, r := range list {
		if r.From != from {
			continue
		}
		if first {
			metric, first = r.Metric, false
		}
		if r.Metric != metric {
			if best != nil && best.Metric == metric {
				break
			}
		}
		for _, n := range r.hops() {
			if !l.usable(&n) {
				continue
			}
			if got := l.score(r, &n); got > score {
				best, score, l.way = r, got, n
			}
		}
	}
	if best != nil {
		l.ways = l.hashed(best)
	}
	return best
}

// score is rt6_score_route, without the reachability of neighbours, which counts on machines that do not forward only.
func (l *search) score(r *Route, n *Nexthop) int {
	m := 0
	switch {
	case l.link == "" || l.link == n.Link:
		m = 2
	case l.strict:
		return -3
	}
	return m | map[string]int{"low": 1, "": 2, "medium": 2, "high": 3}[r.Preference]<<2
}

// hashed gives the ways of a multipath route (fib6_select_path): a way that the hash picks but that has the wrong link gives its share to
// the one that was found.
func (l *search) hashed(r *Route) []Nexthop {
	if len(r.Nexthops) == 0 {
		return nil
	}
	var ways []Nexthop
	extra := 0
	for i := range r.Nexthops {
		n := r.Nexthops[i]
		switch {
		case !l.usable(&n):
		case l.score(r, &n) < 0:
			extra += n.Weight
		default:
			ways = append(ways, n)
		}
	}
	for i := range ways {
		if ways[i].Link == l.way.Link && ways[i].Gateway == l.way.Gateway {
			ways[i].Weight += extra
			break
		}
	}
	return ways
}

// decide makes the answer from the route that the search ended at.
func (l *search) decide() {
	a := &l.a
	if a.Route != nil && a.Route.Unknown != "" {
		l.unknown("route to " + a.Route.Destination.String() + ": " + a.Route.Unknown)
	}
	output := l.q.In == ""
	if l.fam == 0 && output && l.q.Out != "" && !a.Forwards() {
		// "Apparently, routing tables are wrong": the destination is taken to be on the link (ip_route_output_key_hash_rcu).
		a.Type, a.Route, a.Rule, a.Link = "unicast", nil, nil, l.q.Out
		a.Source = l.q.Source
		if !a.Source.IsValid() {
			a.Source = l.s.selectAddress(l.q.Out, netip.Addr{}, scopeLink)
		}
		l.castIPv4()
		return
	}
	if a.Route == nil || !a.Forwards() {
		return
	}
	if len(l.ways) > 0 {
		l.way = l.ways[0]
	}
	if len(l.ways) > 1 {
		a.Ways = l.ways
	}
	a.Link, a.Gateway = l.way.Link, l.way.Gateway
	if output {
		l.source()
	}
	if l.fam == 0 {
		l.ownGateways()
	}
	if a.Type == "local" || a.Type == "anycast" {
		a.Link, a.Gateway, a.Ways = loopback, netip.Addr{}, nil
	}
	if l.fam == 0 && output {
		l.castIPv4()
	}
}

// ownGateways takes gateways away that are addresses of the machine itself: such a next hop has host scope, and what is sent by it is
// for a neighbour on the link (fib_check_nh_v4_gw, net/ipv4/fib_semantics.c; rt_set_nexthop). The kernel looks when the route is added:
// for gateways within other routes of type local it depends on which was there first, and nobody can tell.
func (l *search) ownGateways() {
	own := func(n *Nexthop) bool {
		if n.OnLink || !n.Gateway.Is4() {
			return false
		}
		if l.x.addresses[n.Gateway] != nil {
			return true
		}
		for _, r := range l.x.anyIP {
			if r.Destination.Contains(n.Gateway) {
				l.unknown("gateway " + n.Gateway.String() + " is in " + r.Destination.String() +
					", which is the machine's own: whether it is used depends on which route was added first")
				break
			}
		}
		return false
	}
	a := &l.a
	if len(a.Ways) == 0 {
		if own(&l.way) {
			a.Gateway = netip.Addr{}
		}
		return
	}
	a.Ways = slices.Clone(a.Ways)
	for i := range a.Ways {
		if own(&a.Ways[i]) {
			a.Ways[i].Gateway = netip.Addr{}
		}
	}
	a.Gateway = a.Ways[0].Gateway
}

// castIPv4 is what __mkroute_output does to broadcasts and multicasts: no gateway, unless a route is for them.
func (l *search) castIPv4() {
	a := &l.a
	switch {
	case l.q.Destination == everyone:
		a.Type = "broadcast"
		a.onLink()
	case l.q.Destination.IsMulticast():
		a.Type = "multicast"
		if a.Route != nil && a.Route.Destination.Bits() < 4 {
			a.onLink()
		}
	}
}

// onLink takes the gateways away.
func (a *Answer) onLink() {
	a.Gateway = netip.Addr{}
	a.Ways = slices.Clone(a.Ways)
	for i := range a.Ways {
		a.Ways[i].Gateway = netip.Addr{}
	}
}

// source finds the source address of local output.
func (l *search) source() {
	a := &l.a
	if l.q.Source.IsValid() {
		a.Source = l.q.Source
		l.sourceWay()
		return
	}
	a.Source = l.prefer(a.Route, &Nexthop{Link: a.Link, Gateway: a.Gateway})
	if len(a.Ways) == 0 {
		return
	}
	ways := slices.Clone(a.Ways)
	for i := range ways {
		ways[i].Source = l.prefer(a.Route, &ways[i])
	}
	a.Ways = ways
}

// sourceWay narrows IPv4's multipath routes where the sender has its address already: since Linux 6.16 the ways whose own address that is
// come before the others, and the first of them takes what the hash gives to a way behind the last (fib_select_multipath,
// net/ipv4/fib_semantics.c).
func (l *search) sourceWay() {
	if l.fam == 1 {
		return
	}
	var own []Nexthop
	passed := 0 // weight of the ways since the last that is the sender's
	for _, w := range l.a.Ways {
		passed += max(w.Weight, 1)
		if l.prefer(&Route{Scope: l.a.Route.Scope, Type: l.a.Type}, &w) == l.q.Source {
			w.Weight = passed
			own, passed = append(own, w), 0
		}
	}
	if len(own) == 0 || len(own) == len(l.a.Ways) {
		return
	}
	switch newer, known := l.s.KernelSince(6, 16); {
	case !known:
		l.unknown("since Linux 6.16 a way whose link has the source address comes before the others")
	case newer:
		own[0].Weight += passed
		l.a.Ways, l.a.Link, l.a.Gateway = own, own[0].Link, own[0].Gateway
	}
}

// KernelSince tells whether the machine's kernel is of a release or a later one; known is false where its release is not known.
func (s *State) KernelSince(major, minor int) (since, known bool) {
	var a, b int
	if n, err := fmt.Sscanf(s.Kernel, "%d.%d", &a, &b); n != 2 || err != nil {
		return false, false
	}
	return a > major || a == major && b >= minor, true
}

// prefer is fib_result_prefsrc for IPv4 and ip6_route_get_saddr for IPv6.
func (l *search) prefer(r *Route, n *Nexthop) netip.Addr {
	switch {
	case r.Source.IsValid():
		return r.Source
	case l.fam == 1:
		return l.s.selectIPv6(n.Link, l.q.Destination)
	case r.Type == "local":
		return l.q.Destination
	case n.Gateway.Is4():
		return l.s.selectAddress(n.Link, n.Gateway, scopeNumber(r.Scope))
	}
	return l.s.selectAddress(n.Link, netip.Addr{}, scopeNumber(r.Scope))
}
