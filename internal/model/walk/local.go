package walk

import (
	"cmp"
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// input delivers a packet to the machine (ip_local_deliver).
func (t transit) input() passage {
	t.p.Out = ""
	if end := t.waits("the host waits for all of a packet (ip_local_deliver)"); end != nil {
		return t.over(end)
	}
	return t.ipHook(netfilter.Input, transit.deliver)
}

// deliver finds who takes the packet.
func (t transit) deliver() passage {
	if end := t.ipsec("in"); end != nil {
		return t.over(end)
	}
	if t.sumIsWrong() {
		return t.finish(Dropped, "its UDP checksum is wrong (udp_lib_checksum_complete): "+whyWrong)
	}
	if l, end := t.tunnel(); l != nil {
		return t.decapsulate(l)
	} else if end != nil {
		return t.over(end)
	}
	p := &t.p
	if end := t.needs(snapshot.Listeners); end != nil && t.needsSocket() {
		return t.over(end)
	}
	end := t.end(Delivered, "")
	end.Link = p.In
	switch asked := t.inReplyTo; {
	case asked == nil && t.toAnycast():
		return t.finish(Dropped, "TCP has no connections with an anycast address, and answers nothing (tcp_v6_conn_request, tcp_v6_send_reset)")
	case asked == nil && p.Protocol == packet.TCP && !t.begins():
		t.resets(end)
		end.Why = "it does not start a connection, and belongs to none"
	case asked == nil && p.Protocol.HasPorts():
		if end := t.programsChoosing(); end != nil {
			return t.over(end)
		}
		t.listener(end)
	case asked == nil || asked.Stage != Sent: // what came from outside is answered there
	case asked.Host != t.m.Name:
		t.deliverStray(end, "the host asked for nothing")
	default:
		if why := t.notWaitedFor(); why != "" {
			t.deliverStray(end, why)
		}
	}
	if (!end.Refused || end.Taken) && p.About == nil && (t.inReplyTo != nil || p.Protocol.HasPorts()) {
		if end := t.programsReceiving(); end != nil {
			return t.over(end)
		}
		end.Disguise = t.disguise()
	}
	return t.over(end)
}

// needsSocket reports whether the machine's listening sockets decide what becomes of a packet that is delivered.
func (t *transit) needsSocket() bool {
	asked := t.inReplyTo
	switch {
	case !t.p.Protocol.HasPorts():
		return false
	case asked == nil || asked.Host != t.m.Name:
		return true
	}
	return asked.Stage == Sent && t.p.Protocol != packet.TCP && t.notWaitedFor() != ""
}

// toAnycast reports whether a TCP segment goes to an anycast address and gets no answer. Only a listening socket answers, and only segments
// that do not start a connection.
func (t *transit) toAnycast() bool {
	if t.p.Protocol != packet.TCP || t.route == nil || t.route.Type != "anycast" {
		return false
	}
	if t.begins() {
		return true
	}
	_, listens := t.socket()
	return !listens
}

// begins tells of a TCP segment that begins a connection.
func (t *transit) begins() bool { return t.p.TCPFlags&^(packet.SYN|packet.ECE|packet.CWR) == 0 }

// listener finds the socket that listens where the packet went.
func (t *transit) listener(end *End) {
	p, m := &t.p, t.m
	if !m.isKnown(snapshot.Listeners) {
		m.assumeMissing(snapshot.Listeners, "sockets unknown; assuming a process listens on "+p.DestinationEnd())
		return
	}
	if s, ok := t.socket(); ok {
		end.Listener, end.owner = s.Process, s.Owner
	} else {
		end.Refused = true
	}
}

// socket returns the one that listens where the packet went, as far as sockets are known.
func (t *transit) socket() (s snapshot.Listener, ok bool) {
	p := &t.p
	for _, l := range t.m.Listeners {
		if l.Protocol == p.Protocol && l.Local.Port() == p.DestinationPort.Number && takes(l.Local.Addr(), p.Destination) {
			return l, true
		}
	}
	return s, false
}

// resets refuses what belongs to no connection. Where a socket listens, the reset is that socket's, since Linux 6.13 (tcp_v4_send_reset,
// tcp_v6_send_reset: skb_set_owner_edemux), else no socket's.
func (t *transit) resets(end *End) {
	end.Refused = true
	s, ok := t.socket()
	since, known := t.m.FIB.KernelSince(6, 13)
	if end.owned = ok && (since || !known); end.owned && known {
		end.owner = s.Owner
	}
}

// deliverStray delivers an answer where no program waits for it, as why says. TCP refuses it, because it does not start a connection. A
// datagram may get to another program.
func (t *transit) deliverStray(end *End, why string) {
	switch p := &t.p; {
	case p.About != nil || !p.Protocol.HasPorts():
	case p.Protocol == packet.TCP:
		t.resets(end)
	default:
		t.listener(end)
		end.Taken = !end.Refused
	}
	switch end.Refused, end.Why = true, why+": no socket takes it"; {
	case end.Taken && end.Listener != "":
		end.Why = why + ": another program takes it, " + end.Listener
	case end.Taken:
		end.Why = why + ": another socket takes it"
	}
}

// takes reports whether a socket that is bound to one address takes packets for another. A socket on [::] takes IPv4's too.
func takes(bound, a netip.Addr) bool {
	return bound.Unmap() == a || bound.IsUnspecified() && (bound.Is6() || a.Is4())
}

// notWaitedFor tells why the socket that sent the request does not take the answer, "" where it does: it is connected, and takes packets
// only from where it sent to, and errors only about what it sent.
func (t *transit) notWaitedFor() string {
	got, want := t.p.Tuple, t.inReplyTo.Packet.Reply()
	if t.p.About != nil {
		got, want = *t.p.About, t.inReplyTo.Packet.Tuple
	}
	switch {
	case sameEnds(&got, &want):
		return ""
	case t.p.About != nil:
		return fmt.Sprintf("the error is about %s, and the program sent %s", got, want)
	}
	return fmt.Sprintf("the answer is %s, and the program waits for %s", got, want)
}

func sameEnds(a, b *packet.Tuple) bool {
	return sameEnd(a.Source, b.Source, a.SourcePort, b.SourcePort) &&
		sameEnd(a.Destination, b.Destination, a.DestinationPort, b.DestinationPort)
}

// sameEnd compares ends. A port out of a range, which a translation gave and nothing took back, is another one than the program's: that it
// is the same by chance is not considered.
func sameEnd(a, b netip.Addr, p, q packet.Port) bool { return a == b && p == q }

// send sends a packet of a socket of the machine (ip_queue_xmit). It finds a route, and with it a source.
func (t transit) send() passage {
	p, m := &t.p, t.m
	if m.Sandbox != "" {
		t.note(Step{Stage: Sent})
		return t.finish(Undecided, m.inSandbox())
	}
	bound := p.SourcePort != (packet.Port{})
	if p.TTL == 0 {
		p.TTL = m.ttl(p.IsIPv6())
	}
	if p.SourcePort == (packet.Port{}) && t.inReplyTo == nil && p.About == nil &&
		(p.Protocol.HasPorts() || p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6) {
		low, high := m.localPorts()[0], m.localPorts()[1]
		p.SourcePort = packet.OneOf(low, high, low+(high-low)/3)
	}
	if p.Length == 0 && t.inReplyTo == nil && p.TCPFlags == packet.SYN {
		p.Length = m.synLength(p.IsIPv6())
	}
	if t.inReplyTo == nil {
		p.Sum = sumBySocket(p)
		p.HasOwner, p.AssumedOwner = true, !p.HasOwner // root's, unless the request says whose
	}
	if p.Destination.IsUnspecified() && t.inReplyTo == nil {
		p.Destination = t.selfAddress()
	}
	if end := t.needs(routing...); end != nil {
		t.note(Step{Stage: Sent})
		return t.over(end)
	}
	if !m.isKnown(snapshot.Routes) {
		return t.sendUnrouted(bound)
	}
	d := t.lookUp("")
	if !p.Source.IsValid() {
		p.Source = d.Source
		if p.Source.IsValid() && p.About == nil && (!p.IsIPv6() || p.Protocol == packet.ICMPv6) {
			d = t.lookUp("") // now with its source (ip_route_connect; rawv6_sendmsg)
		}
	}
	if !p.Source.IsValid() && p.Destination.Is4() && m.isKnown(snapshot.Addresses) {
		p.Source = netip.IPv4Unspecified() // the host has no address at all
	}
	t.route = d
	t.note(Step{Stage: Sent})
	if end := t.programsSending(bound); end != nil {
		return t.over(end)
	}
	t.note(Step{Stage: Routed, Route: d})
	switch {
	case d.Unknown != "":
		return t.finish(Undecided, "the route depends on what is not understood: "+d.Unknown)
	case p.Source.Is4() && p.Source.IsLoopback() && d.Type == "unicast" && d.Link != "lo" && !m.confEither(d.Link, "route_localnet"):
		// __mkroute_output
		return t.unsent(fmt.Sprintf("source %s does not leave the host (net.ipv4.conf.%s.route_localnet is 0)", p.Source, d.Link))
	case d.Type == "multicast" || d.Type == "broadcast":
		return t.finish(Undecided, "how "+d.Type+" packets go on is not walked")
	case p.About != nil && p.IsIPv6() && toAnycastOf(d, p.Destination):
		return t.unsent("no error is sent to an anycast address (icmpv6_route_lookup)")
	case d.Type != "unicast" && !staysHere(d):
		return t.unsent("the host has no route to it: the program gets an error (route type " + d.Type + ")")
	}
	p.Out = outLink(d)
	return t.to(transit.output)
}

// assumeOwner records that the sending user is unknown, where a rule or route tests it.
func (t *transit) assumeOwner() {
	if t.p.AssumedGroup {
		t.m.assume(fmt.Sprintf("the group of the sending user is unknown, and a rule tests it; assuming %d", t.p.GID))
		return
	}
	t.m.assume("the sending user is unknown, and a rule tests it; assuming root")
}

// unsent ends the walk of a packet that is not made: the program gets an error.
func (t transit) unsent(why string) passage {
	end := t.end(Dropped, why)
	end.Unsent = true
	return t.over(end)
}

// selfAddress returns the destination that the kernel uses for an unspecified one: the sender (ip_route_output_key_hash_rcu,
// tcp_v6_connect).
func (t *transit) selfAddress() netip.Addr {
	switch p := &t.p; {
	case p.Destination.Is6():
		return netip.IPv6Loopback()
	case p.Source.IsValid() && !p.Source.IsUnspecified():
		return p.Source
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// staysHere reports whether a route leads to the machine itself (ip6_rt_init_dst).
func staysHere(a *fib.Answer) bool { return a.Type == "local" || a.Type == "anycast" }

// toAnycastOf reports whether a destination is an anycast address by the route to it: also that of all routers of a link, which is the
// address of the link's network (ipv6_anycast_destination).
func toAnycastOf(a *fib.Answer, to netip.Addr) bool {
	if a.Type == "anycast" {
		return true
	}
	r := a.Route
	return a.Type == "unicast" && r != nil && !a.Gateway.IsValid() && r.Destination.Bits() < 127 && r.Destination.Addr() == to
}

// outLink returns the interface that local output names: loopback for what stays here.
func outLink(a *fib.Answer) string {
	if staysHere(a) {
		return "lo"
	}
	return a.Link
}

// sendUnrouted sends without knowing the routes.
func (t transit) sendUnrouted(bound bool) passage {
	p := &t.p
	if t.routeOwn(); t.route.Type == "local" {
		if p.Out = "lo"; !p.Source.IsValid() {
			p.Source = p.Destination
		}
	}
	if !p.Source.IsValid() {
		p.Source, _ = t.ownAddress("addresses unknown; it sends from one of them")
	}
	t.note(Step{Stage: Sent})
	if end := t.programsSending(bound); end != nil {
		return t.over(end)
	}
	return t.to(transit.output)
}

// output takes a packet of the machine's own to the hooks (ip_local_out).
func (t transit) output() passage {
	t.p.In = ""
	if end := t.ipsec("out"); end != nil {
		return t.over(end)
	}
	if end := t.hook(family(&t.p), netfilter.Output); end != nil {
		return t.over(end)
	}
	if d := t.route; d.Link != "" || staysHere(d) {
		t.p.Out = outLink(d)
	}
	return t.to(transit.postrouting)
}

// postrouting runs the last hook (ip_output), and leads to the wire.
func (t transit) postrouting() passage {
	if end := t.hook(family(&t.p), netfilter.Postrouting); end != nil {
		return t.over(end)
	}
	if end := t.ipsec("out"); end != nil { // as it is translated (nf_xfrm_me_harder)
		return t.over(end)
	}
	if t.p.In == "" {
		if end := t.programsLeaving(); end != nil {
			return t.over(end)
		}
	}
	switch t.p.Out {
	case "lo":
		return t.to(transit.loopBack)
	case "":
		return t.finish(Left, "through an unknown interface")
	}
	return t.to(transit.resolve)
}

// loopBack gives a packet back to the machine that sent it. It keeps its flow and its route, but not its socket (loopback_xmit:
// skb_orphan).
func (t transit) loopBack() passage {
	if l := t.m.FIB.Link("lo"); l == nil {
		t.sumAt(&fib.Link{Type: "loopback"})
	} else {
		t.sumAt(l)
		if why := cmp.Or(t.m.programAt(l, true), t.m.programAt(l, false)); why != "" {
			return t.finish(Undecided, why)
		}
	}
	t.p.In, t.p.Out = "lo", ""
	t.p.HasOwner, t.p.AssumedOwner, t.p.AssumedGroup, t.p.SomeOwner, t.p.KernelMade = false, false, false, false, false
	t.loopback = true
	t.note(Step{Stage: Received, Why: "on lo"})
	return t.ipHook(netfilter.Prerouting, transit.receiveOnLoopback)
}

// receiveOnLoopback delivers a packet that the machine sent to itself by the route that it was sent with, unless a translation on lo took
// that away (ip_rcv_finish_core).
func (t transit) receiveOnLoopback() passage {
	if t.route == nil {
		return t.routeIn()
	}
	return t.input()
}

// findSocket gives an answer the socket that it is for, which the kernel looks for before the route (net.ipv4.ip_early_demux): rules at the
// input hook see whose it is.
func (t *transit) findSocket() {
	asked := t.inReplyTo
	if asked == nil || !t.p.Protocol.HasPorts() || asked.Stage != Sent || asked.Host != t.m.Name ||
		!t.m.sysctl(true, "net.ipv4.ip_early_demux") {
		return
	}
	if want := asked.Packet.Reply(); sameEnds(&t.p.Tuple, &want) {
		sent := &asked.Packet
		t.p.HasOwner, t.p.AssumedOwner, t.p.AssumedGroup = sent.HasOwner, sent.AssumedOwner, sent.AssumedGroup
		t.p.UID, t.p.GID = sent.UID, sent.GID
	}
}
