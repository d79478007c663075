package walk

import (
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// waits ends the way of a fragment where the kernel keeps it until the others are there: a walk has one fragment only.
func (r *run) waits(why string) bool {
	if !r.p.More && r.p.Offset == 0 {
		return false
	}
	r.finish(Dropped, "the other fragments do not come: "+why)
	return true
}

// track is conntrack's first look at a packet (nf_conntrack_in). A packet that the machine sent to itself was looked at when it went out.
func (r *run) track(f netfilter.Family, h netfilter.Hook) bool {
	if s := r.p.Track.State; s != 0 && s != packet.Invalid || !r.m.Rules.Tracks(f) {
		return true
	}
	if !r.m.knows(snapshot.Flows) {
		r.m.assume("its connections are not known: the packet is taken to be the first of a new one")
	}
	r.m.view.Track(&r.p)
	r.step(Step{Stage: Tracked, Family: f, Hook: h, Why: r.p.Track.State.String()})
	return true
}

// confirm puts a new flow into conntrack's table when its first packet leaves or is delivered.
func (r *run) confirm() bool {
	// What goes against a flow's first packet does not confirm it: an error about that packet.
	if r.p.Track.Flow == nil || r.p.Track.Reply || r.m.view.Confirm(&r.p) {
		return true
	}
	why := "another connection took the same addresses and ports meanwhile (nf_conntrack_confirm)"
	if r.p.Track.Flow.Status&(packet.SNAT|packet.DNAT) != 0 {
		why = "no port is free: other connections have all that the translation gives (nf_conntrack_confirm)"
	}
	r.finish(Dropped, why)
	return false
}

// translate is address translation at one hook (nf_nat_inet_fn): the nat chains are asked for a flow's first packet only; every packet is
// then rewritten as its flow says.
func (r *run) translate(f netfilter.Family, h netfilter.Hook) bool {
	flow := r.p.Track.Flow
	if flow == nil || !r.m.Rules.Translates(f) {
		return true
	}
	source := h == netfilter.Postrouting || h == netfilter.Input
	done := packet.DNATDone
	if source {
		done = packet.SNATDone
	}
	if flow.Identifier && !r.p.Track.Reply && !r.via.loopback && h == netfilter.Prerouting {
		// A packet that came in had its identifier changed there, if another connection had it. One that is sent here is taken to have had it
		// changed by masquerading, though it may have been at output.
		flow.Status, flow.Identifier = flow.Status&^packet.SNAT|packet.DNAT, false
	}
	before := r.p
	switch {
	case unbound(&r.p) && flow.Status&done == 0:
		if !r.bindFirst(f, h, source, done) {
			return false
		}
	case h == netfilter.Postrouting && !r.p.Track.Reply && r.p.About == nil && flow.Masqueraded != "" && flow.Masqueraded != r.p.Out:
		r.m.view.Remove(flow)
		r.finish(Dropped, fmt.Sprintf("the connection is masqueraded for %s: that a packet of it leaves by %s ends it (nf_nat_oif_changed)",
			flow.Masqueraded, r.p.Out))
		r.end.Forgotten = true
		return false
	}
	if r.m.view.Apply(&r.p, source) {
		changes := packet.Changes(&before, &r.p)
		r.step(Step{Stage: Translated, Family: f, Hook: h, Changes: changes, Why: "as the connection's first packet was"})
	}
	return h != netfilter.Output || r.p.Destination == before.Destination || r.reroute()
}

// unbound tells of packets that the nat chains may be asked for: the first of a connection, and what belongs to one without being an ICMP
// error: the reset that a rule answers with.
func unbound(p *packet.Packet) bool {
	icmp := p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6
	return p.Track.State == packet.New || p.Track.State == packet.Related && !icmp
}

// bindFirst is bind, for a flooded frame with the copy that comes first: all copies are of one connection, and what else the rules do to
// that one the others do not have.
func (r *run) bindFirst(f netfilter.Family, h netfilter.Hook, source bool, done packet.Status) bool {
	b := r.via.bridge
	if h != netfilter.Postrouting || b == nil || b.firstCopy == "" || b.firstCopy == r.p.BridgeOut {
		return r.bind(f, h, source, done)
	}
	p := r.p
	r.p.BridgeOut = b.firstCopy
	if !r.bind(f, h, source, done) {
		return false
	}
	r.p = p
	return true
}

// bind asks the nat chains until one binds the flow; without one, the flow keeps its addresses.
func (r *run) bind(f netfilter.Family, h netfilter.Hook, source bool, done packet.Status) bool {
	ask := func(t packet.Translation) netfilter.Verdict { return r.translation(h, t) }
	for _, c := range r.m.Rules.Hook(f, h) {
		if c.Base.Type != "nat" {
			continue
		}
		v, ok := r.evaluate(c, f, h, ask)
		if !ok || !r.goesOn(v) {
			return false
		}
		if r.p.Track.Flow.Status&done != 0 {
			return true
		}
	}
	before := r.p
	r.m.view.Null(&r.p, source)
	if r.p.Tuple != before.Tuple {
		r.step(Step{Stage: Translated, Family: f, Hook: h, Changes: packet.Changes(&before, &r.p),
			Why: "its port is taken by another connection"})
	}
	return true
}

// translation does what a rule asks for: the address where the rule leaves it to the machine, and then the binding.
func (r *run) translation(h netfilter.Hook, t packet.Translation) netfilter.Verdict {
	drop := func(why string) netfilter.Verdict {
		return netfilter.Verdict{Kind: netfilter.Drop, Detail: why}
	}
	switch t.Chosen {
	case "masquerade":
		if r.p.Track.Flow.Original.Source == netip.IPv4Unspecified() { // of a machine without an address (nf_nat_masquerade_ipv4)
			return netfilter.Verdict{Kind: netfilter.Accept}
		}
		a, ok := r.masquerade()
		if !ok {
			return drop(fmt.Sprintf("interface %s has no address to masquerade with", r.p.Out))
		}
		t.Low, t.High = a, a
	case "redirect":
		a, ok := r.redirect(h)
		if !ok {
			return drop(fmt.Sprintf("interface %s has no address to redirect to", r.p.In))
		}
		t.Low, t.High = a, a
	}
	if ok, why := r.m.view.Translate(&r.p, t); !ok {
		return drop(why)
	}
	if t.Chosen == "masquerade" {
		r.p.Track.Flow.Masqueraded = r.p.Out
	}
	return netfilter.Verdict{Kind: netfilter.Accept}
}

// masquerade is the address that the machine has on the interface the packet leaves by, towards its next hop
// (net/netfilter/nf_nat_masquerade.c). Where the machine's addresses are not known it is packet.UnknownAddress.
func (r *run) masquerade() (netip.Addr, bool) {
	if r.p.Out == "" || !r.m.knows(snapshot.Addresses) {
		return r.ownAddress("its addresses are not known: what it masquerades with is its own address on the interface that the packet leaves by")
	}
	towards := r.p.Destination
	if !r.p.IsIPv6() && r.via.route != nil && r.via.route.gateway.IsValid() {
		towards = r.via.route.gateway // rt_nexthop; IPv6 goes by the destination (nf_nat_masquerade_ipv6)
	}
	a := r.m.FIB.SelectSource(r.p.Out, towards)
	return a, a.IsValid()
}

// redirect is the machine's own address (net/netfilter/nf_nat_redirect.c): loopback for what it sends itself, otherwise the first address
// of the interface that the packet came in by.
func (r *run) redirect(h netfilter.Hook) (netip.Addr, bool) {
	ipv6 := r.p.IsIPv6()
	switch {
	case h == netfilter.Output && ipv6:
		return netip.IPv6Loopback(), true
	case h == netfilter.Output:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	case r.p.In == "" || !r.m.knows(snapshot.Addresses):
		return r.ownAddress("its addresses are not known: a packet is redirected to its own address on the interface that it came in by")
	}
	for _, a := range r.m.FIB.Addresses {
		if a.Link == r.p.In && a.Prefix.Addr().Is6() == ipv6 && a.Scope == "global" {
			return a.Prefix.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// ownAddress is the machine's address on an interface that is not known, or of which it is not known: the only one that it has, or else
// packet.UnknownAddress.
func (r *run) ownAddress(why string) (netip.Addr, bool) {
	var own []netip.Addr
	for _, a := range r.m.FIB.Addresses {
		if a.Prefix.Addr().Is6() == r.p.IsIPv6() && a.Scope == "global" {
			own = append(own, a.Prefix.Addr())
		}
	}
	switch {
	case !r.m.knows(snapshot.Addresses):
		r.m.assume(why)
	case len(own) == 1:
		r.m.assume("an interface on the way is not known: it is taken to have the only address that there is, " + own[0].String())
		return own[0], true
	default:
		r.m.assume("an interface on the way is not known: which address it has is not known, either")
	}
	return packet.UnknownAddress(r.p.IsIPv6()), true
}
