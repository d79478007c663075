package netfilter

import (
	"errors"
	"fmt"
	"sync"

	"packetwalk.dev/internal/model/packet"
)

// ErrRunaway is what evaluation ends with where chains jump without end, or deeper than the kernel allows. No kernel loads such rules; a
// file can hold them.
var ErrRunaway = errors.New("chains jump without end or too deep")

const (
	// maxDepth is the number of jumps that nf_tables follows without a return (NFT_JUMP_STACK_SIZE, include/net/netfilter/nf_tables.h).
	maxDepth = 16
	// maxRules bounds one evaluation of a base chain, far beyond what a machine could do at each packet.
	maxRules = 1 << 20
)

// maxJumps bounds one evaluation as maxRules does. A test makes it smaller.
var maxJumps = 1 << 13

// Run evaluates a base chain: rules that can apply are found with the chains' indexes. The verdict is Accept, Drop, Reject, Stolen or
// Undecided. What applied is appended to the context's Visits. With EveryRule it is RunLinear. The error wraps ErrRunaway.
func (c *Chain) Run(ctx *Context) (Verdict, error) { return c.run(ctx, !ctx.EveryRule) }

// RunLinear does what Run does without indexes: rule after rule.
func (c *Chain) RunLinear(ctx *Context) (Verdict, error) { return c.run(ctx, false) }

func (c *Chain) run(ctx *Context, indexed bool) (Verdict, error) {
	r := runs.Get().(*evaluation)
	defer runs.Put(r)
	r.Context, r.indexed, r.stack, r.jumps, r.rules, r.version = ctx, indexed, r.stack[:0], 0, 0, 0
	v, err := r.base(c)
	r.Context = nil
	ctx.Chain, ctx.Rule = nil, nil
	return v, err
}

// runs keeps evaluations, with the room that they have, for others.
var runs = sync.Pool{New: func() any { return new(evaluation) }}

// evaluation is one run of a base chain.
type evaluation struct {
	*Context
	indexed bool
	stack   []frame
	jumps   int // that were followed
	rules   int // that were looked at
	version int // counts the rules that could change the packet
}

// frame is a chain that is being evaluated.
type frame struct {
	chain   *Chain
	next    int // number of the rule that comes next, from 0
	lists   [][]int32
	version int // of the packet that the lists were made for; -1 where there are none
}

// base evaluates a base chain and what it jumps to.
func (r *evaluation) base(base *Chain) (Verdict, error) {
	r.push(base)
	for len(r.stack) > 0 {
		top := &r.stack[len(r.stack)-1]
		rule := r.advance(top)
		if rule == nil {
			r.stack = r.stack[:len(r.stack)-1]
			continue
		}
		if r.rules++; r.rules > maxRules {
			return Verdict{}, fmt.Errorf("%w: more than %d rules looked at, now %s", ErrRunaway, maxRules, top.chain.Ref(rule))
		}
		chain := top.chain
		v := r.rule(chain, rule, chain.shape(top.next-1))
		switch v.Kind {
		case Continue, Break:
		case Return:
			r.stack = r.stack[:len(r.stack)-1]
		case Jump, Goto:
			if v.Kind == Goto {
				r.stack = r.stack[:len(r.stack)-1]
			}
			if r.jumps++; r.jumps > maxJumps || len(r.stack) > depthOf(base.Table) {
				return Verdict{}, fmt.Errorf("%w: %s", ErrRunaway, chain.Ref(rule))
			}
			r.push(v.Chain)
		default:
			return v, nil
		}
	}
	v := Verdict{Kind: base.Policy}
	if v.Kind != Accept && v.Kind != Drop {
		v = Verdict{Kind: Undecided, Detail: fmt.Sprintf("chain %s has no policy", base.Name)}
	}
	r.Visits = append(r.Visits, Visit{Chain: base, Verdict: v})
	return v, nil
}

// depthOf returns how many jumps can be open at once. Legacy tables have room for each of their chains (net/netfilter/x_tables.c,
// stacksize).
func depthOf(t *Table) int {
	if t != nil && t.Dialect == IPTablesLegacy {
		return max(len(t.Chains), 1)
	}
	return maxDepth
}

func (r *evaluation) push(c *Chain) {
	if c.Partial {
		r.Unshown = append(r.Unshown, c)
	}
	if len(r.stack) == cap(r.stack) {
		r.stack = append(r.stack, frame{})
	} else {
		r.stack = r.stack[:len(r.stack)+1] // with its lists' room
	}
	f := &r.stack[len(r.stack)-1]
	f.chain, f.next, f.lists, f.version = c, 0, f.lists[:0], -1
}

// advance gives the chain's next rule to look at, nil at the end.
func (r *evaluation) advance(f *frame) *Rule {
	i := f.next
	if root := f.chain.index.root; r.indexed && root != nil {
		i = r.candidate(f, root)
	}
	if i >= len(f.chain.Rules) {
		return nil
	}
	f.next = i + 1
	return &f.chain.Rules[i]
}

// candidate returns the number of the next rule, not before f.next, that the packet as it is now can match; the number of rules where there
// is none.
func (r *evaluation) candidate(f *frame, root *node) int {
	if f.version != r.version {
		f.lists, f.version = root.candidates(r.Context, f.lists[:0]), r.version
	}
	first := len(f.chain.Rules)
	for i, list := range f.lists {
		for len(list) > 0 && int(list[0]) < f.next {
			list = list[1:]
		}
		f.lists[i] = list
		if len(list) > 0 {
			first = min(first, int(list[0]))
		}
	}
	return first
}

// shape gives a rule's shape, which Index has made.
func (c *Chain) shape(i int) shape {
	if i < len(c.index.shapes) {
		return c.index.shapes[i]
	}
	return shapeOf(&c.Rules[i])
}

// OpenRule is the detail of the verdict of rules that Context.OpenRules adds.
const OpenRule = "not known whether it applies; it does nothing to the packet"

// rule evaluates one rule and adds it to the visits where it applied. Its verdict is Break where it did not, and Continue where it did and
// decides nothing.
func (r *evaluation) rule(chain *Chain, rule *Rule, s shape) Verdict {
	c := r.Context
	c.Chain, c.Rule, c.choices = chain, rule, 0
	failed, open := r.probe(rule, s)
	switch {
	case failed != nil:
		return r.missed(Visit{Failed: failed, Verdict: Verdict{Kind: Break}})
	case open && s.inert:
		v := Visit{Chain: chain, Rule: rule, Verdict: Verdict{Kind: Break, Detail: OpenRule}}
		if r.EveryRule || r.OpenRules {
			r.Visits = append(r.Visits, v)
		}
		return v.Verdict
	}
	if open {
		if failed := r.settle(rule, s); failed != nil {
			return r.missed(Visit{Failed: failed, Verdict: Verdict{Kind: Break}, Choices: c.choices})
		}
	}
	if !s.modifies {
		v, failed := r.effects(rule, s)
		return r.addVisit(v, failed, nil)
	}
	before := *c.Packet
	flow, mark := c.Packet.Track.Flow, connmark(c.Packet)
	v, failed := r.effects(rule, s)
	r.version++
	changes := packet.Changes(&before, c.Packet)
	if now := connmark(c.Packet); flow == c.Packet.Track.Flow && now != mark {
		changes = append(changes, packet.Change{Field: "connmark", From: fmt.Sprintf("%#x", mark), To: fmt.Sprintf("%#x", now)})
	}
	return r.addVisit(v, failed, changes)
}

func connmark(p *packet.Packet) uint32 {
	if p.Track.Flow == nil {
		return 0
	}
	return p.Track.Flow.Mark
}

// probe tries the tests in front of the first effect without asking anything. It returns the first that certainly fails; open tells that
// some are not certain.
func (r *evaluation) probe(rule *Rule, s shape) (failed Statement, open bool) {
	c := r.Context
	c.probing = true
	defer func() { c.probing = false }()
	for _, test := range rule.Statements[:s.tests] {
		c.uncertain = false
		v := test.Eval(c)
		switch {
		case c.uncertain:
			open = true
		case v.Kind == Break:
			return test, false
		}
	}
	return nil, open
}

// settle goes through the tests again, and asks.
func (r *evaluation) settle(rule *Rule, s shape) (failed Statement) {
	for _, test := range rule.Statements[:s.tests] {
		if test.Eval(r.Context).Kind == Break {
			return test
		}
	}
	return nil
}

// effects evaluates the statements after the leading tests.
func (r *evaluation) effects(rule *Rule, s shape) (v Verdict, failed Statement) {
	for _, statement := range rule.Statements[s.tests:] {
		switch v = statement.Eval(r.Context); v.Kind {
		case Continue:
		case Break:
			return v, statement
		default:
			return v, nil
		}
	}
	return Verdict{Kind: Continue}, nil
}

// addVisit adds a visit of a rule whose effects were evaluated.
func (r *evaluation) addVisit(v Verdict, failed Statement, changes []packet.Change) Verdict {
	c := r.Context
	visit := Visit{Chain: c.Chain, Rule: c.Rule, Verdict: v, Failed: failed, Changes: changes, Choices: c.choices}
	if failed != nil && len(changes) == 0 {
		return r.missed(visit)
	}
	if len(changes) > 0 {
		after := *c.Packet
		visit.After = &after
	}
	c.Visits = append(c.Visits, visit)
	return v
}

// missed notes a rule that did not apply, where every rule is wanted.
func (r *evaluation) missed(v Visit) Verdict {
	if r.EveryRule {
		v.Chain, v.Rule = r.Chain, r.Rule
		r.Visits = append(r.Visits, v)
	}
	return v.Verdict
}

// Failing returns the tests in front of the rule's first effect that do not hold for the packet. The second result is false where one asks
// for what is not known.
func (r *Rule) Failing(c *Context) (tests []Statement, known bool) {
	probe := *c
	probe.probing = true
	for _, s := range r.Statements {
		if _, effect := s.(Effect); effect {
			break
		}
		if v := s.Eval(&probe); v.Kind == Break {
			tests = append(tests, s)
		}
	}
	return tests, !probe.uncertain
}
