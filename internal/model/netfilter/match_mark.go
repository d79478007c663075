package netfilter

import "fmt"

// MatchMark tests the packet's mark, or the mark of its connection, under a mask (xt_mark.c, xt_connmark.c).
type MatchMark struct {
	Connection  bool
	Not         bool
	Value, Mask uint32
}

// Eval compares the mark. Packets without a connection have no connection mark, and never match.
func (m *MatchMark) Eval(c *Context) Verdict {
	mark := c.Packet.Mark
	if m.Connection {
		flow := c.connection()
		if flow == nil {
			return Verdict{Kind: Break}
		}
		mark = flow.Mark
	}
	return c.hold(truthOf(mark&m.Mask == m.Value).xor(m.Not), m)
}

// Key returns the packet's mark under the mask.
func (m *MatchMark) Key() (Key, []Value, bool) {
	if m.Connection || m.Not || m.Value&^m.Mask != 0 {
		return Key{}, nil, false
	}
	return Key{KeyMark, Value{Lo: uint64(m.Mask)}}, []Value{{Lo: uint64(m.Value)}}, true
}

func (m *MatchMark) String() string {
	what := negated(m.Connection, "mark ", "connection mark ")
	if m.Value == m.Mask && m.Mask != 0 && m.Mask != ^uint32(0) {
		return what + negated(m.Not, "has ", "lacks ") + fmt.Sprintf("%#x", m.Value)
	}
	return what + negated(m.Not, "is ", "is not ") + masked(m.Value, m.Mask)
}

// masked returns a number, with its mask unless every bit counts.
func masked(value, mask uint32) string {
	if mask == ^uint32(0) {
		return fmt.Sprintf("%#x", value)
	}
	return fmt.Sprintf("%#x/%#x", value, mask)
}
