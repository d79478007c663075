package walk

import (
	"cmp"
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
)

// ChainRef names a base chain.
type ChainRef struct{ Family, Table, Chain string }

// Ref returns a chain's name.
func Ref(c *netfilter.Chain) ChainRef {
	return ChainRef{c.Table.Family.String(), c.Table.Name, c.Name}
}

// Call is a base chain that a host called for packets of one family. Chains of the bridge family have IPv6 false.
type Call struct {
	ChainRef
	IPv6 bool
}

func callOf(c *netfilter.Chain, f netfilter.Family) Call { return Call{Ref(c), f == netfilter.IPv6} }

// placeIn returns the place of a chain among those that a host called, or -1. Chains of inet tables have one order in both families, which
// the other family's packets show where those of this one do not.
func placeIn(called []Call, c *netfilter.Chain, f netfilter.Family) int {
	call := callOf(c, f)
	if i := slices.Index(called, call); i >= 0 || c.Table.Family != netfilter.Inet {
		return i
	}
	call.IPv6 = !call.IPv6
	if i := slices.Index(called, call); i >= 0 {
		return len(called) + i
	}
	return -1
}

// tie is a place where chains of different tables have the same priority. The kernel calls the one first that was registered last
// (net/netfilter/core.c, nf_hook_entries_grow), which no listing tells of tables that got chains later than others were made.
type tie struct {
	host     string
	hook     netfilter.Hook
	priority int
	nat      bool // chains that translate have an order among themselves
}

// assumedOrder is a tie that was met, with what is assumed there.
type assumedOrder struct {
	tie
	chains [2]ChainRef // the first is assumed to be called first
}

func (o *assumedOrder) String() string {
	first, second := o.chains[0], o.chains[1]
	return fmt.Sprintf(
		"chains %s %s and %s %s both have priority %d at %s; assuming the kernel calls %s %s first",
		first.Table, first.Chain, second.Table, second.Chain, o.priority, o.hook, first.Table, first.Chain)
}

func (t *transit) tieOf(c *netfilter.Chain, f netfilter.Family, h netfilter.Hook) tie {
	return tie{t.m.Name, h, c.Base.Priority, f != netfilter.Bridge && c.Base.Type == "nat"}
}

// chains returns those of a hook in the order in which the kernel calls them.
func (t *transit) chains(f netfilter.Family, h netfilter.Hook) []*netfilter.Chain {
	chains := t.m.Rules.Hook(f, h)
	early := t.run.req.Early[t.m.Name]
	if len(early) == 0 && t.run.turned == (tie{}) {
		return chains
	}
	rank := func(c *netfilter.Chain) int {
		if i := placeIn(early, c, f); i >= 0 {
			return i
		}
		if t.tieOf(c, f, h) == t.run.turned {
			return 2*len(early) + slices.Index(t.m.Rules.Tables, c.Table) // the first table's first
		}
		return 2 * len(early)
	}
	return slices.SortedStableFunc(slices.Values(chains), func(a, b *netfilter.Chain) int {
		return cmp.Or(cmp.Compare(a.Base.Priority, b.Base.Priority), cmp.Compare(rank(a), rank(b)))
	})
}

// noteTie remembers where a chain did something before or after another one that may as well have come at another place.
func (t *transit) noteTie(c *netfilter.Chain, f netfilter.Family, h netfilter.Hook, visits []netfilter.Visit) {
	at := t.tieOf(c, f, h)
	if !hadEffect(visits) || slices.ContainsFunc(t.run.ties, func(o assumedOrder) bool { return o.tie == at }) {
		return
	}
	early := t.run.req.Early[t.m.Name]
	chains := t.chains(f, h)
	i := slices.Index(chains, c)
	for j, o := range chains {
		legacy := o.Table.Dialect == netfilter.IPTablesLegacy || c.Table.Dialect == netfilter.IPTablesLegacy // the capture says it of them
		if o.Table == c.Table || legacy || t.tieOf(o, f, h) != at || len(o.Rules) == 0 ||
			isOrderKnown(early, c, o, f) {
			continue
		}
		first, second := c, o
		if j < i {
			first, second = o, c
		}
		t.run.ties = append(t.run.ties, assumedOrder{at, [2]ChainRef{Ref(first), Ref(second)}})
		return
	}
}

// isOrderKnown reports whether the calls of a host show which of two chains is called first.
func isOrderKnown(called []Call, a, b *netfilter.Chain, f netfilter.Family) bool {
	i, j := placeIn(called, a, f), placeIn(called, b, f)
	both := a.Table.Family == netfilter.Inet && b.Table.Family == netfilter.Inet
	return (i >= 0 || j >= 0) && (both || i < len(called) && i >= 0 || j < len(called) && j >= 0)
}

// hadEffect reports whether the rules of a base chain did more than let the packet pass.
func hadEffect(visits []netfilter.Visit) bool {
	return slices.ContainsFunc(visits, func(v netfilter.Visit) bool {
		return len(v.Changes) > 0 || !slices.Contains(passes[:], v.Verdict.Kind)
	})
}

var passes = [...]netfilter.VerdictKind{
	netfilter.Accept, netfilter.Continue, netfilter.Return, netfilter.Jump, netfilter.Goto, netfilter.Break,
}

// walkOtherOrder walks again with tied chains in the other order, one tie after the other. If the outcomes differ, the order is an
// assumption, and the other outcomes are in Result.Otherwise.
func (w *walker) walkOtherOrder(result *Result, limit int) error {
	if len(w.req.Pin) > 0 {
		return nil // a part of another walk, which did so
	}
	usual, steps := fates(result.Outcomes), 0
	for _, t := range w.ties {
		other := &walker{ctx: w.ctx, src: w.src, req: w.req, hosts: w.hosts, turned: t.tie, steps: steps}
		outcomes, _, err := other.enumerate(limit)
		if err != nil {
			return err
		}
		steps = other.steps // where they are too many, nothing is known of the next order
		if !slices.Equal(usual, fates(outcomes)) {
			w.assumed = append(w.assumed, Assumption{Host: t.host, What: t.String(), Tied: t.chains})
			result.Otherwise = append(result.Otherwise, outcomes...)
		}
	}
	return nil
}

// fates returns what becomes of the packet in outcomes, without the way there.
func fates(outcomes []Outcome) (all []string) {
	text := func(e *End) string {
		if e == nil {
			return ""
		}
		return fmt.Sprintf("%s %s %s %s %#x", e.Kind, e.Host, e.Link, e.Packet.Tuple, e.Packet.Mark)
	}
	for i := range outcomes {
		o := &outcomes[i]
		all = append(all, fmt.Sprintf("%v %s; %s", o.Probability, text(&o.End), text(o.BackEnd)))
	}
	slices.Sort(all)
	return all
}
