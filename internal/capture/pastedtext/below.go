package pastedtext

import (
	"bytes"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nfttext"
)

// sentence is the beginning and the end of one: "This is why …."
var sentence = regexp.MustCompile(`^(?:[A-Z][a-z']*|[A-Z][a-z]+-[a-z]+|I'[a-z]+)(?:\s+[^-\s]\S*){2,}[.:!?)]$`)

// needsScan reports whether a comment says that lines are left out, names a host, or may be a command that changes something.
func needsScan(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line[0] != '#' {
			continue
		}
		comment := string(bytes.TrimSpace(line))
		if command, is := hashed(comment); nfttext.IsOmission(comment) || is && len(concerns(command)) > 0 || headsHost(comment) != "" {
			return true
		}
	}
	return false
}

// omission takes what people write for lines that they left out.
func (s *scanner) omission(line string) bool {
	if !nfttext.IsOmission(line) {
		return false
	}
	s.note(leftOut, s.at, "line %d: lines are left out here", s.at)
	s.NotRead(s.at, "lines are left out here")
	s.gap()
	return true
}

// readUnknown takes a line that no program prints: prose, or a line that was not read.
func (s *scanner) readUnknown(line string) bool {
	switch state, ipv4, ipv6 := stateOf(line); {
	case s.passive != "" && mentions(line) == nil && !ruleToken.MatchString(line) && !policyToken.MatchString(line):
		s.NoEffect(s.at, "output of "+s.passive)
		return true
	case failure.MatchString(line) && s.lastFailed():
		s.NoEffect(s.at, "a command failed")
	case failure.MatchString(line) && s.at > 1 && s.Account[s.at-2].Fate == snapshot.LineRead:
		s.NotRead(s.at, "a command failed")
		s.note(leftOut, s.at, "line %d: a command failed, which is taken as run: %s", s.at, line)
	case !strings.HasSuffix(line, "?") && mentions(line) != nil:
		s.noteChange(line, mentions(line))
	case strings.HasSuffix(line, ":") && (len(strings.Fields(line)) < 6 || !ipv4 && !ipv6) || strings.HasPrefix(s.lines[s.at-1].raw, "```"):
		s.NoEffect(s.at, "heading")
		s.headHost(line)
	case nfttext.Include.MatchString(line):
		s.NotRead(s.at, "it reads a file that is not shown")
	case !state:
		s.NoEffect(s.at, "prose")
	case strings.HasSuffix(line, "?"):
		s.NoEffect(s.at, "question")
	default:
		s.NotRead(s.at, unknownLine)
	}
	if s.now.save && !sentence.MatchString(line) {
		s.NotRead(s.at, "lines may be left out here")
		s.gap()
	} else if !s.now.save {
		s.reset()
	}
	return true
}

// ruleToken is a rule in a line of another program's output: it may stand below that output.
var ruleToken = regexp.MustCompile(`(?:^|\s)-[AID]\s+[A-Za-z]\S*\s+(?:[0-9]+\s+)?[-!]`)

// lastFailed takes back the change of the line above, whose command failed and changed nothing. A script may have changed something before.
func (s *scanner) lastFailed() bool {
	n := len(s.changes)
	if n == 0 || s.changes[n-1].line != s.at-1 || n > 1 && s.changes[n-2].line == s.at-1 || slices.Contains(s.changes[n-1].of, state{}) {
		return false
	}
	s.changes = s.changes[:n-1]
	s.Account[s.at-2] = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: "a command that failed"}
	return true
}

// failure matches what programs say of a command that changed nothing.
var failure = regexp.MustCompile(`^(?:RTNETLINK answers: |Cannot find device |Error: |ip6?tables(?: v\S+(?: \(\w+\))?)?: |Bad argument )`)

// unknownLine is why most lines are not read.
const unknownLine = "no reader knows it"

// settleProse takes sentences for prose that name only addresses which the read lines show, too, or which the walk is about. It notes the
// lines that are left.
func (s *scanner) settleProse(about []netip.Addr) {
	shown := map[string]bool{}
	for _, a := range about {
		shown[a.String()] = true
	}
	unread := slices.ContainsFunc(s.Account, func(l snapshot.TextLine) bool { return l.Fate == snapshot.LineNotRead })
	for i := 0; unread && i < len(s.Account); i++ {
		if s.Account[i].Fate == snapshot.LineRead {
			for _, m := range addressToken.FindAllStringSubmatch(s.lines[i].raw, -1) {
				shown[m[1]+m[2]] = true
			}
		}
	}
	noted := 0
	for i := range s.Account {
		line := s.lines[i].text
		if s.Account[i].Fate != snapshot.LineNotRead || s.Account[i].As != unknownLine {
			continue
		}
		rest := addressToken.ReplaceAllStringFunc(line, func(found string) string {
			if m := addressToken.FindStringSubmatch(found); shown[m[1]+m[2]] {
				return " it "
			}
			return found
		})
		if state, _, _ := stateOf(rest); !state && sentence.MatchString(line) {
			s.Account[i] = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: "prose"}
			continue
		}
		if noted++; noted <= mostNoted { // the account has all of them
			s.note(leftOut, i+1, "line %d: not understood: %s", i+1, line)
		}
	}
}

// mostNoted is how many lines that were not read are quoted among the assumptions.
const mostNoted = 10

// gap notes a place where lines are missing: the chains around it may have other rules.
func (s *scanner) gap() {
	if n := len(s.blocks); n > 0 && s.lastEnd == s.at-1 {
		s.blocks[n-1].Filtered, s.filtered = true, true
	}
	for _, r := range s.found[s.section:] {
		r.whole = false
	}
	s.now.piped = true
}

// Bounds of a rule that a page's width cuts into lines, so that reading takes linear time. iptables-restore reads 10,240 bytes of a line.
const (
	longestRule   = 16 << 10
	mostRuleLines = 64
)

// cutShort takes a line right below a rule for what a page's width cut off the rule, if the two are a rule together, or the rule lacks its
// end.
func (s *scanner) cutShort(line string) bool {
	last := &s.lastRule
	if last.run == nil || last.line != s.at-1 {
		return false
	}
	line = strings.TrimSpace(strings.TrimSuffix(line, `\`)) // the next line goes on
	r := &last.run.rules[last.index]
	if !last.open && r.rule.Unknown == "" && sentence.MatchString(line) && !strings.Contains(line, "*/") {
		return false
	}
	last.lines++
	if len(last.text)+len(line) > longestRule || last.lines > mostRuleLines {
		return false
	}
	for _, between := range []string{" ", ""} { // a word's end, or a column's
		joined := last.text + between + line
		if rule, ok := s.reread(last, joined); ok {
			*r = newShown(r.line, rule, r.hidden)
			last.text, last.line, last.open = joined, s.at, isCutOff(&rule)
			return true
		}
	}
	if !last.open && r.rule.Unknown == "" {
		return false
	}
	if !last.open {
		*r = newShown(r.line, iptables.Rule{Unknown: iptables.UnreadableListed(last.text + " " + line).Unknown, Counters: r.rule.Counters},
			r.hidden)
		s.note(leftOut, s.at, "line %d: may be the end of the rule above it, so that rule's effect is unknown", s.at)
	}
	last.text, last.line = last.text+" "+line, s.at // the next line may end it
	return true
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
	longest := 0 // rule of a table that is shown whole
	for _, run := range s.found {
		for i := range run.rules {
			if r := &run.rules[i]; run.saved && !isCutOff(&r.rule) {
				longest = max(longest, len(run.chain)+len(r.key))
			}
		}
	}
	for _, run := range s.found {
		run.whole = run.whole && !run.begun
		for i := range run.rules {
			r := &run.rules[i]
			if !isCutOff(&r.rule) || run.saved && isRemark(&r.rule) && len(run.chain)+len(r.key) < longest {
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

// endTables says which table of an iptables-save a text is cut off in.
func (s *scanner) endTables() {
	save := slices.ContainsFunc(s.lines, func(l textLine) bool { return strings.HasPrefix(l.text, "# Generated by ip") })
	last, rules, table := 0, 0, ""
	for _, run := range s.found {
		save = save || run.saved
		if !run.begun {
			continue
		}
		last, rules, table = max(last, run.line), rules+len(run.rules), run.table
		for _, r := range run.rules {
			last = max(last, r.line)
		}
	}
	below := slices.ContainsFunc(s.lines[last:], func(l textLine) bool { return l.text != "" })
	if last > 0 && !below && (save || rules == 0) {
		s.NotRead(last, "the text ends in table "+table+", of which rules may be missing")
	}
}

// isRemark reports whether a rule has nothing but comments, as Calico's agent writes it for a policy without rules. Where a page's width has
// cut nothing off a longer rule of the same table, such a rule is complete.
func isRemark(r *iptables.Rule) bool {
	comments := slices.DeleteFunc(slices.Clone(r.Matches), func(m iptables.Match) bool { return m.Module != "comment" })
	bare := iptables.Rule{Matches: comments}
	return len(comments) > 0 && r.Unknown == "" && bare.Spec() == r.Spec()
}

// isCutOff reports whether a rule has no effect. People copy such rules when the end is cut off. A
// rule that only adds to a list of recent addresses is complete.
func isCutOff(r *iptables.Rule) bool {
	if r.Unknown == "" && r.Target.Name != "" {
		return false
	}
	if r.Unknown != "" {
		return !strings.Contains(" "+r.Unknown, " -j ") && !strings.Contains(" "+r.Unknown, " -g ") &&
			!strings.Contains(" "+r.Unknown, " --jump") && !strings.Contains(" "+r.Unknown, " --goto")
	}
	return !slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		_, sets := m.Option("set")
		_, ends := m.Option("rsource") // which iptables prints last
		_, ends2 := m.Option("rdest")
		return m.Module == "recent" && sets && (ends || ends2)
	})
}
