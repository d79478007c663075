package fib

import "net/netip"

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
	return []Nexthop{{Gateway: r.Gateway, Link: r.Link, Weight: 1, OnLink: r.OnLink, Dead: r.Dead}}
}

// ipv4 does what fib_table_lookup does (net/ipv4/fib_trie.c): longest prefix, TOS, priority. It passes over a route none of whose next hops
// can be used.
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

// legacyTOS returns the bits of the TOS field that IPv4's routes and rules compare (INET_DSCP_LEGACY_TOS_MASK, include/net/inet_dscp.h).
func legacyTOS(tos uint8) uint8 { return tos & 0x1c }

func (l *search) pickIPv4(r *Route) bool {
	if len(r.Nexthops) == 0 {
		n := Nexthop{Gateway: r.Gateway, Link: r.Link, Weight: 1, OnLink: r.OnLink, Dead: r.Dead}
		if n.Dead || l.q.Out != "" && n.Link != l.q.Out {
			return false
		}
		l.way, l.ways = n, nil
		return true
	}
	first := -1
	l.ways = nil
	for i := range r.Nexthops {
		n := &r.Nexthops[i]
		if n.Dead {
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

// ipv6 does what fib6_table_lookup does (net/ipv6/route.c): it goes from the longest destination prefix to shorter ones, and within each
// from the longest source prefix to none.
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

// node does what rt6_select does with the routes of one node: those of the lowest metric first; where none of these fits, all others alike
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
			if n.Dead {
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

// score does what rt6_score_route does, without the reachability of neighbours, which counts on machines that do not forward only.
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
		case n.Dead:
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
