package proof

import (
	"maps"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// strays looks for packets of the probe that arrived where none is predicted to: of a packet that is dropped in silence nothing arrives
// behind that, and nothing comes back. Copies that a bridge floods reach other stations, which drop them.
func (c *comparison) strays(outcome *walk.Outcome) {
	if !c.observed.Everywhere || c.Undecided {
		return
	}
	steps := slices.Concat(withCopies(outcome.There, 0), withCopies(outcome.Back, 0))
	flooded := slices.ContainsFunc(steps, func(s indexedStep) bool { return s.Bridge != nil && len(s.Bridge.Ports) > 1 })
	for _, name := range slices.Sorted(maps.Keys(c.observed.Hosts)) {
		for i := range c.observed.Hosts[name].Packets {
			p := &c.observed.Hosts[name].Packets[i]
			if p.Out || p.Bridge || flooded && p.Packet.Cast == packet.OtherHost || !c.ofProbe(outcome, p) || isPredicted(steps, name, p) {
				continue
			}
			c.fact(&Difference{Host: name, Predicted: "nothing of it arrives there", Observed: at(p.Link, false) + packetText(&p.Packet),
				position: len(steps), more: true, Stray: true})
			return
		}
	}
	c.fact(nil)
	c.silent++
}

// isPredicted reports whether the walk predicts a packet at the place of its capture.
func isPredicted(steps []indexedStep, host string, p *witness.CapturedPacket) bool {
	return slices.ContainsFunc(steps, func(s indexedStep) bool {
		return s.Stage == walk.Received && s.Host == host && s.Packet.In == p.Link && sameTuple(&s.Packet.Tuple, &p.Packet.Tuple)
	})
}

// ofProbe reports whether a packet is the probe's, an answer to it, or an error about one of these that the prediction does not tell of.
func (c *comparison) ofProbe(outcome *walk.Outcome, p *witness.CapturedPacket) bool {
	if p.Packet.About == nil {
		return !isError(&p.Packet) && c.id.of(&p.Packet, p.Transport, expectNone) != foreign
	}
	end, steps, quoted := &outcome.End, outcome.There, c.id.quotes(p.Transport)
	switch quoted {
	case foreign:
		return false
	case back:
		if end, steps = outcome.BackEnd, outcome.Back; c.sender == "" {
			return false // no socket waits for the answer: the host that gets it may refuse it
		}
	}
	aboutCopy := func(s walk.Step) bool { return s.Copied != nil && isExpectedError(&s.Copied.End, &p.Packet) }
	return !isRedirect(&p.Packet) && !isExpectedError(end, &p.Packet) && !slices.ContainsFunc(steps, aboutCopy) && !c.endedCopies[quoted]
}

// isExpectedError reports whether the end of a packet's walk causes this ICMP error. A walk does not follow errors about replies, and errors
// about a next hop without an answer.
func isExpectedError(end *walk.End, p *packet.Packet) bool {
	if end == nil {
		return false
	}
	reject := end.Reject
	if refuses(end) {
		reject = "icmp-port-unreachable"
	}
	kind, code, ok := walk.ErrorOf(reject, p.Protocol == packet.ICMPv6)
	return ok && (refuses(end) || end.Kind == walk.Rejected || unresolved(end)) && p.Type == kind && p.Code == code
}

// refuses reports whether the host where a packet's walk ended tells its sender that no program waits for it.
func refuses(end *walk.End) bool {
	p := &end.Packet
	return end.Refused && !end.Taken && p.About == nil && p.Protocol.HasPorts()
}
