package netfilter

import (
	"fmt"
	"strconv"
)

// MatchRandom holds at random: in Probability cases out of 2^31 (xt_statistic.c).
type MatchRandom struct {
	Not         bool
	Probability uint32
}

// Eval asks.
func (m *MatchRandom) Eval(c *Context) Verdict {
	const total = 1 << 31
	matches := min(uint64(m.Probability), total)
	if m.Not {
		matches = total - matches
	}
	switch matches {
	case 0:
		return Verdict{Kind: Break}
	case total:
		return Verdict{Kind: Continue}
	}
	return c.askTest(Random, m, matches, total)
}

func (m *MatchRandom) String() string {
	p := float64(m.Probability) / (1 << 31)
	return "at random, " + negated(m.Not, "", "not ") + "with probability " + strconv.FormatFloat(p, 'g', 6, 64)
}

// MatchNth holds for one packet out of every Every (xt_statistic.c).
type MatchNth struct {
	Not    bool
	Every  uint32
	Packet uint32 // which one, from 0
}

// Eval asks.
func (m *MatchNth) Eval(c *Context) Verdict {
	every := uint64(max(m.Every, 1))
	matches := uint64(1)
	if m.Not {
		matches = every - 1
	}
	switch matches {
	case 0:
		return Verdict{Kind: Break}
	case every:
		return Verdict{Kind: Continue}
	}
	return c.askTest(Counter, m, matches, every)
}

func (m *MatchNth) String() string {
	return fmt.Sprintf("%sone packet of every %d", negated(m.Not, "", "not "), m.Every)
}

// MatchHistory is a test whose answer depends on packets before: limit, hashlimit, connlimit, recent, quota.
type MatchHistory struct {
	Text  string // in its own syntax
	Words string
	// Connections says that it is connections that are counted.
	Connections bool
}

// Eval asks.
func (m *MatchHistory) Eval(c *Context) Verdict { return c.askTest(History, m, 0, 0) }

func (m *MatchHistory) String() string { return m.Words }

// MatchNever is a test that holds for no packet ("recent ! --set").
type MatchNever struct{ Words string }

// Eval breaks.
func (m *MatchNever) Eval(*Context) Verdict { return Verdict{Kind: Break} }

func (m *MatchNever) String() string { return m.Words }
