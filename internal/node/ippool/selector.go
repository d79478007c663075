package ippool

import (
	"errors"
	"fmt"
	"strings"
)

// The words of Calico's selector language (libcalico-go/lib/selector): all(), global(), has(k), k == 'v', k != 'v', k in {…}, k not in {…},
// k contains 'v', k starts with 'v', k ends with 'v', with !, &&, || and parentheses. The empty text selects everything.
const (
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

// maxDepth of parentheses: an object of the API may be more than a megabyte of them.
const maxDepth = 100

// checkSelector tells what is wrong with a selector's syntax; the error quotes the place that is not understood. What it selects is not
// asked: no selector of a pool decides about its addresses (see the package's comment).
func checkSelector(text string) error {
	p := selectorParser{rest: text}
	if p.peek() == "" {
		return nil
	}
	err := p.or()
	if err == nil && p.peek() != "" {
		err = errors.New("expected && or ||")
	}
	if err != nil {
		return fmt.Errorf("selector %q, at %q: %w", text, p.peek(), err)
	}
	return nil
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

func (p *selectorParser) or() error  { return p.list(opOr, p.and) }
func (p *selectorParser) and() error { return p.list(opAnd, p.operation) }

// list reads one or more operands with an operator between them.
func (p *selectorParser) list(op string, operand func() error) error {
	for {
		if err := operand(); err != nil {
			return err
		}
		if !p.take(op) {
			return nil
		}
	}
}

// operation reads a comparison, a function or parentheses, with any number of ! in front.
func (p *selectorParser) operation() error {
	for !strings.HasPrefix(p.peek(), opNotEqual) && p.take(opNot) {
	}
	switch {
	case p.take("("):
		return p.parentheses()
	case p.take("all("), p.take("global("):
		return p.closed()
	case p.take("has("):
		if err := p.name(); err != nil {
			return err
		}
		return p.closed()
	}
	return p.comparison()
}

func (p *selectorParser) parentheses() error {
	if p.depth++; p.depth > maxDepth {
		return fmt.Errorf("more than %d parentheses in one another", maxDepth)
	}
	if err := p.or(); err != nil {
		return err
	}
	p.depth--
	return p.closed()
}

func (p *selectorParser) closed() error {
	if !p.take(")") {
		return errors.New("expected )")
	}
	return nil
}

// maxLabel is the longest name of a label in Calico's grammar.
const maxLabel = 512

func (p *selectorParser) name() error {
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
		return errors.New("expected a label's name, all(), has(NAME), ! or (")
	case end > maxLabel:
		return fmt.Errorf("a label's name has at most %d characters", maxLabel)
	}
	p.rest = text[end:]
	return nil
}

func (p *selectorParser) comparison() error {
	if err := p.name(); err != nil {
		return err
	}
	switch p.operator() {
	case "":
		return errors.New("expected ==, !=, in, not in, contains, starts with or ends with")
	case opIn, opNotIn:
		return p.set()
	}
	return p.value()
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

func (p *selectorParser) value() error {
	for _, q := range []string{`"`, "'"} {
		if !p.take(q) {
			continue
		}
		_, rest, ok := strings.Cut(p.rest, q)
		if !ok {
			return errors.New("the string does not end")
		}
		p.rest = rest
		return nil
	}
	return errors.New(`expected a string in quotes, such as "linux"`)
}

func (p *selectorParser) set() error {
	if !p.take("{") {
		return errors.New(`expected a set, such as {"a", "b"}`)
	}
	for !p.take("}") {
		if err := p.value(); err != nil {
			return err
		}
		if !p.take(",") && !strings.HasPrefix(p.peek(), "}") {
			return errors.New("expected , or }")
		}
	}
	return nil
}
