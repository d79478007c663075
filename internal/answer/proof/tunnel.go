package proof

import (
	"encoding/binary"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// carrier is what a packet of VXLAN is known by of which a trace shows 20 bytes behind the IP header: of one flow's packets a connection's
// first is longer than those that follow.
type carrier struct {
	tuple  packet.Tuple
	length int
}

// innerPacket is a packet that one of VXLAN was seen to carry.
type innerPacket struct {
	packet    packet.Packet
	transport []byte
}

// expectedCarrier is a packet of VXLAN that is predicted to carry a packet of the probe.
type expectedCarrier struct {
	packet.Tuple
	direction direction
	length    int
	vni       uint32
	station   packet.MAC   // to which the frame goes that it carries
	inner     packet.Tuple // of what it carries
}

// inside returns the direction of what a packet of VXLAN carries: by its content where there is enough of it, else, as in a trace, by what
// those carried that were captured; and where none was, since a rule dropped it before, by what is predicted. ok is false for other
// packets.
func (id *identity) inside(p *packet.Packet, transport []byte, expected func(packet.Tuple) bool) (d direction, ok bool) {
	if p.Protocol != packet.UDP {
		return foreign, false
	}
	if inner, payload, ok := witness.Decapsulate(transport); ok {
		return id.of(&inner, payload, expected), true // which may carry one itself
	}
	seen := id.carriers[carrier{p.Tuple, p.Length}]
	for i := range seen {
		if d := id.of(&seen[i].packet, seen[i].transport, expected); d != foreign {
			return d, true
		}
	}
	if len(seen) > 0 {
		return foreign, true
	}
	i := slices.IndexFunc(id.toCarry, func(c expectedCarrier) bool { return c.begins(p, transport) })
	if i < 0 {
		return foreign, false
	}
	return id.toCarry[i].direction, true
}

// ofOtherCarrier reports whether the events after all predicted steps may belong to a packet of VXLAN that carries no packet of the probe's, and
// looks in the trace like one that does: a reset about the answer is as long as the request.
func (m *matcher) ofOtherCarrier() bool {
	p := m.events[0].packet
	return p != nil && p.Protocol == packet.UDP && slices.ContainsFunc(m.id.carriers[carrier{p.Tuple, p.Length}], func(i innerPacket) bool {
		return m.id.of(&i.packet, i.transport, expectNone) == foreign
	})
}

// begins reports whether a packet of which only the beginning is known may be the predicted one: it has its addresses, its length, its
// network and the beginning of the frame that it carries.
func (c *expectedCarrier) begins(p *packet.Packet, transport []byte) bool {
	const udp, vxlan, cut = 8, 8, 4
	if len(transport) < udp+vxlan+cut || !sameTuple(&c.Tuple, &p.Tuple) || c.length != 0 && c.length != p.Length {
		return false
	}
	return binary.BigEndian.Uint32(transport[udp+4:])>>8 == c.vni && [cut]byte(transport[udp+vxlan:]) == [cut]byte(c.station[:])
}

// quotesCarrier reports whether an ICMP error is about a packet of VXLAN that carried one of the probe's: by the length of what it quotes,
// since a trace shows no more of that than the beginning of an IP header.
func (id *identity) quotesCarrier(transport []byte) bool {
	const header, least = 8, 12
	if len(transport) < header+least {
		return false
	}
	quoted := transport[header:]
	length := lengthOf(quoted)
	if protocolOf(quoted) != packet.UDP {
		return false
	}
	for k := range id.carriers {
		if k.length == length {
			return true
		}
	}
	return slices.ContainsFunc(id.toCarry, func(c expectedCarrier) bool { return c.length == length })
}

// findCarriers notes what captured packets of VXLAN carried, and what answers those that carried the probe's packet.
func (id *identity) findCarriers(o *Observation) {
	id.carriers, id.carrierAnswers = map[carrier][]innerPacket{}, map[string]bool{}
	for _, h := range o.Hosts {
		for i := range h.Packets {
			p := &h.Packets[i]
			if p.Packet.Protocol != packet.UDP {
				continue
			}
			if inner, payload, ok := witness.Decapsulate(p.Transport); ok {
				k := carrier{p.Packet.Tuple, p.Packet.Length}
				id.carriers[k] = append(id.carriers[k], innerPacket{inner, payload})
				if id.of(&inner, payload, expectNone) == there {
					id.carrierAnswers[string(complement(p.Transport[headerOfQuery:]))] = true
				}
			}
		}
	}
}

// expectCarriers notes what is predicted to carry packets of the probe in one of the outcomes.
func (id *identity) expectCarriers(outcomes ...walk.Outcome) {
	known := map[expectedCarrier]bool{}
	for i := range outcomes {
		o := &outcomes[i]
		id.addCarriers(o.There, there, known)
		id.addCarriers(o.Back, back, known)
		id.refusedCarrier = len(o.Back) > 0 && o.Back[0].Packet.About != nil && slices.ContainsFunc(id.toCarry, func(c expectedCarrier) bool {
			return c.direction == there && c.Tuple == *o.Back[0].Packet.About
		})
	}
}

// addCarriers adds the packets of steps that carry others, unless they are known.
func (id *identity) addCarriers(steps []walk.Step, d direction, known map[expectedCarrier]bool) {
	for i := range steps {
		p := &steps[i].Packet
		if p.Tunnel == nil {
			continue
		}
		inner := &p.Tunnel.Inner
		c := expectedCarrier{p.Tuple, d, p.Length, p.Tunnel.VNI, inner.Frame.Destination, inner.Tuple}
		if !known[c] {
			known[c] = true
			id.toCarry = append(id.toCarry, c)
		}
	}
}

// tunnelled reports whether a packet goes through a tunnel in one of the outcomes.
func tunnelled(result *walk.Result) bool {
	for s := range result.Steps() {
		if s.Packet.Tunnel != nil {
			return true
		}
	}
	return false
}

// sentCarriers returns the packets of VXLAN by which a host was seen to send packets of the probe, as they were before a translation.
func sentCarriers(h *Host, id *identity) (all []walk.Carrier) {
	for i := range h.Packets {
		p := &h.Packets[i]
		inner, payload, ok := witness.Decapsulate(p.Transport)
		if !p.Out || p.Packet.Protocol != packet.UDP || !ok || id.of(&inner, payload, expectNone) == foreign {
			continue
		}
		sent := p.Packet.Tuple
		for _, f := range h.Flows {
			if packet.Protocol(f.Protocol) == packet.UDP && tupleOf(f.Protocol, f.ReplySource, f.ReplyDestination) == sent.Reply() {
				sent = tupleOf(f.Protocol, f.Source, f.Destination)
			}
		}
		all = append(all, walk.Carrier{Tuple: sent, Carried: inner.Tuple})
	}
	for _, t := range witness.GroupTrace(h.Trace) { // those that rules dropped before they left
		i := slices.IndexFunc(id.toCarry, func(c expectedCarrier) bool { return c.begins(&t.Packet, t.Transport) })
		if i >= 0 && t.Packet.Protocol == packet.UDP && len(id.carriers[carrier{t.Packet.Tuple, t.Packet.Length}]) == 0 {
			all = append(all, walk.Carrier{Tuple: t.Packet.Tuple, Carried: id.toCarry[i].inner})
		}
	}
	return all
}
