package netfilter

import (
	"fmt"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// MatchSet tests whether a set of ipset(8) holds fields of the packet (-m set --match-set; xt_set.c).
type MatchSet struct {
	Not  bool
	Name string
	// Sources tells for each part of the set's kind whether it is the packet's source ("src") or its destination ("dst").
	Sources []bool
	// ReturnNoMatch asks for the set's exceptions instead of its other elements (--return-nomatch).
	ReturnNoMatch bool
}

// Eval asks the host for the set, and looks the packet up.
func (m *MatchSet) Eval(c *Context) Verdict {
	t := maybe
	if set, ok := c.ipSet(m.Name); ok {
		t = set.matches(c, m.Sources, m.ReturnNoMatch).xor(m.Not)
	}
	if t == maybe {
		return c.askTest(Unknown, setQuestion{m, c.Packet.Tuple}, 0, 0)
	}
	return c.hold(t, m)
}

func (m *MatchSet) String() string {
	sides := make([]string, len(m.Sources))
	for i, s := range m.Sources {
		sides[i] = side(s)
	}
	text := strings.Join(sides, " and ") + negated(m.Not, " in", " not in") + " set " + m.Name
	if m.ReturnNoMatch {
		text += " as an exception"
	}
	return text
}

// setQuestion is a test with the packet that it is asked about.
type setQuestion struct {
	test fmt.Stringer
	of   packet.Tuple
}

func (q setQuestion) String() string { return q.test.String() + " (" + q.of.String() + ")" }
