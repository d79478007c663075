package netfilter

import "fmt"

// SetMark changes the mark of the packet, or of its connection: the bits of Mask are cleared, then Value is xored in (xt_mark.c,
// xt_connmark.c).
type SetMark struct {
	Connection  bool
	Value, Mask uint32
}

// Eval changes the mark. Packets without a connection have no connection mark.
func (s *SetMark) Eval(c *Context) Verdict {
	p := c.Packet
	switch {
	case !s.Connection:
		p.Mark = p.Mark&^s.Mask ^ s.Value
	case p.Track.Flow != nil:
		p.Track.Flow.Mark = p.Track.Flow.Mark&^s.Mask ^ s.Value
	}
	return Verdict{}
}

// Effect tells that it modifies.
func (s *SetMark) Effect() EffectKind { return Modifies }

func (s *SetMark) String() string {
	what := negated(s.Connection, "mark", "connection mark")
	switch {
	case s.Mask == ^uint32(0):
		return fmt.Sprintf("set the %s to %#x", what, s.Value)
	case s.Value == s.Mask:
		return fmt.Sprintf("set bits %#x in the %s", s.Value, what)
	case s.Value == 0:
		return fmt.Sprintf("clear bits %#x in the %s", s.Mask, what)
	case s.Mask == 0:
		return fmt.Sprintf("flip bits %#x in the %s", s.Value, what)
	}
	return fmt.Sprintf("clear bits %#x in the %s and flip %#x", s.Mask, what, s.Value)
}

// CopyMark copies the packet's mark to its connection (CONNMARK --save-mark) or back (--restore-mark): the bits of the target's mask are
// cleared, then those of the source under its mask are xored in.
type CopyMark struct {
	Restore      bool   // from the connection to the packet
	Packet, Flow uint32 // masks: --nfmask, --ctmask
}

// Eval copies. Packets without a connection stay as they are.
func (s *CopyMark) Eval(c *Context) Verdict {
	p := c.Packet
	switch flow := p.Track.Flow; {
	case flow == nil:
	case s.Restore:
		p.Mark = p.Mark&^s.Packet ^ flow.Mark&s.Flow
	default:
		flow.Mark = flow.Mark&^s.Flow ^ p.Mark&s.Packet
	}
	return Verdict{}
}

// Effect tells that it modifies.
func (s *CopyMark) Effect() EffectKind { return Modifies }

func (s *CopyMark) String() string {
	text := negated(s.Restore, "copy the mark to the connection mark", "copy the connection mark to the mark")
	if s.Packet != ^uint32(0) || s.Flow != ^uint32(0) {
		text += fmt.Sprintf(" (masks %#x and %#x)", s.Packet, s.Flow)
	}
	return text
}
