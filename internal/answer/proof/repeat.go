package proof

import "packetwalk.dev/internal/model/walk"

// TCP sends a SYN-ACK again that is not acknowledged within a second (RFC 6298, section 2.1), and a comparison that takes longer sees
// both. Rules that count, limit or take turns treat the second one differently, so only the first is compared, and the report counts the
// rules that others met ([Report.Repeated]).

// sentAgain reports whether the host that sent the packet of one direction was seen to send it more than once: where it left, or came back to
// the host itself by lo.
func (c *comparison) sentAgain(steps []walk.Step, d direction) bool {
	if len(steps) == 0 || steps[0].Stage != walk.Sent {
		return false
	}
	sender := steps[0].Host
	h := c.observed.Hosts[sender]
	for i := 0; h != nil && i < len(steps) && steps[i].Host == sender; i++ {
		s := indexedStep{Step: &steps[i]}
		if link, _ := place(s); link != "" {
			return c.captures(h, s, d) > 1
		}
	}
	return false
}

// captures counts the packets of one direction that were captured where a step has the packet, and as it has it.
func (c *comparison) captures(h *Host, s indexedStep, d direction) (n int) {
	link, out := place(s)
	expected := c.answers(s.Host)
	for _, p := range h.Packets {
		if p.Link == link && p.Out == out && packetDiffers(s, &p.Packet) == "" && c.id.of(&p.Packet, p.Transport, expected) == d {
			n++
		}
	}
	return n
}

// ofRepeat reports whether the events after all predicted steps belong to a repeated packet: a rule dropped the first one, or its sender
// was seen to send it again, and the events begin where the first one's did. A host lowers the TTL of packets that it forwards to itself.
func (m *matcher) ofRepeat() bool {
	if m.dropped {
		return true
	}
	next := &m.events[0]
	return m.again && m.first != nil && m.first.packet != nil && next.packet != nil && chainOf(m.first) == chainOf(next) &&
		m.first.packet.Tuple == next.packet.Tuple && m.first.packet.TTL == next.packet.TTL
}

func chainOf(e *observedRule) ChainID { return ChainID{e.Family, e.Table, e.Chain} }
