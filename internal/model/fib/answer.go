package fib

import (
	"net/netip"
	"slices"
)

// decide makes the answer from the route that the search ended at.
func (l *search) decide() {
	a := &l.a
	if a.Route != nil && a.Route.Unknown != "" {
		l.unknown("route to " + a.Route.Destination.String() + ": " + a.Route.Unknown)
	}
	output := l.q.In == ""
	if l.fam == 0 && output && l.q.Out != "" && !a.Forwards() {
		// "Apparently, routing tables are wrong": the kernel assumes that the destination is on the link (ip_route_output_key_hash_rcu).
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

// ownGateways removes gateways that are addresses of the machine itself. Such a next hop has host scope, and a packet sent by it is for a
// neighbour on the link (fib_check_nh_v4_gw, net/ipv4/fib_semantics.c; rt_set_nexthop). The kernel looks when the route is added. For
// gateways within other routes of type local the result depends on which route was added first, which is unknown.
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

// castIPv4 does what __mkroute_output does to broadcasts and multicasts: no gateway, unless a route is for them.
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

// prefer returns the preferred source address: fib_result_prefsrc for IPv4 and ip6_route_get_saddr for IPv6.
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
