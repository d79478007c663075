package excerpt

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// annotation is what people write behind a line: an arrow, and what they mean; behind a rule also a shell's comment.
var annotation = regexp.MustCompile(`\s(?:<[-=]|←|⬅|⟵|#\s)`)

// unannotated returns a line without the annotation behind it. A comment that is part of the rule stays, whatever it contains.
func unannotated(line string) string {
	if strings.IndexByte(line, '<') < 0 && strings.IndexByte(line, '#') < 0 && strings.IndexByte(line, general) < 0 {
		return line
	}
	seen, quotes, comments := 0, 0, 0 // how much of the line was looked at, and what opens and ends a comment there
	isRule, known := false, false
	for _, at := range annotation.FindAllStringIndex(line, -1) {
		before := line[:at[0]]
		if before == "" {
			continue
		}
		if !known {
			_, _, _, isRule = cutRule(before)
			known = true
		}
		more := before[max(seen-1, 0):] // with the first half of a mark
		quotes += strings.Count(before[seen:], `"`)
		comments += strings.Count(more, "/*") - strings.Count(more, "*/")
		seen = len(before)
		shell := line[at[1]-2] == '#'
		if quotes%2 == 0 && comments <= 0 && (!shell || isRule) {
			return strings.TrimSpace(before)
		}
	}
	return line
}

// sentence is the beginning and the end of one: "This is why …."
var sentence = regexp.MustCompile(`^(?:[A-Z][a-z']*|[A-Z][a-z]+-[a-z]+|I'[a-z]+)(?:\s+[^-\s]\S*){2,}[.:!?)]$`)

// omission is what people write for lines that they left out, also as a comment.
var omission = regexp.MustCompile(`(?i)^[#\[(<*\s-]*(?:\.\.\.|…|snip|many more|output omitted|truncated|etc\b|and so on)|` +
	`^#.*\b(?:omitted|truncated|redacted|removed|left out|more rules|other rules|rest of)\b`)

// omits reports whether a comment says that lines are left out.
func omits(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line[0] == '#' && omission.Match(bytes.TrimSpace(line)) {
			return true
		}
	}
	return false
}

// lineKind says how a line of the text was read.
type lineKind byte

const (
	lineRead lineKind = iota
	lineProse
	lineNotUnderstood // a note has its number
)

// next takes a line apart.
func (s *scanner) next(line string) lineKind {
	notes := len(s.all)
	s.prose = false
	if !s.foreign(line) {
		s.see(line)
		s.line(line)
	}
	switch {
	case slices.ContainsFunc(s.all[notes:], func(a assumption) bool { return a.Kind == leftOut && a.Line == s.at }):
		return lineNotUnderstood
	case s.prose:
		return lineProse
	}
	return lineRead
}

// readUnknown reads a line that no known program prints.
func (s *scanner) readUnknown(line string) {
	last := &s.lastRule
	below := last.run != nil && last.line == s.at-1
	known := !below || !last.open && last.run.rules[last.index].rule.Unknown == ""
	switch {
	case namedPrompt.MatchString(line), barePrompt.MatchString(line):
		s.reset()
	case omission.MatchString(line):
		s.gap("line %d: lines are left out here")
	case known && sentence.MatchString(line) && !strings.Contains(line, "*/"):
		s.prose = true
		if !s.now.save {
			s.reset()
		}
	case below:
		s.cutShort(line)
	case s.now.save:
		s.gap("line %d: not understood, so other rules may be in its place")
	default:
		s.prose = true
		s.reset()
	}
}

// gap is a place where lines are missing: the chains around it may have other rules. From *table to COMMIT another table may have begun.
func (s *scanner) gap(what string) {
	s.note(leftOut, s.at, what, s.at)
	if n := len(s.blocks); n > 0 && s.lastEnd == s.at-1 {
		s.blocks[n-1].Filtered, s.filtered = true, true
	}
	for _, r := range s.found[s.section:] {
		r.whole = false
	}
	if s.now.save {
		s.reset()
		return
	}
	s.now.piped = true
}

// Bounds of a rule that a page's width cuts into lines, so that reading takes linear time. iptables-restore reads 10,240 bytes of a line.
const (
	longestRule   = 16 << 10
	mostRuleLines = 64
)

// cutShort takes a line right below a rule for what a page's width cut off the rule. If the two are no rule together, it is not known what
// the rule does.
func (s *scanner) cutShort(line string) {
	last := &s.lastRule
	r := &last.run.rules[last.index]
	last.lines++
	tooLong := len(last.text)+len(line) > longestRule || last.lines > mostRuleLines
	for _, between := range []string{" ", ""} { // a word's end, or a column's
		if tooLong {
			break
		}
		joined := last.text + between + line
		rule, ok := s.reread(last, joined)
		if ok {
			*r = newShown(r.line, rule, r.hidden)
			last.text, last.line, last.open = joined, s.at, isCutOff(&rule)
			return
		}
	}
	if last.open && !tooLong { // the next line may end it
		last.text, last.line = last.text+" "+line, s.at
		return
	}
	*r = newShown(r.line, iptables.Rule{Unknown: iptables.UnreadableListed(r.rule.Spec() + " " + line).Unknown, Counters: r.rule.Counters},
		r.hidden)
	s.note(leftOut, s.at, "line %d: may be the end of the rule above it, so that rule's effect is unknown", s.at)
}

// reread reads a rule and the lines below it as one.
func (s *scanner) reread(last *ruleAt, text string) (iptables.Rule, bool) {
	if last.listed {
		l, ok := iptables.ParseListed(text, s.now.columns)
		return l.Rule, ok
	}
	chain, spec, counters, ok := cutRule(text)
	r, known := iptables.ParseSpec(spec)
	r.Counters = counters
	return r, ok && known && chain == last.run.chain
}

// endRules says which rules lack their end. Of one that has nothing but a chain's name the name may lack it, too.
func (s *scanner) endRules() {
	for _, run := range s.found {
		run.whole = run.whole && !run.begun
		for i := range run.rules {
			r := &run.rules[i]
			if !isCutOff(&r.rule) {
				continue
			}
			if r.key == "" {
				for _, other := range s.found {
					other.whole, other.saved = false, false
				}
			}
			s.note(leftOut, r.line, "line %d: the rule has no target, so it may be cut off and is not known: -A %s %s", r.line, run.chain, r.key)
			*r = newShown(r.line, iptables.Rule{Unknown: iptables.UnreadableListed(r.key).Unknown, Counters: r.rule.Counters}, r.hidden)
		}
	}
}

// isCutOff reports whether a rule has no effect. People copy such rules when the end is cut off. Some matches have an effect themselves.
func isCutOff(r *iptables.Rule) bool {
	if r.Unknown == "" && r.Target.Name != "" {
		return false
	}
	if r.Unknown != "" {
		return !strings.Contains(" "+r.Unknown, " -j ") && !strings.Contains(" "+r.Unknown, " -g ") &&
			!strings.Contains(" "+r.Unknown, " --jump") && !strings.Contains(" "+r.Unknown, " --goto")
	}
	return r.Target.Name == "" && !slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		return slices.Contains([]string{"recent", "nfacct", "set", "quota", "limit", "hashlimit", "connlimit"}, m.Module)
	})
}
