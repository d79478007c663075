package conntrack

import (
	"slices"
	"testing"

	"packetwalk.dev/internal/model/packet"
)

// TestClash: two flows that were new at once and have the same tuple; the second is dropped (__nf_conntrack_confirm).
func TestClash(t *testing.T) {
	v := NewView(nil, defaults)
	a, b := syn(tuple(packet.TCP, "10.0.0.1", 1, "10.9.0.1", 80)), syn(tuple(packet.TCP, "10.0.0.1", 1, "10.9.0.1", 80))
	v.Track(&a)
	v.Track(&b)
	if !v.Confirm(&a) || v.Confirm(&b) {
		t.Error("want the first to be confirmed, the second not")
	}
}

// TestZones: the same tuple in two zones is two flows, each with the answers of its zone. Where the zone counts for requests only, answers
// are found in the default zone.
func TestZones(t *testing.T) {
	to := tuple(packet.TCP, "10.0.0.1", 1, "10.9.0.1", 80)
	for _, c := range []struct {
		zone, answer packet.Zone
		sameReply    bool // the two flows' answers are in one zone, so that they cannot be alike
	}{
		{zone: packet.Zone{ID: 7}, answer: packet.Zone{ID: 7}},
		{zone: packet.Zone{ID: 7, Only: packet.ZoneReply}, answer: packet.Zone{ID: 7, Only: packet.ZoneReply}},
		{zone: packet.Zone{ID: 7, Only: packet.ZoneOriginal}, answer: packet.Zone{}, sameReply: true},
	} {
		v := NewView(nil, defaults)
		a, b := syn(to), syn(to)
		b.Zone = c.zone
		if c.zone.Only != packet.ZoneReply { // else both are one flow: requests are in the default zone
			send(t, v, &a, nil, nil)
		}
		send(t, v, &b, nil, nil)
		if b.Track.Flow.Zone != c.zone || b.Track.Flow == a.Track.Flow || (b.Track.Flow.Reply == to.Reply()) == c.sameReply {
			t.Errorf("zone %s: flows %+v", c.zone, v.Flows())
		}
		answer := packet.Packet{Tuple: b.Track.Flow.Reply, TCPFlags: packet.SYN | packet.ACK, Local: packet.Local{Zone: c.answer}}
		if v.Track(&answer); answer.Track.Flow != b.Track.Flow || !answer.Track.Reply {
			t.Errorf("zone %s: the answer is %+v", c.zone, answer.Track)
		}
	}
}

// TestTwins: what has the tuples of a flow in another zone gets another port, except a datagram the other way round, which Confirm drops.
func TestTwins(t *testing.T) {
	for _, protocol := range []packet.Protocol{packet.TCP, packet.UDP} {
		there := tuple(protocol, "10.0.0.1", 2000, "10.9.0.1", 80)
		for _, c := range []struct {
			zone   packet.ZoneDirection
			second packet.Tuple
		}{{packet.ZoneOriginal, there}, {packet.ZoneReply, there.Reply()}} {
			v := NewView(nil, defaults)
			a, b := syn(there), syn(c.second)
			a.Zone = packet.Zone{ID: 7, Only: c.zone}
			send(t, v, &a, nil, nil)
			v.Track(&b)
			v.Null(&b, false)
			v.Null(&b, true)
			keeps := protocol == packet.UDP && c.second != there
			if changed, confirmed := b.SourcePort != c.second.SourcePort, v.Confirm(&b); changed == keeps || confirmed != changed {
				t.Errorf("%s: port %s, confirmed %v", b.Tuple, b.SourcePort, confirmed)
			}
		}
	}
}

// TestAnswerInZone: an answer that is in a zone for its own answers only begins a flow of its own, beside that of the request.
func TestAnswerInZone(t *testing.T) {
	v := NewView(nil, defaults)
	request := syn(tuple(packet.UDP, "10.0.0.1", 2000, "10.9.0.1", 53))
	send(t, v, &request, nil, nil)
	answer := syn(request.Track.Flow.Reply)
	answer.Zone = packet.Zone{ID: 3, Only: packet.ZoneReply}
	v.Track(&answer)
	v.Null(&answer, true)
	if answer.Track.Flow == request.Track.Flow || answer.Tuple != request.Track.Flow.Reply || !v.Confirm(&answer) {
		t.Errorf("%+v, %+v", answer.Tuple, answer.Track.Flow)
	}
	// The answer's flow has the tuple that the request's has for its answers, and is found whichever stands first.
	flows := []packet.Flow{*request.Track.Flow, *answer.Track.Flow}
	for range 2 {
		slices.Reverse(flows)
		v, p := NewView(NewTable(flows), defaults), syn(answer.Tuple)
		p.Zone, p.Template = packet.Zone{ID: 3, Only: packet.ZoneReply}, true
		if v.Track(&p); p.Track.Flow == nil || p.Track.Flow.Status&packet.Confirmed == 0 {
			t.Errorf("%+v", p.Track)
		}
	}
}

// TestZoneOfMark: the zone is the mark that the packet has when conntrack looks at it.
func TestZoneOfMark(t *testing.T) {
	v := NewView(nil, defaults)
	p := syn(tuple(packet.TCP, "10.0.0.1", 1, "10.9.0.1", 80))
	p.ZoneMark, p.Template, p.Mark = true, true, 0x10005
	if v.Track(&p); p.Track.Flow.Zone.ID != 5 || p.Template {
		t.Errorf("%+v", p)
	}
}
