package netfilter

import "fmt"

// SetTTL changes the TTL or hop limit by Delta, or with Set to Value (xt_HL.c). It stays within 0 and 255.
type SetTTL struct {
	Set   bool
	Value uint8
	Delta int
}

// Eval changes the TTL.
func (s *SetTTL) Eval(c *Context) Verdict {
	if s.Set {
		c.Packet.TTL, c.Packet.SomeTTL = s.Value, false
	} else {
		c.Packet.TTL = uint8(min(max(int(c.Packet.TTL)+s.Delta, 0), 255))
	}
	return Verdict{}
}

// Effect tells that it modifies.
func (s *SetTTL) Effect() EffectKind { return Modifies }

func (s *SetTTL) String() string {
	switch {
	case s.Set:
		return fmt.Sprintf("set the TTL to %d", s.Value)
	case s.Delta < 0:
		return fmt.Sprintf("lower the TTL by %d", -s.Delta)
	}
	return fmt.Sprintf("raise the TTL by %d", s.Delta)
}

// SetTOS changes the type of service: the bits of Mask are cleared, then Value is xored in (xt_DSCP.c, which has TOS as well).
type SetTOS struct {
	Value, Mask uint8
}

// Eval changes the bits.
func (s *SetTOS) Eval(c *Context) Verdict {
	c.Packet.TOS = c.Packet.TOS&^s.Mask ^ s.Value
	return Verdict{}
}

// Effect tells that it modifies.
func (s *SetTOS) Effect() EffectKind { return Modifies }

func (s *SetTOS) String() string {
	if s.Mask == 0xfc {
		return fmt.Sprintf("set DSCP to %#02x", s.Value>>2)
	}
	return fmt.Sprintf("set TOS to %#02x/%#02x", s.Value, s.Mask)
}

// SetPriority changes the packet's priority (xt_CLASSIFY.c): the class that queueing disciplines see.
type SetPriority struct {
	Priority uint32
}

// Eval changes the priority.
func (s *SetPriority) Eval(c *Context) Verdict {
	c.Packet.Priority = s.Priority
	return Verdict{}
}

// Effect tells that it modifies.
func (s *SetPriority) Effect() EffectKind { return Modifies }

func (s *SetPriority) String() string {
	return fmt.Sprintf("set the class to %x:%x", s.Priority>>16, s.Priority&0xffff)
}
