package ippool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Selector is an expression of Calico's selector language over labels: all(), global(), has(k), k == 'v', k != 'v', k in {…},
// k not in {…}, k contains 'v', k starts with 'v', k ends with 'v', with !, &&, || and parentheses (libcalico-go/lib/selector). The zero
// Selector selects everything, as the empty text does.
type Selector struct {
	op     string // one of the constants below; "" is opAll
	label  string
	values []string   // of the comparisons: one, or for in and not in any number, sorted
	args   []Selector // of !, && and ||
}

const (
	opAll        = "all()"
	opGlobal     = "global()"
	opHas        = "has"
	opEqual      = "=="
	opNotEqual   = "!="
	opIn         = "in"
	opNotIn      = "not in"
	opContains   = "contains"
	opStartsWith = "starts with"
	opEndsWith   = "ends with"
	opNot        = "!"
	opAnd        = "&&"
	opOr         = "||"
)

// Matches evaluates the selector. A label that is not there differs from every value: != and not in are true of it.
func (s Selector) Matches(labels map[string]string) bool {
	value, has := labels[s.label]
	is := func(test func(string) bool) bool { return has && test(value) }
	switch s.op {
	case "", opAll, opGlobal:
		return true
	case opHas:
		return has
	case opEqual, opIn:
		return is(s.lists)
	case opNotEqual, opNotIn:
		return !is(s.lists)
	case opContains:
		return is(func(v string) bool { return strings.Contains(v, s.values[0]) })
	case opStartsWith:
		return is(func(v string) bool { return strings.HasPrefix(v, s.values[0]) })
	case opEndsWith:
		return is(func(v string) bool { return strings.HasSuffix(v, s.values[0]) })
	case opNot:
		return !s.args[0].Matches(labels)
	case opAnd:
		return !slices.ContainsFunc(s.args, func(a Selector) bool { return !a.Matches(labels) })
	default: // opOr
		return slices.ContainsFunc(s.args, func(a Selector) bool { return a.Matches(labels) })
	}
}

func (s Selector) lists(value string) bool { return slices.Contains(s.values, value) }

// String writes the selector as Calico does: && and || in parentheses, values in double quotes where they can be.
func (s Selector) String() string {
	switch s.op {
	case "", opAll:
		return opAll
	case opGlobal:
		return opGlobal
	case opHas:
		return "has(" + s.label + ")"
	case opIn, opNotIn:
		var quoted []string
		for _, v := range s.values {
			quoted = append(quoted, quote(v))
		}
		return s.label + " " + s.op + " {" + strings.Join(quoted, ", ") + "}"
	case opNot:
		return "!" + s.args[0].String()
	case opAnd, opOr:
		var parts []string
		for _, a := range s.args {
			parts = append(parts, a.String())
		}
		return "(" + strings.Join(parts, " "+s.op+" ") + ")"
	default:
		return s.label + " " + s.op + " " + quote(s.values[0])
	}
}

// quote has no escapes: a value holds at most one kind of quotes.
func quote(v string) string {
	if strings.Contains(v, `"`) {
		return "'" + v + "'"
	}
	return `"` + v + `"`
}

// maxDepth of parentheses: an object of the API may be more than a megabyte of them.
const maxDepth = 100

// ParseSelector reads a selector. The error quotes the place it does not understand.
func ParseSelector(text string) (Selector, error) {
	p := selectorParser{rest: text}
	if p.peek() == "" {
		return Selector{op: opAll}, nil
	}
	s, err := p.or()
	if err == nil && p.peek() != "" {
		err = errors.New("expected && or ||")
	}
	if err != nil {
		return Selector{}, fmt.Errorf("selector %q, at %q: %w", text, p.peek(), err)
	}
	return s, nil
}

type selectorParser struct {
	rest  string
	depth int
}

// peek is what is left, without leading blanks. Only spaces and tabs are blanks, as in Calico.
func (p *selectorParser) peek() string {
	p.rest = strings.TrimLeft(p.rest, " \t")
	return p.rest
}

func (p *selectorParser) take(word string) bool {
	rest, ok := strings.CutPrefix(p.peek(), word)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *selectorParser) or() (Selector, error)  { return p.list(opOr, p.and) }
func (p *selectorParser) and() (Selector, error) { return p.list(opAnd, p.operation) }

// list reads one or more operands with an operator between them.
func (p *selectorParser) list(op string, operand func() (Selector, error)) (Selector, error) {
	var args []Selector
	for {
		s, err := operand()
		if err != nil {
			return s, err
		}
		if args = append(args, s); !p.take(op) {
			break
		}
	}
	if len(args) == 1 {
		return args[0], nil
	}
	return Selector{op: op, args: args}, nil
}

// operation reads a comparison, a function or parentheses, with any number of ! in front.
func (p *selectorParser) operation() (Selector, error) {
	negated := false
	for !strings.HasPrefix(p.peek(), opNotEqual) && p.take(opNot) {
		negated = !negated
	}
	s, err := p.positive()
	if err == nil && negated {
		s = Selector{op: opNot, args: []Selector{s}}
	}
	return s, err
}

func (p *selectorParser) positive() (Selector, error) {
	switch {
	case p.take("("):
		return p.parentheses()
	case p.take("all("):
		return Selector{op: opAll}, p.closed()
	case p.take("global("):
		return Selector{op: opGlobal}, p.closed()
	case p.take("has("):
		s := Selector{op: opHas}
		var err error
		if s.label, err = p.name(); err == nil {
			err = p.closed()
		}
		return s, err
	}
	return p.comparison()
}

func (p *selectorParser) parentheses() (Selector, error) {
	if p.depth++; p.depth > maxDepth {
		return Selector{}, fmt.Errorf("more than %d parentheses in one another", maxDepth)
	}
	s, err := p.or()
	if err == nil {
		err = p.closed()
	}
	p.depth--
	return s, err
}

func (p *selectorParser) closed() error {
	if !p.take(")") {
		return errors.New("expected )")
	}
	return nil
}

// maxLabel is the longest name of a label in Calico's grammar.
const maxLabel = 512

func (p *selectorParser) name() (string, error) {
	text := p.peek()
	end := strings.IndexFunc(text, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("_./-", r)
	})
	if end < 0 {
		end = len(text)
	}
	switch {
	case end == 0:
		return "", errors.New("expected a label's name, all(), has(NAME), ! or (")
	case end > maxLabel:
		return "", fmt.Errorf("a label's name has at most %d characters", maxLabel)
	}
	p.rest = text[end:]
	return text[:end], nil
}

func (p *selectorParser) comparison() (Selector, error) {
	label, err := p.name()
	if err != nil {
		return Selector{}, err
	}
	s := Selector{label: label, op: p.operator()}
	switch s.op {
	case "":
		err = errors.New("expected ==, !=, in, not in, contains, starts with or ends with")
	case opIn, opNotIn:
		s.values, err = p.set()
	default:
		var v string
		v, err = p.value()
		s.values = []string{v}
	}
	return s, err
}

// operator reads the operator behind a label. Between its two words there may be any number of blanks, also none.
func (p *selectorParser) operator() string {
	for _, op := range []string{opEqual, opNotEqual, opContains, opStartsWith, opEndsWith, opNotIn, opIn} {
		first, second, two := strings.Cut(op, " ")
		before := p.rest
		if p.take(first) && (!two || p.take(second)) {
			return op
		}
		p.rest = before
	}
	return ""
}

func (p *selectorParser) value() (string, error) {
	for _, q := range []string{`"`, "'"} {
		if !p.take(q) {
			continue
		}
		value, rest, ok := strings.Cut(p.rest, q)
		if !ok {
			return "", errors.New("the string does not end")
		}
		p.rest = rest
		return value, nil
	}
	return "", errors.New(`expected a string in quotes, such as "linux"`)
}

func (p *selectorParser) set() ([]string, error) {
	if !p.take("{") {
		return nil, errors.New(`expected a set, such as {"a", "b"}`)
	}
	var values []string
	for !p.take("}") {
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		values = append(values, v)
		if !p.take(",") && !strings.HasPrefix(p.peek(), "}") {
			return nil, errors.New("expected , or }")
		}
	}
	slices.Sort(values)
	return slices.Compact(values), nil
}
