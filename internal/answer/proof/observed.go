package proof

import (
	"bytes"
	"encoding/binary"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/model/packet"
)

// Observed is what the kernel did with the packet of a probe and with what came back.
type Observed struct {
	Hosts  map[string]*Host
	Answer kernel.ProbeResult
	// Payload is what the probe carried: packets with another one are not its.
	Payload []byte
}

// Host is what was seen in one namespace, in the order in which it was read.
type Host struct {
	Trace   []kernel.TraceEvent
	Packets []kernel.Captured
	Flows   []kernel.Flow
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
	seq     uint32 // of the SYN
	hasSeq  bool
	// refusal says that what is predicted to come back is an ICMP error. Others, about an answer or redirecting a router's neighbour, are
	// not the probe's.
	refusal bool
}

// identify finds the sequence number of the SYN that left the sender.
func identify(o *Observed, sender string) *identity {
	id := &identity{request: o.Answer.Tuple, payload: o.Payload}
	h := o.Hosts[sender]
	if h == nil || id.request.Protocol != packet.TCP {
		return id
	}
	note := func(p *packet.Packet, transport []byte) {
		if !id.hasSeq && p.TCPFlags&(packet.SYN|packet.ACK) == packet.SYN && p.SourcePort == id.request.SourcePort && len(transport) >= 8 {
			id.seq, id.hasSeq = binary.BigEndian.Uint32(transport[4:]), true
		}
	}
	for _, e := range h.Trace {
		if e.Packet != nil {
			note(e.Packet, e.Transport)
		}
	}
	for _, c := range h.Packets {
		note(&c.Packet, c.Transport)
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

// of tells the direction of a packet by what address translation leaves alone: the flags and sequence numbers of TCP, the type and payload
// of an echo, the payload of a datagram. An answering datagram is told by its tuple in expected.
func (id *identity) of(p *packet.Packet, transport []byte, expected func(packet.Tuple) bool) direction {
	if p.Protocol != id.request.Protocol || isError(p) {
		if isError(p) && id.refusal && !isRedirect(p) {
			return back
		}
		return foreign
	}
	switch p.Protocol {
	case packet.TCP:
		return id.ofTCP(p, transport)
	case packet.ICMP, packet.ICMPv6:
		if !id.carries(transport) {
			return foreign
		}
		if p.Type == id.request.Type {
			return there
		}
		return back
	}
	switch {
	case expected(p.Tuple):
		return back
	case id.carries(transport):
		return there
	}
	return foreign
}

func (id *identity) ofTCP(p *packet.Packet, transport []byte) direction {
	if !id.hasSeq || len(transport) < 12 {
		return foreign
	}
	switch seq, ack := binary.BigEndian.Uint32(transport[4:]), binary.BigEndian.Uint32(transport[8:]); {
	case p.TCPFlags&(packet.SYN|packet.ACK) == packet.SYN && seq == id.seq:
		return there
	case p.TCPFlags&packet.ACK != 0 && ack == id.seq+1:
		return back
	}
	return foreign
}

// headerOfQuery is the length of a UDP header and of that of an ICMP echo.
const headerOfQuery = 8

// carries tells whether a transport header, of which the trace gives no more than 20 bytes, is followed by the probe's payload.
func (id *identity) carries(transport []byte) bool {
	if len(transport) <= headerOfQuery {
		return len(id.payload) == 0
	}
	return bytes.HasPrefix(id.payload, transport[headerOfQuery:]) || bytes.HasPrefix(transport[headerOfQuery:], id.payload)
}

// isError tells of ICMP errors: no query is answered by their type.
func isError(p *packet.Packet) bool {
	return (p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6) && p.Tuple.Reply().Type == p.Type
}

// isRedirect tells of the messages that routers send to neighbours that could do without them (RFC 792, RFC 4861).
func isRedirect(p *packet.Packet) bool {
	return p.Protocol == packet.ICMP && p.Type == 5 || p.Protocol == packet.ICMPv6 && p.Type == 137
}
