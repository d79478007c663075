package walk

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// isFragment reports whether the packet is a part of one.
func (t *transit) isFragment() bool { return t.p.More || t.p.Offset != 0 }

// waits ends the way of a fragment where the kernel keeps it until the others are there: a walk has one fragment only.
func (t *transit) waits(why string) *End {
	if !t.isFragment() {
		return nil
	}
	return t.end(Dropped, "the other fragments do not come: "+why)
}

// trackingIn asks whether the kernel tracks connections, which it does if one of the rules needs it.
type trackingIn struct{ family netfilter.Family }

func (q trackingIn) String() string {
	return "whether the kernel tracks connections of family " + q.family.String() + ", which rules that are not understood may make it do"
}

// tracks reports whether the kernel tracks a family's connections, or may. Connections of that family show that it does.
func (t *transit) tracks(f netfilter.Family) (tracked, known bool) {
	tracked, known = t.m.Rules.Tracks(f)
	ofFamily := func(c packet.Flow) bool { return c.Original.Source.Is6() == (f == netfilter.IPv6) }
	if (!known || !t.m.knowsRules(f)) && t.m.Flows != nil && slices.ContainsFunc(t.m.Flows.Flows, ofFamily) {
		return true, true
	}
	return tracked || !known, known
}

// decideTracking reports whether the packet is tracked. If that is unknown, the walk takes both ways.
func (t *transit) decideTracking(f netfilter.Family) bool {
	tracked, known := t.tracks(f)
	if known {
		return tracked
	}
	return t.decide(trackingIn{f}, "it does", "it does not")
}

// defragment does what conntrack needs before it looks at a packet.
func (t *transit) defragment(f netfilter.Family, _ netfilter.Hook) *End {
	if !t.isFragment() || !t.decideTracking(f) {
		return nil
	}
	return t.waits("conntrack waits for all of a packet (nf_defrag_ipv4)")
}

// track finds the packet's connection as conntrack does (nf_conntrack_in). A packet that the machine sent to itself got it when it went out.
func (t *transit) track(f netfilter.Family, h netfilter.Hook) *End {
	tracked, known := t.tracks(f)
	if s := t.p.Track.State; s != 0 && s != packet.Invalid && !t.p.Template || !tracked {
		return nil
	}
	if end := t.needs(snapshot.Flows); end != nil {
		return end
	}
	if h == netfilter.Prerouting && t.m.sysctl(true, "net.netfilter.nf_conntrack_checksum") && t.sumIsWrong() {
		t.p.Track, t.p.Template = packet.Track{State: packet.Invalid}, false
		t.note(Step{Stage: Tracked, Family: f, Hook: h, Why: packet.Invalid.String() + ": its UDP checksum is wrong (udp_error): " + whyWrong})
		return nil
	}
	t.m.view.Track(&t.p)
	if flow := t.p.Track.Flow; !t.m.isKnown(snapshot.Flows) && (flow == nil || flow.Status&packet.Confirmed == 0) {
		t.m.assumeMissing(snapshot.Flows, "connections unknown; assuming the packet starts a new one")
	}
	why := t.p.Track.State.String()
	if t.p.Track.Assumed = !known; !known {
		why += ", if the kernel tracks connections"
	}
	t.note(Step{Stage: Tracked, Family: f, Hook: h, Why: why})
	return nil
}

// confirm puts a new flow into conntrack's table when its first packet leaves or is delivered.
func (t *transit) confirm(netfilter.Family, netfilter.Hook) *End {
	// What goes against a flow's first packet does not confirm it: an error about that packet.
	if t.p.Track.Flow == nil || t.p.Track.Reply || t.m.view.Confirm(&t.p) {
		return nil
	}
	if t.p.Track.Flow.Status&(packet.SNAT|packet.DNAT) != 0 {
		return t.end(Dropped, "no port is free: other connections have all that the translation gives (nf_conntrack_confirm)")
	}
	return t.end(Dropped, "another connection took the same addresses and ports meanwhile (nf_conntrack_confirm)")
}

// translate translates addresses at one hook (nf_nat_inet_fn). It asks the nat chains for a flow's first packet only, and rewrites every
// packet as its flow says.
func (t *transit) translate(f netfilter.Family, h netfilter.Hook) *End {
	flow := t.p.Track.Flow
	mapped := flow != nil && flow.Status&(packet.SNAT|packet.DNAT) != 0 && !t.m.knowsRules(f)
	if flow == nil || !t.m.Rules.Translates(f) && !mapped {
		return nil
	}
	source := h == netfilter.Postrouting || h == netfilter.Input
	done := packet.DNATDone
	if source {
		done = packet.SNATDone
	}
	if flow.Identifier && !t.p.Track.Reply && !t.loopback && h == netfilter.Prerouting {
		// A packet that came in had its identifier changed there, if another connection had it. One that is sent here is assumed to have
		// had it changed by masquerading, though it may have been at output.
		flow.Status, flow.Identifier = flow.Status&^packet.SNAT|packet.DNAT, false
	}
	before := t.p
	switch {
	case unbound(&t.p) && flow.Status&done == 0:
		if end := t.bindFirst(f, h, source, done); end != nil {
			return end
		}
	case h == netfilter.Postrouting && !t.p.Track.Reply && t.p.About == nil && flow.Masqueraded != "" && flow.Masqueraded != t.p.Out:
		t.m.view.Remove(flow)
		end := t.end(Dropped, fmt.Sprintf("the connection is masqueraded for %s: that a packet of it leaves by %s ends it (nf_nat_oif_changed)",
			flow.Masqueraded, t.p.Out))
		end.Forgotten = true
		return end
	}
	if t.m.view.Apply(&t.p, source) {
		changes := packet.Changes(&before, &t.p)
		t.note(Step{Stage: Translated, Family: f, Hook: h, Changes: changes, Why: "as the connection's first packet was"})
	}
	switch {
	case t.p.Destination == before.Destination:
	case h == netfilter.Output:
		return t.reroute()
	case h == netfilter.Prerouting:
		t.route = nil // nf_nat_ipv4_pre_routing, nf_nat_ipv6_in: skb_dst_drop
	}
	return nil
}

// unbound tells of packets that the nat chains may be asked for: the first of a connection, and what belongs to one without being an ICMP
// error: the reset that a rule answers with.
func unbound(p *packet.Packet) bool {
	icmp := p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6
	return p.Track.State == packet.New || p.Track.State == packet.Related && !icmp
}

// bindFirst calls bind; for a flooded frame with the copy that comes first. All copies are of one connection. Other changes that the rules
// make to the first copy do not apply to the others.
func (t *transit) bindFirst(f netfilter.Family, h netfilter.Hook, source bool, done packet.Status) *End {
	b := t.bridge
	if h != netfilter.Postrouting || b == nil || b.firstCopy == "" || b.firstCopy == t.p.BridgeOut {
		return t.bind(f, h, source, done)
	}
	p := t.p
	t.p.BridgeOut = b.firstCopy
	end := t.bind(f, h, source, done)
	t.p = p
	return end
}

// bind asks the nat chains until one binds the flow; without one, the flow keeps its addresses.
func (t *transit) bind(f netfilter.Family, h netfilter.Hook, source bool, done packet.Status) *End {
	ask := func(wanted packet.Translation) netfilter.Verdict { return t.translation(h, wanted) }
	for _, c := range t.chains(f, h) {
		if c.Base.Type != "nat" || t.p.Track.Assumed && len(c.Rules) > 0 && !t.decideTracking(f) {
			continue
		}
		if end := t.evaluate(c, f, h, ask); end != nil || t.p.Track.Flow.Status&done != 0 {
			return end
		}
	}
	before := t.p
	t.m.view.Null(&t.p, source)
	if t.p.Tuple != before.Tuple {
		t.note(Step{Stage: Translated, Family: f, Hook: h, Changes: packet.Changes(&before, &t.p),
			Why: "its port is taken by another connection"})
	}
	return nil
}

// translation does what a rule asks for: the address where the rule leaves it to the machine, and then the binding.
func (t *transit) translation(h netfilter.Hook, wanted packet.Translation) netfilter.Verdict {
	drop := func(why string) netfilter.Verdict {
		return netfilter.Verdict{Kind: netfilter.Drop, Detail: why}
	}
	if why := t.m.whyUnread(snapshot.Addresses); wanted.Chosen != "" && why != "" {
		return netfilter.Verdict{Kind: netfilter.Undecided, Detail: why}
	}
	switch wanted.Chosen {
	case "masquerade":
		if t.p.Track.Flow.Original.Source == netip.IPv4Unspecified() { // of a machine without an address (nf_nat_masquerade_ipv4)
			return netfilter.Verdict{Kind: netfilter.Accept}
		}
		a, ok := t.masquerade()
		if !ok {
			return drop(fmt.Sprintf("interface %s has no address to masquerade with", t.p.Out))
		}
		wanted.Low, wanted.High = a, a
	case "redirect":
		a, ok := t.redirect(h)
		if !ok {
			return drop(fmt.Sprintf("interface %s has no address to redirect to", t.p.In))
		}
		wanted.Low, wanted.High = a, a
	}
	if ok, why := t.m.view.Translate(&t.p, wanted); !ok {
		return drop(why)
	}
	if wanted.Chosen == "masquerade" {
		t.p.Track.Flow.Masqueraded = t.p.Out
	}
	return netfilter.Verdict{Kind: netfilter.Accept}
}

// masquerade returns the address that the machine has on the interface the packet leaves by, towards its next hop
// (net/netfilter/nf_nat_masquerade.c). Where the machine's addresses are not known it is packet.UnknownAddress.
func (t *transit) masquerade() (netip.Addr, bool) {
	const some = "addresses unknown; masquerading uses its address on the outgoing interface"
	if t.p.Out == "" {
		return t.ownAddress(some)
	}
	towards := t.p.Destination
	if !t.p.IsIPv6() && t.route != nil && t.route.Gateway.Is4() {
		towards = t.route.Gateway // rt_nexthop, which passes over one of IPv6; IPv6 goes by the destination (nf_nat_masquerade_ipv6)
	}
	a := t.m.FIB.SelectSource(t.p.Out, towards)
	switch {
	case t.m.isKnown(snapshot.Addresses):
	case a.IsValid() && t.m.FIB.HasAddress(a).Link == t.p.Out:
		t.m.assumeMissing(snapshot.Addresses, "addresses unknown; assuming it masquerades with "+a.String())
	default:
		return t.ownAddress(some)
	}
	return a, a.IsValid()
}

// redirect returns the machine's own address (net/netfilter/nf_nat_redirect.c): loopback for what it sends itself, otherwise the first
// address of the interface that the packet came in by.
func (t *transit) redirect(h netfilter.Hook) (netip.Addr, bool) {
	ipv6 := t.p.IsIPv6()
	switch {
	case h == netfilter.Output && ipv6:
		return netip.IPv6Loopback(), true
	case h == netfilter.Output:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	case t.p.In == "" || !t.m.isKnown(snapshot.Addresses):
		return t.ownAddress("addresses unknown; redirecting uses its address on the incoming interface")
	}
	for _, a := range t.m.FIB.Addresses {
		if a.Link == t.p.In && a.Prefix.Addr().Is6() == ipv6 && a.Scope == "global" {
			return a.Prefix.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// ownAddress returns the machine's address on an interface that is unknown, or whose addresses are: the only one that it has, or else
// packet.UnknownAddress.
func (t *transit) ownAddress(why string) (netip.Addr, bool) {
	var own []netip.Addr
	for _, a := range t.m.FIB.Addresses {
		if a.Prefix.Addr().Is6() == t.p.IsIPv6() && a.Scope == "global" {
			own = append(own, a.Prefix.Addr())
		}
	}
	switch {
	case !t.m.isKnown(snapshot.Addresses):
		t.m.assumeMissing(snapshot.Addresses, why)
	case len(own) == 1:
		t.m.assume("an interface on the way is unknown; assuming it has the only address, " + own[0].String())
		return own[0], true
	default:
		t.m.assume("an interface on the way is unknown, and so is its address")
	}
	return packet.UnknownAddress(t.p.IsIPv6()), true
}
