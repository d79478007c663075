package tour

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ellipsis stands for any text in a page's output, and alone on a line for any lines.
const ellipsis = "…"

// Names knows which of this run's names and addresses the page's stand for, and learns them from outputs. The zero value knows none and no
// range of addresses.
type Names struct {
	ranges     []Range
	endpoint   func(chain string) bool
	here, page map[name]string // the page's to this run's, and back
}

// A name is a text of a kind.
type name struct{ kind, text string }

// newNames knows no names yet; addresses of the ranges are names, and so are the chains that endpoint says are an endpoint's.
func newNames(ranges []Range, endpoint func(chain string) bool) *Names {
	return &Names{ranges: ranges, endpoint: endpoint, here: map[name]string{}, page: map[name]string{}}
}

// Forget removes all names, when everything that had a name is gone.
func (n *Names) Forget() { n.here, n.page = map[name]string{}, map[name]string{} }

// Here returns a text of the page with this run's names, all at once: two may have changed places.
func (n *Names) Here(text string) string {
	to := map[string]string{}
	for page, here := range n.here {
		if slices.ContainsFunc(kinds, func(k kind) bool { return k.name == page.kind && k.text }) {
			to[page.text] = here
		}
	}
	if len(to) == 0 {
		return text
	}
	var quoted []string
	for _, page := range slices.SortedFunc(maps.Keys(to), func(a, b string) int { return len(b) - len(a) }) {
		quoted = append(quoted, regexp.QuoteMeta(page))
	}
	known := regexp.MustCompile(`\b(?:` + strings.Join(quoted, "|") + `)\b`)
	return known.ReplaceAllStringFunc(text, func(page string) string { return to[page] })
}

// Page returns a line of this run's output with the page's names.
func (n *Names) Page(line string) string {
	var b strings.Builder
	end := 0
	for _, t := range n.tokens(line) {
		text := line[t.from:t.to]
		if page, ok := n.page[name{t.kind.name, text}]; ok {
			text = page
		}
		b.WriteString(line[end:t.from] + text)
		end = t.to
	}
	return b.String() + line[end:]
}

// A Difference is what a command printed in place of what the page has.
type Difference struct {
	Want []string // the page's output, with this run's names
	Got  []string
	Line string // of Want: the first that nothing was found for; empty: Got has more
}

func (d *Difference) Error() string {
	if d.Line == "" {
		return "more was printed than the page has"
	}
	return fmt.Sprintf("no such line was printed: %s", d.Line)
}

// progress matches the lines that packetwalk prints while a command takes long.
var progress = regexp.MustCompile(`: [\d.]+ (s|MB) so far$`)

// Lines returns an output's, in UTF-8, without spaces at their ends, without empty ones at its end, and without those of progress, which a
// page cannot have: they depend on the machine.
func Lines(output string) []string {
	lines := strings.Split(strings.ReplaceAll(strings.ToValidUTF8(output, "\uFFFD"), "\r", ""), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t")
	}
	lines = slices.DeleteFunc(lines, progress.MatchString)
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// Compare says whether lines that a step's command printed are what the page has: the same but for spaces between words, for what varies
// and for "…". Where they are it learns the names in them; where not it gives the difference and learns nothing.
func (n *Names) Compare(step *Step, got []string) *Difference {
	m := matcher{names: n, want: Lines(strings.Join(step.Output, "\n")), got: got, patterns: map[string]*regexp.Regexp{}, left: maxTries}
	if step.AnyOrder {
		m.more = slices.Contains(m.want, ellipsis)
		m.want = slices.DeleteFunc(m.want, func(line string) bool { return line == ellipsis })
		m.used = make([]bool, len(got))
		if m.anyOrder(0) {
			return nil
		}
	} else if m.ordered(0, 0) {
		return nil
	}
	d := &Difference{Got: got}
	for _, line := range step.Output {
		d.Want = append(d.Want, n.Here(line))
	}
	if m.furthest < len(m.want) {
		d.Line = n.Here(m.want[m.furthest])
	}
	return d
}

// maxTries bounds the work for one output: how often a line is held against another one.
const maxTries = 100_000

// A matcher holds the lines of one output against the page's. Where a line may stand for several, it goes back and tries the next one.
type matcher struct {
	names     *Names
	want, got []string
	patterns  map[string]*regexp.Regexp
	furthest  int // the first line of want that nothing was found for, on the best way
	left      int // tries

	more bool   // in any order: got may have more
	used []bool // lines of got
}

func (m *matcher) ordered(i, j int) bool {
	m.furthest = max(m.furthest, i)
	switch {
	case i == len(m.want):
		return j == len(m.got)
	case m.want[i] == ellipsis:
		for ; j <= len(m.got); j++ {
			if m.ordered(i+1, j) {
				return true
			}
		}
		return false
	case j == len(m.got):
		return false
	}
	learned, ok := m.line(m.want[i], m.got[j])
	if ok && m.ordered(i+1, j+1) {
		return true
	}
	m.names.unlearn(learned)
	return false
}

func (m *matcher) anyOrder(i int) bool {
	m.furthest = max(m.furthest, i)
	if i == len(m.want) {
		return m.more || !slices.Contains(m.used, false)
	}
	for j, line := range m.got {
		if m.used[j] {
			continue
		}
		learned, ok := m.line(m.want[i], line)
		if ok {
			m.used[j] = true
			if m.anyOrder(i + 1) {
				return true
			}
			m.used[j] = false
		}
		m.names.unlearn(learned)
	}
	return false
}

// line holds one line against another and gives the names that it has learned, which are to be unlearned if that leads nowhere.
func (m *matcher) line(want, got string) (learned []name, ok bool) {
	if m.left--; m.left < 0 {
		return nil, false
	}
	pattern, captures := m.names.pattern(want)
	re := m.patterns[pattern]
	if re == nil {
		re = regexp.MustCompile(pattern)
		m.patterns[pattern] = re
	}
	found := re.FindStringSubmatch(got)
	if found == nil {
		return nil, false
	}
	for i, c := range captures {
		text := found[i+1]
		if c.kind.ok != nil && !c.kind.ok(m.names, text) {
			return learned, false
		}
		if c.kind.like != nil && !c.kind.like(c.text, text) {
			return learned, false
		}
		if !c.kind.one {
			continue
		}
		page := name{c.kind.name, c.text}
		if !m.names.learn(page, text) {
			return learned, false
		}
		learned = append(learned, page)
	}
	return learned, true
}

// learn says whether a name of the page can stand for a text of this run: neither stands for another one.
func (n *Names) learn(page name, text string) bool {
	here := name{page.kind, text}
	if known, ok := n.here[page]; ok {
		return known == text
	}
	if _, ok := n.page[here]; ok {
		return false
	}
	n.here[page], n.page[here] = text, page.text
	return true
}

func (n *Names) unlearn(names []name) {
	for _, page := range names {
		if text, ok := n.here[page]; ok {
			delete(n.here, page)
			delete(n.page, name{page.kind, text})
		}
	}
}

// A capture is a text of the page that may be another one in this run.
type capture struct {
	kind *kind
	text string
}

var blanks = regexp.MustCompile(`[ \t]+`)

// pattern returns the expression of a line of the page, with a group for each capture.
func (n *Names) pattern(line string) (string, []capture) {
	var b strings.Builder
	var captures []capture
	literal := func(text string) {
		for i, part := range strings.Split(text, ellipsis) {
			if i > 0 {
				b.WriteString(`.*`)
			}
			for i, word := range blanks.Split(part, -1) {
				if i > 0 {
					b.WriteString(`[ \t]+`)
				}
				b.WriteString(regexp.QuoteMeta(word))
			}
		}
	}
	line = strings.Trim(line, " \t")
	b.WriteString(`^[ \t]*`)
	end := 0
	for _, t := range n.tokens(line) {
		literal(line[end:t.from])
		end = t.to
		text := line[t.from:t.to]
		known, isKnown := n.here[name{t.kind.name, text}]
		switch {
		case t.kind.here == "":
			literal(text)
		case isKnown:
			b.WriteString(regexp.QuoteMeta(known))
		default:
			b.WriteString("(" + t.kind.here + ")")
			captures = append(captures, capture{t.kind, text})
		}
	}
	literal(line[end:])
	b.WriteString(`$`)
	return b.String(), captures
}
