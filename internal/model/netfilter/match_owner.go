package netfilter

import (
	"fmt"
	"strings"
)

// MatchOwner tests the owner of the sending socket (xt_owner.c). Parts that are nil are not tested.
type MatchOwner struct {
	UID, GID      *IDRange
	SocketExists  bool
	NoSocket      bool // ! --socket-exists
	Supplementary bool // --suppl-groups: the group may be one of the user's others
}

// IDRange is a range of user or group numbers.
type IDRange struct {
	Not       bool
	Low, High uint32
}

// Eval compares the owner. A packet that no socket of this machine sent matches only where every part is negated.
func (m *MatchOwner) Eval(c *Context) Verdict {
	p := c.Packet
	unowned := (m.UID == nil || m.UID.Not) && (m.GID == nil || m.GID.Not)
	if p.HasOwner {
		c.AskedOwner = c.AskedOwner || p.AssumedOwner && (m.UID != nil || m.GID != nil) || p.AssumedGroup && m.GID != nil
		holds := truthOf(!m.NoSocket).and(m.UID.match(p.UID))
		group := m.GID.match(p.GID)
		if m.Supplementary && group != m.GID.negatedNo() {
			group = maybe
		}
		return c.hold(holds.and(group), m)
	}
	if p.SomeOwner {
		return c.hold(maybe, m)
	}
	if p.KernelMade { // most such sockets are the kernel's own, without a file; some packets have none
		holds := truthOf(unowned)
		if m.SocketExists || m.NoSocket {
			holds = holds.and(maybe)
		}
		return c.hold(holds, m)
	}
	return c.hold(truthOf(unowned && !m.SocketExists), m)
}

func (r *IDRange) match(id uint32) truth {
	if r == nil {
		return yes
	}
	return compare(id, id, r.Low, r.High).xor(r.Not)
}

// negatedNo returns the answer for a group that is in the range: with it the other groups do not count.
func (r *IDRange) negatedNo() truth {
	if r == nil {
		return yes
	}
	return yes.xor(r.Not)
}

func (m *MatchOwner) String() string {
	var parts []string
	for _, part := range []struct {
		what string
		r    *IDRange
	}{{"user", m.UID}, {"group", m.GID}} {
		switch r := part.r; {
		case r == nil:
		case r.Low == r.High:
			parts = append(parts, fmt.Sprintf("%s %s%d", part.what, negated(r.Not, "", "not "), r.Low))
		default:
			parts = append(parts, fmt.Sprintf("%s %s%d-%d", part.what, negated(r.Not, "", "not "), r.Low, r.High))
		}
	}
	if m.SocketExists {
		parts = append(parts, "a socket")
	}
	if m.NoSocket {
		parts = append(parts, "no socket")
	}
	return "sent by " + strings.Join(parts, " and ")
}
