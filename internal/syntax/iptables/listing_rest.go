package iptables

import (
	"slices"
	"strconv"
	"strings"
)

// The text behind the addresses of a listed rule is what each match and then the target print for people (the print functions of
// libxtables' extensions). Here it is read back, word by word, into the options that the save functions print.

// The text behind the addresses of a listed rule is what each match and then the target print for people (the print functions of
// libxtables' extensions). Here it is read back, word by word, into the options that the save functions print.

// parseListedRest reads it into the rule. What is not known, and all that stands behind it, is left over; ok is false then.
func parseListedRest(r *Rule, text string) (left string, ok bool) {
	l := restReader{rest: text, rule: r}
	r.Target.Goto = l.lit("[goto]")
	for !l.target() {
		before, matches := l.rest, slices.Clone(r.Matches)
		if !l.match() {
			r.Matches = matches
			return before, false
		}
	}
	return "", true
}

// restReader reads words from the front.
type restReader struct {
	rest string
	rule *Rule
}

func (l *restReader) skip() { l.rest = strings.TrimLeft(l.rest, " \t") }

// peek returns the next word, "" at the end.
func (l *restReader) peek() string {
	l.skip()
	if i := strings.IndexAny(l.rest, " \t"); i >= 0 {
		return l.rest[:i]
	}
	return l.rest
}

func (l *restReader) next() string {
	w := l.peek()
	l.rest = l.rest[len(w):]
	return w
}

// lit takes words if they are the next ones; otherwise nothing is taken.
func (l *restReader) lit(words string) bool {
	before := l.rest
	for _, w := range strings.Fields(words) {
		if l.next() != w {
			l.rest = before
			return false
		}
	}
	return true
}

// glued takes a word that begins with the prefix and gives what follows it, of which "" counts too.
func (l *restReader) glued(prefix string) (string, bool) {
	value, ok := strings.CutPrefix(l.peek(), prefix)
	if ok {
		l.next()
	}
	return value, ok
}

// not takes a lone "!", or one that stands at the front of the next word.
func (l *restReader) not() bool {
	l.skip()
	rest, not := strings.CutPrefix(l.rest, "!")
	l.rest = rest
	return not
}

// quoted takes text in double quotes that ends at a blank or the end; the extensions do not escape quotes inside.
func (l *restReader) quoted() (string, bool) {
	l.skip()
	if !strings.HasPrefix(l.rest, `"`) {
		return "", false
	}
	inner := l.rest[1:]
	for i := range len(inner) {
		if inner[i] == '"' && (i+1 == len(inner) || inner[i+1] == ' ') {
			l.rest = inner[i+1:]
			return inner[:i], true
		}
	}
	return "", false
}

// add gives a module an option: the last match's where it is of that module, else a new match's.
func (l *restReader) add(module string, o Option) bool {
	m := l.rule.Matches
	if len(m) == 0 || m[len(m)-1].Module != module {
		l.begin(module)
	}
	last := &l.rule.Matches[len(l.rule.Matches)-1]
	last.Options = append(last.Options, o)
	return true
}

func (l *restReader) begin(module string) bool {
	l.rule.Matches = append(l.rule.Matches, Match{Module: module})
	return true
}

// value takes one word as the value of an option; not tells of a "!" that stood before.
func (l *restReader) value(module, option string, not bool) bool {
	not = l.not() || not
	w := l.next()
	return isValue(w) && l.add(module, Option{Not: not, Name: option, Args: []string{w}})
}

// isValue keeps out what iptables-save could not print bare.
func isValue(w string) bool { return isBare(w) && w != "" && w[0] != '!' && w[0] != '-' }

func isNumber0(s string) bool {
	_, err := strconv.ParseUint(s, 0, 32)
	return err == nil
}

// match reads one match. Where it is not known, the reader's place is of no more use.
func (l *restReader) match() bool {
	not := l.lit("!")
	read, ok := listedMatches[l.peek()]
	if !ok {
		return false
	}
	l.next()
	return read(l, not)
}

// after makes a reader of "WORDS [!] VALUE" as one option.
func after(words, module, option string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		return l.lit(words) && l.value(module, option, not)
	}
}

// ownOptions makes a reader of a match whose options are listed by their own names, behind a prefix.
func ownOptions(module, prefix string, of options) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		l.begin(module)
		read, ok := l.options(prefix, of)
		for _, o := range read {
			l.add(module, o)
		}
		return ok && !not
	}
}

// options reads those that are listed by their own names, with their values; ok is false where a value cannot be read.
func (l *restReader) options(prefix string, of options) (read []Option, ok bool) {
	for {
		before := l.rest
		o := Option{Not: l.lit("!")}
		o.Name, ok = l.glued(prefix)
		n, known := of[o.Name]
		if !ok || !known {
			l.rest = before
			return read, true
		}
		for range n {
			l.skip()
			value, quoted := l.quoted()
			if !quoted {
				value = l.next()
			}
			if !quoted && !isValue(value) {
				return nil, false
			}
			o.Args = append(o.Args, value)
		}
		read = append(read, o)
	}
}

// readOwn reads a target's options that are listed by their own names.
func (t *Target) readOwn(l *restReader, of options) bool {
	read, ok := l.options("", of)
	t.Options = append(t.Options, read...)
	return ok && !slices.ContainsFunc(read, func(o Option) bool { return o.Not })
}

// target reads the target's text if that is all that is left, and takes nothing otherwise.
func (l *restReader) target() bool {
	t := &l.rule.Target
	rest, name := l.rest, t.Name
	if read := targetExtensions[t.Name].listed; read == nil || read(l, t) {
		if l.peek() == "" {
			return true
		}
	}
	l.rest, t.Name, t.Options = rest, name, nil
	return false
}

func (t *Target) add(name string, args ...string) bool {
	t.Options = append(t.Options, Opt(name, args...))
	return true
}

// word takes a value for an option.
func (l *restReader) word(t *Target, option string) bool {
	w := l.next()
	return isValue(w) && t.add(option, w)
}

// fixed makes a reader of "WORDS VALUE".
func fixed(words, option string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool { return l.lit(words) && l.word(t, option) }
}
