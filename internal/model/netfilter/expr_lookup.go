package netfilter

import "fmt"

// InSet tests whether a set of nft holds a value (net/netfilter/nft_lookup.c).
type InSet struct {
	Value Expr
	Not   bool
	Set   *Set
	Words string // of the set: "@name", "{ a, b }"
}

// Eval looks the value up.
func (m *InSet) Eval(c *Context) Verdict {
	if g, ok := m.Value.(*GeneratedNumber); ok {
		return m.generated(c, g)
	}
	var room [4]Span
	key, t := m.Value.value(c, room[:0])
	if t == no {
		return Verdict{Kind: Break}
	}
	_, found := m.Set.Lookup(key)
	holds := map[Found]truth{NotFound: no, IsFound: yes, CannotTell: maybe}[found]
	if t = t.and(holds.xor(m.Not)); t == maybe {
		return c.askTest(Unknown, valueQuestion{m, key}, 0, 0)
	}
	return c.hold(t, m)
}

func (m *InSet) generated(c *Context, g *GeneratedNumber) Verdict {
	what, hash, t := g.question(c)
	switch {
	case t == no:
		return Verdict{Kind: Break}
	case hash != nil:
		_, found := m.Set.Lookup([]Span{*hash})
		return c.hold(truthOf(found == IsFound).xor(m.Not), m)
	}
	matches := uint64(0)
	for _, o := range m.Set.outcomes(g.span()) {
		if (o.element != nil) != m.Not {
			matches += o.weight
		}
	}
	return c.askTest(g.Kind, draw{g, what + negated(m.Not, " in ", " not in ") + m.Words}, matches, uint64(g.Mod))
}

// maxKeyElements bounds the elements that a test is found by.
const maxKeyElements = 64

// Key returns the field's value, where the set has few elements of one kind.
func (m *InSet) Key() (Key, []Value, bool) {
	f, ok := m.Value.(*Field)
	if !ok || !f.keyed || m.Not || len(m.Set.Elements) > maxKeyElements || len(m.Set.Elements) == 0 {
		return Key{}, nil, false
	}
	var mask Value
	values := make([]Value, 0, len(m.Set.Elements))
	for i, e := range m.Set.Elements {
		if len(e.Key) != 1 {
			return Key{}, nil, false
		}
		p := pieces(e.Key[0])
		if len(p) != 1 || i > 0 && p[0].mask != mask || p[0].mask == (Value{}) {
			return Key{}, nil, false
		}
		mask = p[0].mask
		values = append(values, p[0].value)
	}
	return Key{f.key, mask}, values, true
}

func (m *InSet) String() string {
	return m.Value.String() + negated(m.Not, " in ", " not in ") + m.Words
}

func (m *InSet) tracking() truth { return tracking(m.Value) }

// outcome is what a look-up of a number out of a span can give: an element, nil for none, in weight cases.
type outcome struct {
	element *Element
	weight  uint64
}

// outcomes lists what look-ups of the numbers of a span give.
func (s *Set) outcomes(all Span) []outcome {
	var list []outcome
	left := common(all, all)
	for i := range s.Elements {
		e := &s.Elements[i]
		if len(e.Key) != 1 {
			continue
		}
		if n := common(all, e.Key[0]); n > 0 {
			list = append(list, outcome{e, n})
			left -= min(n, left)
		}
	}
	if left > 0 {
		s.once.Do(s.build)
		list = append(list, outcome{s.fallback, left})
	}
	return list
}

// possible lists the elements that an uncertain key may lie in, and nil where it may lie in none.
func (s *Set) possible(key []Span) []*Element {
	var list []*Element
	for i := range s.Elements {
		e := &s.Elements[i]
		switch overlap(e.Key, key) {
		case yes:
			return append(list, e)
		case maybe:
			list = append(list, e)
		}
	}
	return append(list, s.fallback)
}

// maxPossible bounds the elements that a choice has one by one.
const maxPossible = 64

// resolve finds the element for a key, and asks where several are possible. The element is nil where there is none. The truth is maybe
// where the element is unknown.
func (s *Set) resolve(c *Context, key Expr, what fmt.Stringer) (*Element, truth) {
	if g, ok := key.(*GeneratedNumber); ok {
		return s.resolveGenerated(c, g)
	}
	var room [4]Span
	spans, t := key.value(c, room[:0])
	if t == no {
		return nil, yes
	}
	e, found := s.Lookup(spans)
	if found != CannotTell {
		if t == maybe && e != nil && c.askTest(Unknown, valueQuestion{what, spans}, 0, 0).Kind == Break {
			return nil, yes
		}
		return e, yes
	}
	candidates := s.possible(spans)
	if len(candidates) > maxPossible {
		return nil, maybe
	}
	options := make([]Option, len(candidates))
	for i, e := range candidates {
		options[i] = Option{Label: e.label()}
	}
	return candidates[c.ask(Unknown, valueQuestion{what, spans}, options...)], yes
}

func (s *Set) resolveGenerated(c *Context, g *GeneratedNumber) (*Element, truth) {
	what, hash, t := g.question(c)
	switch {
	case t == no:
		return nil, yes
	case hash != nil:
		e, _ := s.Lookup([]Span{*hash})
		return e, yes
	}
	outcomes := s.outcomes(g.span())
	if len(outcomes) == 1 {
		return outcomes[0].element, yes
	}
	options := make([]Option, len(outcomes))
	for i, o := range outcomes {
		options[i] = Option{Label: o.element.label(), Weight: o.weight}
	}
	return outcomes[c.ask(g.Kind, draw{g, what}, options...)].element, yes
}

// label names an element for the one who chooses: by what it gives, where it gives something.
func (e *Element) label() string {
	switch {
	case e == nil:
		return "no element"
	case e.Data.Words != "":
		return e.Data.Words
	}
	return spansText(e.Key)
}

// VerdictMap is a verdict that a map gives (vmap).
type VerdictMap struct {
	Key   Expr
	Set   *Set
	Words string // of the map
}

// Eval looks the verdict up. Where the map has none, the rule does not apply.
func (m *VerdictMap) Eval(c *Context) Verdict {
	e, t := m.Set.resolve(c, m.Key, m)
	switch {
	case t == maybe:
		return Verdict{Kind: Undecided, Detail: "not known which element: " + m.String()}
	case e == nil:
		return Verdict{Kind: Break}
	case e.Data.Verdict == nil:
		return Verdict{Kind: Undecided, Detail: "an element without a verdict: " + m.String()}
	}
	v := *e.Data.Verdict
	v.Element = e
	return v
}

// Effect tells that it decides.
func (m *VerdictMap) Effect() EffectKind { return Decides }

func (m *VerdictMap) String() string { return "verdict for " + m.Key.String() + " in " + m.Words }

func (m *VerdictMap) tracking() truth { return tracking(m.Key) }

// MapLookup is what a map gives for a key.
type MapLookup struct {
	Key   Expr
	Set   *Set
	Words string // of the map
}

func (m *MapLookup) value(c *Context, dst []Span) ([]Span, truth) {
	e, t := m.Set.resolve(c, m.Key, m)
	switch {
	case t == maybe:
		return append(dst, Span{High: AllOnes}), maybe
	case e == nil:
		return dst, no
	}
	return append(dst, e.Data.Values...), yes
}

func (m *MapLookup) String() string { return "what " + m.Words + " has for " + m.Key.String() }
