package proof

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// hasReply reports whether anything was sent back where the request ended. A kernel's own answer always is: then a missing one is a
// difference. A program's answer to a datagram is its own business, and so is what happens outside of what is known. Of an answer that the
// program cannot send, for want of a route, there is nothing to be seen.
func (c *comparison) hasReply(outcome *walk.Outcome) bool {
	end := &outcome.End
	program := end.Kind == walk.Delivered && !end.Refused && outcome.Back[0].Packet.Protocol == packet.UDP
	if !program && end.Kind != walk.Left {
		return true
	}
	h := c.observed.Hosts[end.Host]
	if h == nil {
		return false
	}
	var steps []indexedStep
	for i := range outcome.Back {
		steps = append(steps, indexedStep{Step: &outcome.Back[i]})
	}
	expected := expects(steps)
	if !slices.ContainsFunc(steps, visible) {
		return true
	}
	for _, p := range h.Packets {
		if c.id.of(&p.Packet, p.Transport, expected) == back {
			return true
		}
	}
	for _, t := range witness.GroupTrace(h.Trace) {
		if c.id.of(&t.Packet, t.Transport, expected) == back {
			return true
		}
	}
	return false
}

// visible tells of steps that a trace or a capture shows.
func visible(s indexedStep) bool {
	link, _ := place(s)
	return link != "" || traced(s.Visit)
}

// leaves tells of steps that a packet has left its sender with.
func leaves(s walk.Step) bool { return s.Stage == walk.Transmit || s.Stage == walk.Received }

// flows compares the connections that conntrack keeps. Their marks are compared where no packet followed that may have changed them.
func (c *comparison) flows(outcome *walk.Outcome) {
	if ended(outcome) {
		return
	}
	type keptFlow struct {
		flow     *packet.Flow
		position int
	}
	more := followed(outcome)
	type tracker struct { // a host tracks what it sends in a packet, and that packet, too
		host    string
		carrier bool
	}
	last := map[tracker]keptFlow{}
	var order []tracker
	for i, s := range slices.Concat(outcome.There, outcome.Back) {
		unsure := s.Packet.Track.Assumed || s.Flow() == nil || s.Flow().Status&packet.Confirmed == 0
		if unsure || c.observed.Hosts[s.Host] == nil || s.Host == endedBy(outcome) {
			continue
		}
		if c.Unanswered && i >= len(outcome.There) {
			break
		}
		at := tracker{s.Host, s.Packet.Tunnel != nil}
		other := tracker{s.Host, !at.carrier}
		if k, ok := last[other]; ok && k.flow.Original == s.Flow().Original { // an error about the carrier is of its connection
			at = other
		}
		if _, ok := last[at]; !ok {
			order = append(order, at)
		}
		last[at] = keptFlow{s.Flow(), i}
	}
	for _, at := range order {
		host, k := at.host, last[at]
		flows := c.observed.Hosts[host].Flows
		if slices.ContainsFunc(flows, func(f witness.Flow) bool { return sameFlow(k.flow, &f) && (more(host) || k.flow.Mark == f.Mark) }) {
			c.fact(nil)
			continue
		}
		observed, there := likeliest(flows, k.flow)
		if !there && (laterReset(outcome, k.position >= len(outcome.There)) || wasReset(c.observed.Hosts[host], k.flow)) {
			c.Uncertain = append(c.Uncertain, fmt.Sprintf("on %s, by a reset: connection %s", host, flowText(k.flow)))
			continue
		}
		c.fact(&Difference{Host: host, Predicted: "connection " + flowText(k.flow), Observed: observed, position: k.position, more: true,
			forgotten: !there})
	}
}

// endedLater reports whether the one thing that differs is a connection that is not there any more because its next packet, the
// acknowledgement, ended it, or may have by chance, and why that is.
func endedLater(source snapshot.Source, result *walk.Result, report *Report) (why string, always bool, err error) {
	if d := report.First; d == nil || !d.forgotten || report.Steps-report.Agreed != 1 {
		return "", false, nil
	}
	ends, always, err := walk.Forgets(source, result.Request, &result.Outcomes[report.Outcome])
	for _, end := range ends {
		if end.Host == report.First.Host {
			return end.Why, always, err
		}
	}
	return "", false, err
}

// followed reports whether more packets of the connection than those compared here passed a host: the acknowledgement of a TCP answer,
// which passes the rules of the request again; an ICMP error or a reset about the answer, or about a packet that a host had no neighbour
// for, which comes when it gives up asking; an answer or an error that was not walked; a redirect, where a packet left by the interface
// that it came in by (ip_forward: ip_rt_send_redirect).
func followed(outcome *walk.Outcome) func(host string) bool {
	back := outcome.BackEnd
	open := func(e *walk.End) bool { return e != nil && (e.Kind == walk.Undecided || unresolved(e)) }
	if open(&outcome.End) || open(back) {
		return func(string) bool { return true }
	}
	// What answers it, or its error, was not walked.
	if kind := outcome.End.Kind; back == nil && (kind == walk.Delivered || kind == walk.Rejected) {
		return func(string) bool { return true }
	}
	delivered := back != nil && back.Kind == walk.Delivered && (back.Packet.Protocol == packet.TCP || fromOutside(outcome))
	if delivered || back != nil && (back.Kind == walk.Rejected || refuses(back)) {
		return func(string) bool { return true }
	}
	return func(host string) bool {
		return slices.ContainsFunc(slices.Concat(outcome.There, outcome.Back), func(s walk.Step) bool {
			return s.Host == host && s.Stage == walk.Transmit && s.Packet.In == s.Packet.Out
		})
	}
}

// fromOutside reports whether no host of the walk sent the request. The host that gets the answer may not have asked for it.
func fromOutside(outcome *walk.Outcome) bool { return outcome.There[0].Stage != walk.Sent }

// laterReset reports whether a TCP answer gets a reset, which is not walked. The answer is rejected with a reset, or delivered where, as
// far as is known, no host asked. The reset ends the connections that take it for the request's. A connection that saw the rejected answer
// is still kept for a while (nf_conntrack_tcp_packet).
func laterReset(outcome *walk.Outcome, answered bool) bool {
	b := outcome.BackEnd
	if b == nil || b.Packet.Protocol != packet.TCP {
		return false
	}
	return b.Kind == walk.Delivered && (b.Refused || fromOutside(outcome)) || b.Kind == walk.Rejected && b.Reject == "tcp-reset" && !answered
}

// wasReset reports whether a host saw a reset of a connection that has no answer: it forgets the connection then (nf_conntrack_tcp_packet).
func wasReset(h *Host, f *packet.Flow) bool {
	if f.Status&packet.SeenReply != 0 {
		return false
	}
	tuples := [...]packet.Tuple{f.Original, f.Original.Reply(), f.Reply, f.Reply.Reply()}
	return slices.ContainsFunc(h.Packets, func(c witness.CapturedPacket) bool {
		p := &c.Packet
		from, _ := p.SourcePort.Span()
		to, _ := p.DestinationPort.Span()
		source, destination := netip.AddrPortFrom(p.Source, from), netip.AddrPortFrom(p.Destination, to)
		return p.TCPFlags&packet.RST != 0 && slices.ContainsFunc(tuples[:], func(t packet.Tuple) bool {
			return sameEnds(&t, uint8(p.Protocol), source, destination)
		})
	})
}

// unresolved reports whether a packet was dropped because no host answers for its next hop.
func unresolved(end *walk.End) bool {
	return end.Kind == walk.Dropped && end.Reject == "icmp-host-unreachable"
}

// ended tells of connections that conntrack forgets at once: those whose SYN was answered by a reset (nf_conntrack_tcp_packet).
func ended(outcome *walk.Outcome) bool {
	return slices.ContainsFunc(outcome.Back, func(s walk.Step) bool { return s.Packet.TCPFlags&packet.RST != 0 })
}

// endedBy returns the host that rejects an answer that has no connection, as it is not tracked or not yet, with a reset: that is tracked as
// if it came from who began the connection, and may end it, too. It is "" where there is none.
func endedBy(outcome *walk.Outcome) string {
	if b := outcome.BackEnd; b != nil && b.Reject == "tcp-reset" && b.Packet.Track.Flow == nil {
		return b.Host
	}
	return ""
}

func sameFlow(want *packet.Flow, f *witness.Flow) bool {
	return sameEnds(&want.Original, f.Protocol, f.Source, f.Destination) &&
		sameEnds(&want.Reply, f.Protocol, f.ReplySource, f.ReplyDestination)
}

func sameEnds(want *packet.Tuple, protocol uint8, source, destination netip.AddrPort) bool {
	if uint8(want.Protocol) != protocol || !sameAddress(want.Source, source.Addr()) || !sameAddress(want.Destination, destination.Addr()) {
		return false
	}
	return !want.Protocol.HasPorts() ||
		samePort(want.SourcePort, packet.Exactly(source.Port())) && samePort(want.DestinationPort, packet.Exactly(destination.Port()))
}

func likeliest(flows []witness.Flow, want *packet.Flow) (text string, there bool) {
	for _, f := range flows {
		if sameEnds(&want.Original, f.Protocol, f.Source, f.Destination) {
			return fmt.Sprintf("connection %s > %s, replies %s > %s, mark %#x", f.Source, f.Destination, f.ReplySource, f.ReplyDestination,
				f.Mark), true
		}
	}
	return "no such connection", false
}

func flowText(f *packet.Flow) string {
	return fmt.Sprintf("%s > %s, replies %s > %s, mark %#x", f.Original.SourceEnd(), f.Original.DestinationEnd(), f.Reply.SourceEnd(),
		f.Reply.DestinationEnd(), f.Mark)
}

// answer compares what the sender learnt.
func (c *comparison) answer(outcome *walk.Outcome) {
	if c.Unanswered {
		return
	}
	want := expectedAnswers(outcome, c.sender)
	if want == nil {
		return
	}
	got := c.observed.Answer
	if slices.Contains(want, got.Answer) {
		c.fact(nil)
		if got.Answer == witness.TimedOut {
			c.silent++
		}
		return
	}
	text := string(got.Answer)
	if got.Err != nil {
		text += ": " + got.Err.Error()
	}
	c.fact(&Difference{Host: c.sender, Back: true, Predicted: fmt.Sprintf("the sender's socket is %s", want[0]), Observed: text,
		position: len(withCopies(outcome.There, 0)) + len(withCopies(outcome.Back, 0))})
}

// expectedAnswers returns what the sender can learn; nil where that is unknown.
func expectedAnswers(outcome *walk.Outcome, sender string) []witness.Answer {
	end, backEnd := &outcome.End, outcome.BackEnd
	own := end.Host == sender && len(outcome.There) > 0 && !slices.ContainsFunc(outcome.There, leaves)
	switch {
	case beyond(end) || backEnd != nil && beyond(backEnd):
		return nil
	case end.Unsent:
		return []witness.Answer{witness.NotSent, witness.Unreachable} // connect says so, too
	case unresolved(end):
		return []witness.Answer{witness.TimedOut, witness.Unreachable} // the host that asked in vain may tell
	case backEnd != nil && backEnd.Kind == walk.Rejected && end.Host == sender && backEnd.Host == sender && backEnd.Packet.About == nil &&
		(backEnd.Packet.Protocol == packet.ICMP || backEnd.Packet.Protocol == packet.ICMPv6):
		return []witness.Answer{witness.TimedOut, rejectionOf(backEnd)} // the error about its own echo is not walked: it may come
	case backEnd == nil || backEnd.Kind != walk.Delivered || backEnd.Host != sender || backEnd.Refused:
		if own {
			return []witness.Answer{witness.TimedOut, witness.NotSent, witness.Unreachable} // the program may see the drop
		}
		return []witness.Answer{witness.TimedOut}
	case own && end.Kind == walk.Rejected:
		return []witness.Answer{refusalOf(&backEnd.Packet), witness.NotSent, witness.Unreachable} // the program may see the drop first, or the error
	case end.Kind == walk.Rejected || end.Refused:
		return []witness.Answer{refusalOf(&backEnd.Packet)}
	}
	return []witness.Answer{witness.Connected, witness.Answered}
}

// beyond reports whether it is unknown what becomes of a packet after this end.
func beyond(e *walk.End) bool { return e.Kind == walk.Undecided || e.Kind == walk.Left }

// rejectionOf returns what a socket makes of the error that a packet's end sends.
func rejectionOf(end *walk.End) witness.Answer {
	ipv6 := end.Packet.IsIPv6()
	kind, code, _ := walk.ErrorOf(end.Reject, ipv6)
	about := end.Packet.Tuple
	told := packet.Packet{Tuple: packet.Tuple{Protocol: end.Packet.Protocol, Type: kind, Code: code}, About: &about}
	return refusalOf(&told)
}

// refusalOf returns what a socket makes of a reset or an ICMP error (icmp_err_convert, icmpv6_err_convert). The packet is refused where no
// process listens.
func refusalOf(p *packet.Packet) witness.Answer {
	unreachable, code, _ := walk.ErrorOf("icmp-port-unreachable", p.Protocol == packet.ICMPv6)
	if p.About != nil && (p.Type != unreachable || p.Code != code) {
		return witness.Unreachable
	}
	return witness.Refused
}
