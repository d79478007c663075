package walk

import (
	"cmp"
	"net/netip"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// answer returns what comes back for a packet whose way ended: the packet where that was, and the stage that sends it; nil where nothing
// does.
func (w *route) answer() (transit, stage) {
	t := w.last
	t.inReplyTo, t.steps, t.before = &w.steps[0], nil, len(w.steps)
	switch w.end.Kind {
	case Delivered:
		return t.reply(&w.end)
	case Left:
		return t.replyFromOutside(w.end.Link)
	case Rejected:
		return t.rejection(w.end.Reject)
	}
	return t, nil
}

// reply makes the answer of the program that the packet was delivered to, or of the kernel: SYN and ACK, a datagram, an echo reply. Where
// no process listens, the answer is a reset or an ICMP error.
func (t transit) reply(end *End) (transit, stage) {
	p := &t.p
	if p.About != nil {
		return t, nil // errors are not answered
	}
	switch {
	case end.Refused && p.Protocol != packet.TCP && p.Protocol != packet.UDP && p.Protocol != packet.UDPLite:
		t.m.assume("assuming its kernel does not support " + p.Protocol.String())
		return t.icmpError(true, [...]icmpKind{{3, 2}, {4, 1}}[familyIndex(p)]) // ip_protocol_deliver_rcu, ip6_protocol_deliver_rcu
	case end.Refused && p.Protocol != packet.TCP:
		return t.icmpError(true, icmpErrors["icmp-port-unreachable"][familyIndex(p)])
	}
	next := packet.Packet{Tuple: p.Reply(), TTL: t.m.ttl(p.IsIPv6()), Length: t.m.answerLength(p, end.Refused, t.run.req.Echoes)}
	switch p.Protocol {
	case packet.TCP:
		next.TCPFlags, next.Sum = packet.SYN|packet.ACK, packet.SumLater
		if end.Refused {
			next.Sum = packet.SumRight // ip_send_unicast_reply
			if next.TCPFlags = resetFor(p); next.TCPFlags == 0 {
				return t, nil
			}
			next.TOS = p.TOS &^ 3 // all but ECN: tcp_v4_send_reset, tcp_v6_send_reset
		}
		if !end.Refused || end.owned {
			setOwner(&next, end.owner)
		}
	case packet.UDP:
		next.Sum = packet.SumLater
		setOwner(&next, end.owner)
	case packet.ICMP, packet.ICMPv6:
		if next.Type == p.Type {
			return t, nil // nothing that is answered
		}
		if t.m.sysctl(false, "net.ipv4.icmp_echo_ignore_all") && p.Protocol == packet.ICMP {
			return t, nil
		}
		if t.route != nil && t.route.Type == "anycast" && !t.m.sysctl(false, "net.ipv6.anycast_src_echo_reply") {
			next.Source = netip.Addr{} // one by the route back (icmpv6_echo_reply)
		}
		next.TOS = p.TOS
	}
	return t.start(next)
}

// errorSource returns where an IPv6 error comes from: the address that the route back prefers, or else one that the machine would use on
// the interface by which the packet came in (icmp6_send). That of a packet that a bridge has routed is the one by which it is to leave
// (ip6_rcv_core), and one that stays bridged has none (br_validate_ipv6), but the route's.
func (t *transit) errorSource(p *packet.Packet) netip.Addr {
	back := t.m.FIB.Lookup(fib.Query{Destination: p.Source, Protocol: packet.ICMPv6})
	if back.Route != nil && back.Route.Source.IsValid() {
		return back.Route.Source
	}
	in := p.In
	switch {
	case t.bridge == nil:
	case p.BridgeOut != "":
		in = back.Link
	case t.bridge.routed:
		in = t.route.Link
	}
	return t.m.FIB.SelectSource(cmp.Or(in, "lo"), p.Source)
}

// setOwner makes a packet come from a socket of an owner, if that is known.
func setOwner(p *packet.Packet, o *snapshot.Owner) {
	if o == nil {
		p.SomeOwner = true
		return
	}
	p.HasOwner, p.UID, p.GID = true, o.UID, o.GID
}

// start sends the answer to a packet from the machine where that ended.
func (t transit) start(p packet.Packet) (transit, stage) {
	p.KernelMade = p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6 || p.TCPFlags&packet.RST != 0
	if t.m.reflectsMark(&p) {
		p.Mark = t.p.Mark
	}
	return t.with(p), transit.send
}

// with returns a transit of another packet through the machine.
func (t transit) with(p packet.Packet) transit {
	t.p, t.route, t.bridge, t.loopback = p, nil, nil, false
	return t
}

// reflectsMark reports whether an answer has the mark that the packet arrived with: what the kernel makes (fwmark_reflect: IP4_REPLY_MARK,
// IP6_REPLY_MARK), and what a listening socket does (tcp_fwmark_accept: inet_request_mark).
func (m *machine) reflectsMark(answer *packet.Packet) bool {
	switch {
	case !answer.KernelMade:
		return answer.Protocol == packet.TCP && m.sysctl(false, "net.ipv4.tcp_fwmark_accept")
	case answer.IsIPv6() || answer.Protocol == packet.ICMPv6:
		return m.sysctl(false, "net.ipv6.fwmark_reflect")
	}
	return m.sysctl(false, "net.ipv4.fwmark_reflect")
}

// replyFromOutside returns the answer to a packet that left what is known: it comes back by the link that it left by.
func (t transit) replyFromOutside(link string) (transit, stage) {
	p := &t.p
	next := packet.Packet{Tuple: p.Reply(), TTL: 64, SomeTTL: true, Frame: p.Frame.Back(), Sum: packet.SumUnknown}
	if p.Protocol == packet.TCP {
		next.TCPFlags = packet.SYN | packet.ACK
	}
	next.In = link
	t.m.assume("the network beyond " + cmp.Or(link, "it") + " is unknown; assuming the reply returns the same way")
	return t.with(next), transit.receiveFromOutside
}

// attach makes an error or a reset belong to the connection of the packet that it is about, to the template of one that conntrack has not
// seen yet, or to none as that does (nf_conntrack_attach).
func attach(answer, to *packet.Packet) {
	if to.Track.Flow != nil || to.Template {
		answer.Track = packet.Track{Flow: to.Track.Flow, State: packet.Related, Reply: !to.Track.Reply}
		answer.Template, answer.Zone, answer.ZoneMark = to.Template, to.Zone, to.ZoneMark
	}
	answer.AboutUntracked = to.Track.State == packet.Untracked
}

// rejection returns what a machine that rejects a packet sends to its sender.
func (t transit) rejection(how string) (transit, stage) {
	if how == "tcp-reset" {
		return t.reset()
	}
	kind, ok := icmpErrors[how]
	if !ok {
		return t, nil
	}
	return t.icmpError(false, kind[familyIndex(&t.p)])
}

// resetFor returns the flags of the reset for a segment, none where it is one itself (RFC 9293 section 3.10.7.1, nf_send_reset).
func resetFor(p *packet.Packet) packet.TCPFlags {
	switch {
	case p.TCPFlags&packet.RST != 0:
		return 0
	case p.TCPFlags&packet.ACK != 0:
		return packet.RST
	}
	return packet.RST | packet.ACK
}

// reset answers a packet that a rule rejects with a reset. It belongs to the connection that it ends (nf_ct_attach).
func (t transit) reset() (transit, stage) {
	to := &t.p
	next := packet.Packet{Tuple: to.Reply(), TTL: t.m.ttl(to.IsIPv6()), TCPFlags: resetFor(to), Length: ipHeader(to.IsIPv6()) + tcpHeader,
		Sum: packet.SumLater} // nf_reject_ip_tcphdr_put
	if next.TCPFlags == 0 {
		return t, nil
	}
	attach(&next, to)
	answer, stage := t.start(next)
	if t.bridge == nil {
		return answer, stage
	}
	answer.p.Frame, answer.p.Out = to.Frame.Back(), t.bridge.in
	return answer, transit.resetByBridge
}

// resetByBridge sends a reset straight back by the port where br_netfilter took the frame in (net/ipv4/netfilter/nf_reject_ipv4.c:
// nf_send_reset, nf_bridge_info_exists): it needs a route, but does not take it, and meets no rule.
func (t transit) resetByBridge() passage {
	t.note(Step{Stage: Sent, Why: "straight back by " + t.p.Out + ", past all rules: br_netfilter had the packet"})
	if t.m.isKnown(snapshot.Routes) {
		if d := t.lookUp(""); d.Type != "unicast" && !staysHere(d) {
			t.note(Step{Stage: Routed, Route: d})
			return t.finish(Dropped, "the host has no route for the reset (route type "+d.Type+")")
		}
	}
	return t.to(transit.transmit)
}

type icmpKind struct{ kind, code uint8 }

func familyIndex(p *packet.Packet) int {
	if p.IsIPv6() {
		return 1
	}
	return 0
}

// icmpErrors are the types and codes of rejections, for IPv4 and IPv6 (RFC 792, RFC 1812, RFC 4443; iptables-extensions(8), REJECT).
var icmpErrors = map[string][2]icmpKind{
	"icmp-net-unreachable": {{3, 0}, {1, 0}}, "icmp-host-unreachable": {{3, 1}, {1, 3}}, "icmp-proto-unreachable": {{3, 2}, {1, 4}},
	"icmp-port-unreachable": {{3, 3}, {1, 4}}, "icmp-net-prohibited": {{3, 9}, {1, 1}}, "icmp-host-prohibited": {{3, 10}, {1, 1}},
	"icmp-admin-prohibited": {{3, 13}, {1, 1}}, "icmp-time-exceeded": {{11, 0}, {3, 0}},
	"icmp6-no-route": {{3, 0}, {1, 0}}, "icmp6-adm-prohibited": {{3, 13}, {1, 1}}, "icmp6-addr-unreachable": {{3, 1}, {1, 3}},
	"icmp6-port-unreachable": {{3, 3}, {1, 4}},
}

// ErrorOf gives the type and code of the ICMP error for a rejection (End.Reject); ok is false where it is none, but a reset or unknown.
func ErrorOf(reject string, ipv6 bool) (kind, code uint8, ok bool) {
	kinds, ok := icmpErrors[reject]
	k := kinds[0]
	if ipv6 {
		k = kinds[1]
	}
	return k.kind, k.code, ok
}

// icmpError sends an error about the packet that ended, as it looked then; refused says that there was no socket for it.
func (t transit) icmpError(refused bool, k icmpKind) (transit, stage) {
	p := &t.p
	protocol := packet.ICMP
	if p.IsIPv6() {
		protocol = packet.ICMPv6
	}
	about := p.Tuple
	next := packet.Packet{TTL: t.m.ttl(p.IsIPv6()), About: &about, Length: errorLength(p)}
	if !p.IsIPv6() {
		next.TOS = p.TOS&0x1e | 0xc0 // __icmp_send; icmp6_send leaves the traffic class 0
	}
	next.Tuple = packet.Tuple{Protocol: protocol, Destination: p.Source, Type: k.kind, Code: k.code}
	if !refused { // an error belongs to the connection of the packet that it is about (icmp_glue_bits, icmpv6_getfrag: nf_ct_attach);
		attach(&next, p) // that of a datagram for which there is no socket has been taken off it (udp_rcv: nf_reset_ct)
	}
	// An error comes from the address that the packet was for, where that is the machine's own (icmp_send, icmp6_send).
	switch {
	case t.m.FIB.HasAddress(p.Destination) != nil, p.IsIPv6() && t.m.FIB.AddressType(p.Destination, "") == "anycast":
		next.Source = p.Destination
	case p.IsIPv6():
		next.Source = t.errorSource(p)
	}
	return t.start(next)
}
