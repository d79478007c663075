package netfilter

import "packetwalk.dev/internal/model/packet"

// SetTracking tells conntrack what to do with the packet (xt_CT.c): not to track it, or to track it in a zone. Packets that are tracked
// already stay as they are.
type SetTracking struct {
	NoTrack  bool
	Zone     packet.Zone
	ZoneMark bool // the zone is the packet's mark when conntrack looks at it
}

// Eval notes it.
func (s *SetTracking) Eval(c *Context) Verdict {
	p := c.Packet
	switch {
	case p.Track.Flow != nil || p.Untracked || p.AboutUntracked || p.Template:
	case s.NoTrack:
		p.Untracked, p.Track.State = true, packet.Untracked
	default:
		p.Zone, p.ZoneMark, p.Template = s.Zone, s.ZoneMark, true
		if s.ZoneMark {
			p.Zone.ID = uint16(p.Mark)
		}
	}
	return Verdict{}
}

// Effect tells that it modifies.
func (s *SetTracking) Effect() EffectKind { return Modifies }

func (s *SetTracking) String() string {
	switch {
	case s.NoTrack:
		return "do not track the connection"
	case s.ZoneMark:
		return "track the connection in the zone of the mark"
	}
	return "track the connection in zone " + s.Zone.String()
}

// TransparentProxy hands the packet to a socket of this machine, whatever its destination (xt_TPROXY.c). Without such a socket the packet
// is dropped.
type TransparentProxy struct {
	To          string // address and port of the socket
	Value, Mask uint32 // of the mark
}

// Eval asks whether the socket is there.
func (t *TransparentProxy) Eval(c *Context) Verdict {
	if c.ask(Unknown, t, Option{Label: "a transparent socket is there"}, Option{Label: "no transparent socket"}) == 1 {
		return Verdict{Kind: Drop}
	}
	c.Packet.Mark = c.Packet.Mark&^t.Mask ^ t.Value
	return Verdict{Kind: Accept}
}

// Effect tells that it modifies.
func (t *TransparentProxy) Effect() EffectKind { return Modifies }

func (t *TransparentProxy) String() string { return "hand to the transparent socket " + t.To }
