package proof

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// pinned returns the prediction once more, with the ports that the kernel has chosen by chance as they were seen: what depends on them is
// open no longer.
func pinned(source snapshot.Source, predicted *walk.Result, o *Observation) (*walk.Result, error) {
	request := predicted.Request
	request.Settled, request.Carriers = map[string][]packet.Flow{}, map[string][]walk.Carrier{}
	id := identifyAny(o, predicted)
	for name, h := range o.Hosts {
		request.Settled[name] = settled(h, id, name == request.Host)
		request.Carriers[name] = sentCarriers(h, id)
	}
	return walk.Walk(source, request)
}

// identifyAny does what identify does, for packets of any outcome.
func identifyAny(o *Observation, predicted *walk.Result) *identity {
	id := identify(o, &predicted.Request)
	id.refusal, id.anyOutcome = true, true // an error may be what was carried
	id.expectCarriers(predicted.Outcomes...)
	return id
}

// settled returns the connections that a host has made, by what became of the packet between coming in and going out, and else as conntrack
// has them: of one first packet it can have several, in zones of their own.
func settled(h *Host, id *identity, sender bool) []packet.Flow {
	flows := crossed(h, id, sender)
	for i := range h.Flows {
		if f := &h.Flows[i]; packet.Protocol(f.Protocol).HasPorts() {
			flows = append(flows, packet.Flow{
				Original: tupleOf(f.Protocol, f.Source, f.Destination), Reply: tupleOf(f.Protocol, f.ReplySource, f.ReplyDestination),
			})
		}
	}
	return flows
}

// crossed returns what became of the packet at a host, each time that it came in and went out.
func crossed(h *Host, id *identity, sender bool) (flows []packet.Flow) {
	var original *packet.Tuple
	if sender {
		original = &id.request
	}
	left := false    // since it came in
	leaving := false // by a bridge, and then by its port: the last of them was translated
	for _, p := range requests(h, id.directionOf) {
		switch {
		case !p.Out && (original == nil || left): // by a port, and then by its bridge: the first of them was not translated
			original, left = &p.Packet.Tuple, false
		case p.Out && leaving:
			flows[len(flows)-1].Reply = p.Packet.Reply()
		case p.Out && original != nil:
			flows = append(flows, packet.Flow{Original: *original, Reply: p.Packet.Reply()})
			leaving = true
		}
		leaving, left = leaving && p.Out, left || p.Out
	}
	return flows
}

// requests returns the packets that were captured at a host on their way there, as of tells. A datagram that answers may have the payload
// of the one that it answers: it is told by its tuple, the reply's of a packet that was captured before it.
func requests(h *Host, of func(*packet.Packet, []byte, func(packet.Tuple) bool) direction) (found []*witness.CapturedPacket) {
	seen := map[packet.Tuple]bool{}
	for i := range h.Packets {
		p := &h.Packets[i]
		if of(&p.Packet, p.Transport, expectNone) != there || seen[p.Packet.Reply()] && !seen[p.Packet.Tuple] {
			continue
		}
		seen[p.Packet.Tuple] = true
		found = append(found, p)
	}
	return found
}

// expectNone reports false for each packet: it stands for a host where none is expected.
func expectNone(packet.Tuple) bool { return false }

// byChance reports whether a port that the kernel chooses by chance is on one of the ways.
func byChance(result *walk.Result) bool {
	for s := range result.Steps() {
		if f := s.Flow(); spanned(&s.Packet.Tuple) || f != nil && (spanned(&f.Original) || spanned(&f.Reply)) {
			return true
		}
	}
	return false
}

// spanned tells of a tuple with a port that is not known.
func spanned(t *packet.Tuple) bool { return !t.SourcePort.Known() || !t.DestinationPort.Known() }

func tupleOf(protocol uint8, source, destination netip.AddrPort) packet.Tuple {
	return packet.Tuple{Protocol: packet.Protocol(protocol), Source: source.Addr(), Destination: destination.Addr(),
		SourcePort: packet.Exactly(source.Port()), DestinationPort: packet.Exactly(destination.Port())}
}
