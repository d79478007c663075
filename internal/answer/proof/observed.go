package proof

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// Observation is what the kernel did with the packet of a probe and with what came back.
type Observation struct {
	Hosts  map[string]*Host
	Answer witness.Result
	// Payload is what the probe carried: packets with another one are not its. A datagram with its complement is an answer, from wherever.
	Payload []byte
	// Everywhere says that every packet was captured, and in every host: what is not there did not happen.
	Everywhere bool
}

// Host is what was seen in one namespace, in the order in which it was read.
type Host struct {
	Trace   []witness.TraceEvent
	Packets []witness.CapturedPacket
	Flows   []witness.Flow
	// Handles are those of the chains that the trace names, in the order of their rules.
	Handles map[ChainID][]uint64
	// Absent are base chains of the prediction that the kernel does not have: iptables-nft-save prints every built-in chain of a table.
	Absent map[ChainID]bool
}

// ChainID names a chain of nf_tables.
type ChainID struct{ Family, Table, Chain string }

// identity is what the packets of one probe are known by, whatever addresses they get on the way.
type identity struct {
	request packet.Tuple
	payload []byte
	flags   packet.TCPFlags // of its TCP segment
	seq     uint32          // of that, and the acknowledged one where its flags say so
	ack     uint32
	label   uint32 // of its IP header
	hasSeq  bool
	length  int // of its packet, as rules and routers leave it; 0 where that is not known
	// carriers are what packets of VXLAN were seen to carry, and toCarry those that are predicted to carry the probe's.
	carriers map[carrier][]innerPacket
	toCarry  []expectedCarrier
	// carrierAnswers are the payloads with which a program answers those that carry the probe's packet on its way there.
	carrierAnswers map[string]bool
	// refusal says that what is predicted to come back is an ICMP error. Others, about an answer or redirecting a router's neighbour, are
	// not the probe's.
	refusal bool
	// refusedCarrier says that this error is about a packet of VXLAN that carries the probe's.
	refusedCarrier bool
	// anyOutcome says that it may be about either: what is predicted is not one outcome.
	anyOutcome bool
}

// control are the flags that tell segments apart.
const control = packet.SYN | packet.ACK | packet.RST | packet.FIN

// identify finds what the probe's packets are known by.
func identify(o *Observation, request *walk.Request) *identity {
	id := segment(o, request)
	id.findCarriers(o)
	return id
}

// segment finds the sequence number of the segment that left the sender, or came to where the request begins.
func segment(o *Observation, request *walk.Request) *identity {
	id := &identity{
		request: o.Answer.Tuple, payload: o.Payload, length: request.Packet.Length,
		flags: cmp.Or(request.Packet.TCPFlags, packet.SYN) & control,
	}
	h := o.Hosts[request.Host]
	if h == nil || id.request.Protocol != packet.TCP {
		return id
	}
	note := func(p *packet.Packet, transport []byte, label uint32) {
		if !id.hasSeq && p.TCPFlags&control == id.flags && p.SourcePort == id.request.SourcePort && len(transport) >= 12 {
			id.seq, id.ack, id.hasSeq = binary.BigEndian.Uint32(transport[4:]), binary.BigEndian.Uint32(transport[8:]), true
			id.label = label
		}
	}
	for _, e := range h.Trace {
		if e.Packet != nil {
			note(e.Packet, e.Transport, e.Label)
		}
	}
	for _, c := range h.Packets {
		note(&c.Packet, c.Transport, c.Label)
	}
	return id
}

// direction tells whose packet it is.
type direction uint8

const (
	foreign direction = iota // of another flow
	there
	back
)

// of tells the direction of a packet, or of one that carries it.
func (id *identity) of(p *packet.Packet, transport []byte, expected func(packet.Tuple) bool) direction {
	if d, carrier := id.inside(p, transport, expected); carrier {
		return d
	}
	return id.directionOf(p, transport, expected)
}

// directionOf tells the direction of a packet by what address translation leaves alone: the flags and sequence numbers of TCP, the type and
// payload of an echo, the payload of a datagram. An answering datagram is told by its tuple in expected.
func (id *identity) directionOf(p *packet.Packet, transport []byte, expected func(packet.Tuple) bool) direction {
	switch {
	case isError(p):
		about := id.quotesCarrier(transport)
		if id.refusal && !isRedirect(p) && (about == id.refusedCarrier || id.anyOutcome) && (about || id.quotes(transport) == there) {
			return back
		}
		return foreign
	case p.Protocol == packet.UDP: // also where the probe is none: a program may get, and answer, what carries it
		return id.ofDatagram(transport, expected(p.Tuple))
	case p.Protocol != id.request.Protocol:
		return foreign
	}
	switch p.Protocol {
	case packet.TCP:
		return id.ofTCP(p, transport)
	case packet.ICMP, packet.ICMPv6:
		return id.ofEcho(p.Tuple, transport)
	case packet.SCTP: // by the tag of its INIT chunk, which is behind the common header and the chunk's
		if len(transport) >= 20 && len(id.payload) >= 4 && bytes.Equal(transport[16:20], id.payload[:4]) {
			return there
		}
	}
	return foreign
}

// ofDatagram returns the direction of a datagram that carries no packet.
func (id *identity) ofDatagram(transport []byte, expected bool) direction {
	switch payload := transport[min(headerOfQuery, len(transport)):]; {
	case expected || id.carrierAnswers[string(payload)]:
		return back
	case id.request.Protocol != packet.UDP:
		return foreign
	case len(payload) > 0 && len(id.payload) > 0 && prefixed(complement(id.payload), payload):
		return back
	case id.carries(transport):
		return there
	}
	return foreign
}

func complement(b []byte) []byte {
	c := make([]byte, len(b))
	for i := range b {
		c[i] = ^b[i]
	}
	return c
}

// prefixed reports whether one begins as the other goes on to its end.
func prefixed(a, b []byte) bool { return bytes.HasPrefix(a, b) || bytes.HasPrefix(b, a) }

// quotes identifies the packet that an ICMP error is about, by what it quotes behind the addresses. A trace shows less.
// Then the packet is assumed to be the request, unless its header is another packet's.
func (id *identity) quotes(transport []byte) direction {
	const header, least = 8, 8 // of the error, and of the quoted transport header (RFC 792)
	if len(transport) < header+20+least {
		return id.begins(transport[min(header, len(transport)):])
	}
	quoted := transport[header:]
	protocol := protocolOf(quoted)
	quoted = quoted[witness.HeaderLength(quoted):]
	switch {
	case protocol == packet.UDP && len(quoted) >= least:
		return id.ofDatagram(quoted, false)
	case protocol != id.request.Protocol:
		return foreign
	case len(quoted) < least:
		return there
	case protocol != packet.TCP:
		return id.ofEcho(packet.Tuple{Protocol: protocol, Type: quoted[0]}, quoted)
	case !id.hasSeq:
		return foreign
	case binary.BigEndian.Uint32(quoted[4:]) == id.seq:
		return there
	case len(quoted) >= 12 && id.answers(flagsOf(quoted), binary.BigEndian.Uint32(quoted[4:]), binary.BigEndian.Uint32(quoted[8:])):
		return back
	}
	return foreign
}

// begins reports whether an IP header of which only the beginning is there may be the request's.
func (id *identity) begins(quoted []byte) direction {
	if id.length != 0 && len(quoted) >= 6 && id.length != lengthOf(quoted) {
		return foreign
	}
	if id.hasSeq && len(quoted) >= 12 && (protocolOf(quoted) != id.request.Protocol || witness.Label(quoted) != id.label) {
		return foreign
	}
	return there
}

// lengthOf returns the length of the packet with an IP header, of at least 6 bytes.
func lengthOf(header []byte) int {
	if header[0]>>4 == 6 {
		return 40 + int(binary.BigEndian.Uint16(header[4:]))
	}
	return int(binary.BigEndian.Uint16(header[2:]))
}

// protocolOf returns what an IP header names, of at least 10 bytes.
func protocolOf(header []byte) packet.Protocol {
	if header[0]>>4 == 6 {
		return packet.Protocol(header[6])
	}
	return packet.Protocol(header[9])
}

// answers reports whether a segment answers the probe: it acknowledges the SYN, or is the reset for what acknowledged nothing that was there
// (RFC 9293 section 3.10.7.1). A server's later segments may acknowledge the SYN, too, but have neither SYN nor RST: its keep-alives, its FIN.
func (id *identity) answers(flags packet.TCPFlags, seq, ack uint32) bool {
	if id.flags&packet.ACK != 0 {
		return seq == id.ack && ack == 0
	}
	return ack == id.seq+1 && flags&(packet.SYN|packet.RST) != 0
}

// flagsOf returns the flags of a TCP segment. Those of one that is cut off before them are unknown, and count as those of an answer.
func flagsOf(segment []byte) packet.TCPFlags {
	if len(segment) < 14 {
		return packet.SYN
	}
	return packet.TCPFlags(segment[13])
}

// ofEcho returns the direction of a query or its answer.
func (id *identity) ofEcho(t packet.Tuple, transport []byte) direction {
	switch {
	case !id.carries(transport):
		return foreign
	case t.Type == id.request.Type:
		return there
	}
	return back
}

func (id *identity) ofTCP(p *packet.Packet, transport []byte) direction {
	if !id.hasSeq || len(transport) < 12 {
		return foreign
	}
	switch seq, ack := binary.BigEndian.Uint32(transport[4:]), binary.BigEndian.Uint32(transport[8:]); {
	case p.TCPFlags&control == id.flags && seq == id.seq:
		return there
	case id.answers(p.TCPFlags, seq, ack):
		return back
	}
	return foreign
}

// headerOfQuery is the length of a UDP header and of that of an ICMP echo.
const headerOfQuery = 8

// carries reports whether a transport header, of which the trace gives no more than 20 bytes, is followed by the probe's payload.
func (id *identity) carries(transport []byte) bool {
	if len(transport) <= headerOfQuery {
		return len(id.payload) == 0
	}
	return prefixed(id.payload, transport[headerOfQuery:])
}

// isError tells of ICMP errors: no query is answered by their type.
func isError(p *packet.Packet) bool {
	return (p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6) && p.Tuple.Reply().Type == p.Type
}

// isRedirect tells of the messages that routers send to neighbours that could do without them (RFC 792, RFC 4861).
func isRedirect(p *packet.Packet) bool {
	return p.Protocol == packet.ICMP && p.Type == 5 || p.Protocol == packet.ICMPv6 && p.Type == 137
}
