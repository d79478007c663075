package walk

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// lookUp finds the packet's route as it is now, with the way that is chosen where it has several.
func (t *transit) lookUp(in string) *fib.Answer {
	p := &t.p
	t.m.sayMissingPolicy(p.IsIPv6())
	if why := t.m.Partial[snapshot.Routes]; why != "" {
		t.m.assumeMissing(snapshot.Routes, "its routes are not all known: "+why)
	}
	if p.AssumedOwner && slices.ContainsFunc(t.m.FIB.Rules, func(r fib.Rule) bool { return r.HasUIDs && r.IPv6 == p.IsIPv6() }) {
		t.assumeOwner()
	}
	a := t.m.FIB.Lookup(fib.Query{
		Source: p.Source, Destination: p.Destination, In: in, Mark: p.Mark, TOS: p.TOS,
		Protocol: p.Protocol, SourcePort: p.SourcePort, DestinationPort: p.DestinationPort, UID: p.UID,
		PortIn: t.portIn,
	})
	if packet.IsRedacted(p.Destination) && t.m.FIB.HasAddress(p.Destination) == nil {
		a.Unknown = "the destination is redacted"
	}
	if len(a.Ways) > 1 {
		a = a.Take(t.choose(netfilter.Hash, nextHopTo{p.Destination}, ways(a.Ways)))
	}
	return &a
}

func ways(nexthops []fib.Nexthop) []netfilter.Option {
	options := make([]netfilter.Option, len(nexthops))
	for i, n := range nexthops {
		options[i] = netfilter.Option{Label: "dev " + n.Link, Weight: uint64(max(n.Weight, 1))}
		if n.Gateway.IsValid() {
			options[i].Label = "via " + n.Gateway.String() + " " + options[i].Label
		}
	}
	return options
}

// receiveIP handles a packet that came up from interface In (ip_rcv).
func (t transit) receiveIP() passage {
	if t.p.Cast == packet.OtherHost {
		return t.finish(Dropped, fmt.Sprintf("the frame is for %s, which is not this host's", t.p.Frame.Destination))
	}
	if why := invalid(&t.p); why != "" {
		return t.finish(Dropped, why)
	}
	if t.bridge != nil { // whose netfilter has already taken the frame through prerouting (ip_sabotage_in)
		return t.to(transit.routeIn)
	}
	return t.ipHook(netfilter.Prerouting, transit.routeIn)
}

// routeIn finds out where a received packet goes (ip_route_input_slow).
func (t transit) routeIn() passage {
	if !t.m.isKnown(snapshot.Routes) {
		if !t.isOwn() && t.m.knowsForwarding(t.p.In, t.p.IsIPv6()) && !t.m.forwards(t.p.In, t.p.IsIPv6()) {
			return t.notForwarded()
		}
		next := t.assumeRoute()
		return t.to(next)
	}
	if end := t.needs(routing...); end != nil {
		return t.over(end)
	}
	d := t.route
	if d == nil {
		if why := t.m.martian(&t.p); why != "" {
			return t.finish(Dropped, why)
		}
		t.findSocket()
		d = t.lookUp(t.p.In)
		t.route = d
	}
	t.note(Step{Stage: Routed, Route: d})
	if d.Unknown != "" {
		return t.finish(Undecided, "the route depends on what is not understood: "+d.Unknown)
	}
	switch d.Type {
	case "local", "anycast":
		if why := t.m.validateSource(&t.p, d, t.portIn); why != "" {
			return t.finish(Dropped, why)
		}
		return t.to(transit.input)
	case "unicast":
		return t.routedOn(d)
	case "broadcast", "multicast":
		return t.finish(Undecided, "how "+d.Type+" packets go on is not walked")
	case "blackhole":
		return t.finish(Dropped, "the route is a blackhole")
	}
	return t.unreachable(d)
}

// routedOn handles a packet whose route leads out again (__mkroute_input).
func (t transit) routedOn(d *fib.Answer) passage {
	if !t.m.forwards(t.p.In, t.p.IsIPv6()) {
		return t.notForwarded()
	}
	if why := t.m.validateSource(&t.p, d, t.portIn); why != "" {
		return t.finish(Dropped, why)
	}
	return t.to(transit.forward)
}

func (t transit) notForwarded() passage {
	return t.finish(Dropped, fmt.Sprintf("%s is not an address of this host, and it does not forward (%s is 0)", t.p.Destination,
		forwardingSetting(t.p.In, t.p.IsIPv6())))
}

// assumeRoute routes without knowing the routes. It delivers packets for the machine's known addresses, and forwards all others.
func (t *transit) assumeRoute() stage {
	if t.isOwn() {
		t.m.meets(snapshot.Routes)
		return transit.input
	}
	t.m.assumeMissing(snapshot.Routes, "routes unknown; assuming packets for other hosts are forwarded")
	t.route = &fib.Answer{Type: "unicast"}
	return transit.forward
}

// unreachable ends the walk of a packet without a route. The sender is told, in IPv4 if the machine forwards at all (ip_error).
func (t transit) unreachable(d *fib.Answer) passage {
	routeType := d.Type
	refusals := map[string]struct{ why, reject string }{
		"none":        {"there is no route to it", "icmp-net-unreachable"},
		"unreachable": {"the route is of type unreachable", "icmp-host-unreachable"},
		"prohibit":    {"the route is of type prohibit", "icmp-admin-prohibited"},
	}
	refusal, ok := refusals[routeType]
	if !ok {
		refusal.why = "the route is of type " + routeType
	}
	if !t.p.IsIPv6() && !t.m.forwards(t.p.In, false) { // IPv6 tells the sender all the same (ip6_pkt_discard)
		return t.finish(Dropped, refusal.why)
	}
	end := t.end(Rejected, refusal.why)
	end.Reject = refusal.reject
	if routeType == "unreachable" && (d.Route == nil || t.p.IsIPv6()) {
		end.Reject = "icmp-net-unreachable" // a policy rule's means the network (fib4_rule_action), and IPv6 knows no other (ip6_pkt_discard)
	}
	return t.over(end)
}

// forward takes a packet on its way through the machine (ip_forward).
func (t transit) forward() passage {
	p := &t.p
	for _, direction := range [...]string{"fwd", "out"} {
		if end := t.ipsec(direction); end != nil {
			return t.over(end)
		}
	}
	if p.TTL <= 1 && p.SomeTTL {
		return t.finish(Undecided, "its TTL is not known, and a rule lowered it: it may have run out")
	}
	if p.TTL <= 1 {
		end := t.end(Rejected, "its TTL has run out")
		end.Reject = "icmp-time-exceeded"
		return t.over(end)
	}
	before := *p
	p.TTL--
	t.note(Step{Stage: Checked, Changes: packet.Changes(&before, p), Why: "forwarded"})
	p.Out = t.route.Link
	return t.ipHook(netfilter.Forward, transit.postrouting)
}

// reroute looks the route up again because a rule changed what routing looks at (ip_route_me_harder). The chains that are still to come at
// this hook see the interface of the first route (struct nf_hook_state).
func (t *transit) reroute() *End {
	if t.p.IsIPv6() && t.p.Destination.IsLinkLocalMulticast() {
		return nil // it keeps to its link (ip6_route_me_harder: rt6_need_strict)
	}
	if !t.m.isKnown(snapshot.Routes) {
		t.routeOwn()
		return nil
	}
	if end := t.needs(routing...); end != nil {
		return end
	}
	source := t.p.Source
	if kind := t.m.FIB.AddressType(source, outLink(t.route)); source.Is4() && kind != "local" && kind != "unicast" {
		t.p.Source = netip.Addr{} // no route is looked up for such a source
	}
	t.route = t.lookUp("")
	t.p.Source = source
	t.note(Step{Stage: Routed, Route: t.route, Why: "looked up again: a rule changed what routing looks at"})
	if kind := t.route.Type; kind != "unicast" && !staysHere(t.route) {
		return t.end(Dropped, "the host has no route to its new destination (route type "+kind+")")
	}
	return nil
}

// isOwn reports whether the packet is for the machine, as far as its addresses are known. An unknown one is what it sent from, or
// redirected to.
func (t *transit) isOwn() bool {
	a := t.p.Destination
	return a.IsLoopback() || t.m.FIB.HasAddress(a) != nil || a == packet.UnknownAddress(a.Is6())
}

// routeOwn assumes the route of a packet that the machine sends, without knowing the routes.
func (t *transit) routeOwn() {
	t.route = &fib.Answer{Type: "local"}
	if !t.isOwn() {
		t.m.assumeMissing(snapshot.Routes, "routes unknown; assuming its packets leave the host")
		t.route.Type = "unicast"
	}
}
