package walk

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// arrive starts the walk for a packet that came from outside.
func (t transit) arrive() passage {
	if t.p.In = t.run.req.Arrives; t.p.In == "" {
		t.p.In = t.linkToSender()
	}
	if t.p.TTL == 0 {
		t.p.TTL = 64
	}
	t.p.Sum = packet.SumUnknown
	return t.to(transit.receiveFromOutside)
}

// linkToSender returns the interface by which the machine's routes lead to the packet's sender; "" where they do not tell one.
func (t *transit) linkToSender() string {
	if !t.m.isKnown(snapshot.Routes) || t.m.whyUnread(routing...) != "" {
		return ""
	}
	a := t.m.FIB.Lookup(fib.Query{Destination: t.p.Source, Protocol: t.p.Protocol})
	l := t.m.FIB.Link(a.Link)
	if a.Type != "unicast" || a.Unknown != "" || l == nil || !l.Up || len(a.Ways) > 0 {
		return ""
	}
	t.m.assume("the incoming interface is unknown; assuming " + l.Name +
		", by which its routes lead to the sender")
	return l.Name
}

// receiveFromOutside handles a packet from beyond the snapshot. Unless it is an answer to a frame that was seen, its frame is for this
// host.
func (t transit) receiveFromOutside() passage {
	l := t.m.FIB.Link(t.p.In)
	if l != nil && t.p.Frame.Destination.IsZero() && l.Type == "ether" {
		if master := t.m.FIB.Link(l.Master); master != nil {
			l = master // to whose address a neighbour on the wire of a bridge port sends
		}
		t.p.Frame.Destination = l.MAC
	}
	return t.receive()
}

// receive handles a packet that comes in by interface In.
func (t transit) receive() passage {
	p, m := &t.p, t.m
	t.note(Step{Stage: Received})
	l := m.FIB.Link(p.In)
	switch {
	case l == nil && p.In != "" && m.isKnown(snapshot.Links):
		return t.finish(Dropped, fmt.Sprintf("the host has no interface %s", p.In))
	case l == nil && m.isKnown(snapshot.Links):
		m.assume("the incoming interface is unknown; assuming it is not a bridge port")
		return t.to(transit.receiveIP)
	case l == nil:
		m.assumeMissing(snapshot.Links, "interfaces unknown; assuming the incoming one is not a bridge port")
		return t.to(transit.receiveIP)
	case !l.Up:
		return t.finish(Dropped, "interface "+l.Name+" is down")
	case !l.HasCarrier():
		return t.finish(Undecided, "the packet cannot come in by "+l.Name+", which has no carrier")
	}
	if why := m.programAt(l, false); why != "" {
		return t.finish(Undecided, why)
	}
	p.Frame.Type, p.Cast = p.EtherType(), packet.Unicast
	if l.Type == "ether" {
		p.Cast = p.Frame.CastFor(l.MAC)
	}
	if p.Cast == packet.OtherHost && l.MAC.IsZero() { // no such interface is up: the snapshot does not have its address
		m.assume("the MAC address of " + l.Name + " is unknown; assuming frames are addressed to it")
		p.Cast = packet.Unicast
	}
	if end := t.deviceHook(l.Name, netfilter.Ingress); end != nil {
		return t.over(end)
	}
	if b, ok := m.bridgeOf(l); ok {
		return t.bridgeIn(b, l)
	}
	if why := m.enslaved(l); why != "" {
		return t.finish(Undecided, why)
	}
	return t.to(transit.receiveIP)
}

// resolve finds the link-layer address of the next hop.
func (t transit) resolve() passage {
	l := t.m.FIB.Link(t.p.Out)
	if l == nil {
		return t.finish(Undecided, "interface "+t.p.Out+" is not known")
	}
	if l.Type != "ether" || l.Kind == "tun" {
		return t.to(transit.transmit)
	}
	next := t.p.Destination
	if t.route != nil {
		next = t.route.NextHop(next)
	}
	t.p.Frame.Source, t.p.Frame.Type = l.MAC, t.p.EtherType()
	if end := t.address(l, next); end != nil {
		return t.over(end)
	}
	return t.to(transit.transmit)
}

// address puts the next hop's link-layer address on the packet.
func (t *transit) address(l *fib.Link, next netip.Addr) *End {
	if end := t.needs(snapshot.Neighbours); end != nil {
		return end
	}
	answer, ok := t.m.neighbour(l.Name, next)
	if !ok && l.NoARP {
		answer, ok = ResolveStep{Link: l.Name, Address: next.String(), MAC: l.MAC, By: "the link itself, without a query (NOARP)"}, true
	}
	if !ok {
		var end *End
		if answer, end = t.ask(l, next); end != nil {
			return end
		}
	}
	t.p.Frame.Destination = answer.MAC
	t.note(Step{Stage: Resolved, Resolve: &answer})
	return nil
}

// usable are the states of a neighbour entry that packets are sent with (NUD_VALID; Documentation/networking).
var usable = map[string]bool{"PERMANENT": true, "REACHABLE": true, "STALE": true, "DELAY": true, "PROBE": true, "NOARP": true}

// neighbour looks the neighbour table up.
func (m *machine) neighbour(link string, a netip.Addr) (ResolveStep, bool) {
	if mac, ok := m.neighbours[neighbour{link, a}]; ok {
		return ResolveStep{Link: link, Address: a.String(), MAC: mac, By: "asked before"}, true
	}
	n := m.FIB.Neighbour(link, a)
	if n == nil || !usable[n.State] {
		return ResolveStep{}, false
	}
	return ResolveStep{Link: link, Address: a.String(), MAC: n.MAC, By: "neighbour entry, " + n.State}, true
}

// transmit sends the packet out of interface Out.
func (t transit) transmit() passage {
	l := t.m.FIB.Link(t.p.Out)
	switch {
	case l == nil:
		return t.finish(Undecided, "interface "+t.p.Out+" is not known")
	case !l.Up:
		return t.finish(Dropped, "interface "+l.Name+" is down")
	}
	if end := t.egress(l.Name); end != nil {
		return t.over(end)
	}
	if why := t.m.programAt(l, true); why != "" { // after nft's (__dev_queue_xmit)
		return t.finish(Undecided, why)
	}
	if !l.HasCarrier() {
		return t.finish(Dropped, "interface "+l.Name+" has no carrier: what it should send is dropped (noop_qdisc)")
	}
	t.sumAt(l)
	if b, ok := t.m.bridge(l.Name); ok {
		return t.bridgeOut(b)
	}
	t.note(Step{Stage: Transmit})
	if peer, ok := t.m.peer(l.Name); ok {
		return t.cross(peer)
	}
	if l.Kind == "vxlan" {
		return t.encapsulate(l)
	}
	if l.Kind != "" && l.Kind != "veth" {
		return t.finish(Undecided, fmt.Sprintf("interface %s is of %s, which is not walked", l.Name, kindOf(l)))
	}
	if end := t.needs(snapshot.Wires); end != nil && l.Kind == "veth" {
		return t.over(end)
	}
	if p, ok := t.onward(l); ok {
		return p
	}
	return t.leave(l.Name)
}

// leave ends the packet's way at the edge of the snapshot.
func (t transit) leave(link string) passage {
	t.m.meets(snapshot.Wires)
	if s := t.run.places().services[t.p.Destination]; s != nil && t.inReplyTo == nil && hasProtocol(s, t.p.Protocol) {
		return t.finish(Undecided, fmt.Sprintf("it leaves through %s for service %s/%s, which is translated where nothing was read", link,
			s.Namespace, s.Name))
	}
	end := t.end(Left, "through "+link)
	f, ok := t.m.Forwarders[link]
	if ok && !slices.Contains(f.Addresses, t.p.Destination) {
		end.Forwarder = f.Name
		passed := t.run.forwarder == link || t.run.req.Arrives == link && t.run.req.Host == t.m.Name
		switch {
		case t.inReplyTo == nil:
			t.run.forwarder = link
		case f.Stateful && !passed:
			end.Kind, end.Why = withoutRequest(&t.p)
		}
	}
	end.Link = link
	return t.over(end)
}

// hasProtocol reports whether a Service has a port of a protocol. Packets of others, such as pings, are not translated.
func hasProtocol(s *snapshot.Service, p packet.Protocol) bool {
	return slices.ContainsFunc(s.Ports, func(port snapshot.ServicePort) bool { return port.Protocol == p })
}

// withoutRequest returns what a stateful firewall does with a reply whose request it has not seen. A segment that answers is never the
// first of a TCP connection. A datagram may be the first of a flow that the firewall's rules allow.
func withoutRequest(reply *packet.Packet) (EndKind, string) {
	const asymmetric = "asymmetric routing: the request took another way, and a stateful firewall "
	if reply.Protocol == packet.TCP && reply.TCPFlags&(packet.SYN|packet.RST) != 0 {
		return Dropped, asymmetric + "drops a reply without its request"
	}
	return Undecided, fmt.Sprintf("%sdrops a reply of %s without its request, unless its rules allow that as a new flow", asymmetric, reply.Protocol)
}

// cross takes the packet through a wire to another interface. What the kernel keeps beside it stays behind (skb_scrub_packet); its mark
// does not where both ends are in one namespace.
func (t transit) cross(peer snapshot.Peer) passage {
	far, err := t.run.enter(peer.Host, t.p)
	if end := t.unread(err); end != nil {
		return t.over(end)
	}
	if err != nil {
		return passage{err: err}
	}
	far.p.Local = packet.Local{In: peer.PeerLink}
	if t.m == far.m {
		far.p.Mark = t.p.Mark
	}
	far.inReplyTo, far.steps, far.before = t.inReplyTo, t.steps, t.before
	return far.to(transit.receive)
}

// unread returns the end of a packet that gets to a host whose state is not read; nil for another error.
func (t *transit) unread(err error) *End {
	unread, ok := errors.AsType[*snapshot.UnreadError](err)
	if !ok {
		return nil
	}
	end := t.end(Undecided, unread.Error())
	end.Host, end.Unread = unread.Host, true
	return end
}
