package netfilter

import "fmt"

// Relation is how two values are compared.
type Relation string

// The relations, as nft writes them.
const (
	Equal    Relation = "=="
	NotEqual Relation = "!="
	Less     Relation = "<"
	Greater  Relation = ">"
	AtMost   Relation = "<="
	AtLeast  Relation = ">="
)

var relationWords = map[Relation]string{Equal: "is", NotEqual: "is not", Less: "<", Greater: ">", AtMost: "<=", AtLeast: ">="}

// Compare tests a value against a constant (net/netfilter/nft_cmp.c, nft_range.c). Right is a range where its bounds differ, and has a span
// for each field of Left.
type Compare struct {
	Left  Expr
	Op    Relation
	Right []Span
	Words string // of Right
}

// Eval compares.
func (m *Compare) Eval(c *Context) Verdict {
	if g, ok := m.Left.(*GeneratedNumber); ok && len(m.Right) == 1 {
		return m.generated(c, g)
	}
	var room [4]Span
	left, t := m.Left.value(c, room[:0])
	if t == no || len(left) != len(m.Right) {
		return Verdict{Kind: Break}
	}
	if t = t.and(m.relate(left)); t == maybe {
		return c.askTest(Unknown, valueQuestion{m, left}, 0, 0)
	}
	return c.hold(t, m)
}

func (m *Compare) relate(left []Span) truth {
	switch m.Op {
	case Equal:
		return overlap(m.Right, left)
	case NotEqual:
		return overlap(m.Right, left).not()
	}
	if len(left) != 1 {
		return maybe
	}
	l, r := left[0], m.Right[0].Low
	switch m.Op {
	case Less:
		return ordered(l.High.Compare(r) < 0, l.Low.Compare(r) >= 0)
	case Greater:
		return ordered(l.Low.Compare(r) > 0, l.High.Compare(r) <= 0)
	case AtMost:
		return ordered(l.High.Compare(r) <= 0, l.Low.Compare(r) > 0)
	case AtLeast:
		return ordered(l.Low.Compare(r) >= 0, l.High.Compare(r) < 0)
	}
	return maybe
}

func ordered(holds, fails bool) truth {
	switch {
	case holds:
		return yes
	case fails:
		return no
	}
	return maybe
}

// generated asks once, with the number of cases in which the test holds.
func (m *Compare) generated(c *Context, g *GeneratedNumber) Verdict {
	what, hash, t := g.question(c)
	switch {
	case t == no:
		return Verdict{Kind: Break}
	case hash != nil:
		return c.hold(m.relate([]Span{*hash}), m)
	}
	all := g.span()
	matches := uint64(0)
	switch r := m.Right[0]; m.Op {
	case Less:
		matches = common(all, Span{Value{}, r.Low.minusOne()})
	case Greater:
		matches = common(all, Span{r.Low.plus(Value{Lo: 1}), AllOnes})
	case AtMost:
		matches = common(all, Span{Value{}, r.Low})
	case AtLeast:
		matches = common(all, Span{r.Low, AllOnes})
	case Equal:
		matches = common(all, r)
	case NotEqual:
		matches = uint64(g.Mod) - common(all, r)
	}
	if m.Op == Less && m.Right[0].Low == (Value{}) {
		matches = 0
	}
	switch matches {
	case 0:
		return Verdict{Kind: Break}
	case uint64(g.Mod):
		return c.hold(t, m)
	}
	return c.askTest(g.Kind, draw{g, fmt.Sprintf("%s %s %s", what, relationWords[m.Op], m.Words)}, matches, uint64(g.Mod))
}

func (v Value) minusOne() Value { return v.plus(AllOnes) }

// common counts the numbers that two spans share; the first is short.
func common(a, b Span) uint64 {
	low, high := a.Low, a.High
	if low.Compare(b.Low) < 0 {
		low = b.Low
	}
	if b.High.Compare(high) < 0 {
		high = b.High
	}
	if high.Compare(low) < 0 {
		return 0
	}
	return high.Lo - low.Lo + 1
}

// draw is what is asked of a generator of numbers, with its words.
type draw struct {
	of    *GeneratedNumber
	words string
}

func (d draw) String() string { return d.words }

// Key returns the field's value, under a mask.
func (m *Compare) Key() (Key, []Value, bool) {
	if m.Op != Equal || len(m.Right) != 1 {
		return Key{}, nil, false
	}
	left, mask := m.Left, AllOnes
	if b, ok := left.(*Bitwise); ok && b.Op == BitAnd {
		if k, ok := b.Right.(*Constant); ok && len(k.Values) == 1 && k.Values[0].Certain() {
			left, mask = b.Left, k.Values[0].Low
		}
	}
	f, ok := left.(*Field)
	if !ok || !f.keyed {
		return Key{}, nil, false
	}
	r := m.Right[0]
	switch p := pieces(r); {
	case r.Certain() && r.Low.and(mask) == r.Low:
		return Key{f.key, mask}, []Value{r.Low}, true
	case mask == AllOnes && len(p) == 1 && p[0].mask != (Value{}):
		return Key{f.key, p[0].mask}, []Value{p[0].value}, true
	}
	return Key{}, nil, false
}

func (m *Compare) String() string { return m.Left.String() + " " + relationWords[m.Op] + " " + m.Words }

func (m *Compare) tracking() truth { return tracking(m.Left) }

// tracking returns whether an expression asks for something of conntrack.
func tracking(e Expr) truth {
	switch e := e.(type) {
	case *Field:
		return e.tracking()
	case Concat:
		tracked := no
		for _, part := range e {
			tracked = eitherTracks(tracked, tracking(part))
		}
		return tracked
	case *Bitwise:
		return eitherTracks(tracking(e.Left), tracking(e.Right))
	case *GeneratedNumber:
		if e.Over != nil {
			return tracking(e.Over)
		}
	case *MapLookup:
		return tracking(e.Key)
	}
	return no
}

// valueQuestion is a test with the values that it is asked about.
type valueQuestion struct {
	test fmt.Stringer
	left []Span
}

func (q valueQuestion) String() string { return q.test.String() + " (of " + spansText(q.left) + ")" }
