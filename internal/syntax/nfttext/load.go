package nfttext

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Loader gives rules in nft's own syntax as "nft -j list ruleset" prints them.
type Loader func(text []byte) ([]byte, error)

// rounds is how often nft is asked about one text. It names ten mistakes at a time, and the kernel's complaints come after its own.
const rounds = 40

// Result holds the tables that nft read from the blocks.
type Result struct {
	JSON     []byte
	Marks    []Mark   // parts of rules that nft cannot read, by the number in the rule's comment
	NotRead  []Unread // lines of which nothing was kept
	Earlier  []int    // lines of an earlier state
	Assumed  []string
	Commands int // that were assumed to have been run
}

// Unread is a line that was not read.
type Unread struct {
	Line int
	Why  string
}

// Mark is a part of a rule that nft cannot read. Its rule has the comment Comment(n).
type Mark struct {
	Line int
	Rule string // the whole rule, as it was pasted
	// Test and Effect are the parts, "" for none. A test stands before the rule's last statement.
	Test, Effect string
}

// markText begins the comment of a rule of which something cannot be read.
const markText = "packetwalk cannot read: "

// MarkOf returns the mark of a rule by its comment.
func (r *Result) MarkOf(comment string) *Mark {
	number, ok := strings.CutPrefix(comment, markText)
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || n >= len(r.Marks) {
		return nil
	}
	return &r.Marks[n]
}

// Read has nft read what the blocks say together. A rule that nft refuses loses the part that it cannot read, and keeps its other tests and
// its verdict.
func Read(blocks []Block, nft Loader) (*Result, error) {
	if nft == nil {
		return nil, errors.New("cannot read nft's own syntax here")
	}
	f := merge(blocks)
	f.withoutUncalled(blocks)
	l := listing{Result: &f.Result, lines: f.lines()}
	l.prepare()
	for range rounds {
		var b strings.Builder
		for _, line := range l.lines {
			b.WriteString(line.Text + "\n")
		}
		rules, err := nft([]byte(b.String()))
		if err == nil {
			f.JSON = rules
			return &f.Result, nil
		}
		if !l.withoutErrors(err.Error()) {
			return nil, err
		}
	}
	return nil, errors.New("nft does not load it")
}

// listing is a text in nft's own syntax.
type listing struct {
	*Result
	lines []Line
	tried map[int]int    // how often a line's rule was rewritten
	whole map[int]string // its rule as it was pasted
}

var (
	errorAt = regexp.MustCompile(`line ([0-9]+):[0-9]+-[0-9]+: Error`)
	// foreign is how nft writes an extension of iptables that it cannot translate: the first form is a comment for nft itself.
	foreign = regexp.MustCompile(`#\s*xt_(\w+)|\bxt (?:match|target|watcher) "?(\w+)"?`)
	// flow hands a connection to a flowtable, which needs the machine's interfaces. What is behind it holds where that succeeds.
	flow = regexp.MustCompile(`\bflow (?:add|offload) @\S+`)
	// link is a test for an interface's index, which is read as one for its name: the interface does not exist where nft reads the text.
	link = regexp.MustCompile(`\b([io]if)(\s+(?:!=\s+|==\s+)?["{a-zA-Z_]|\s+\.\s)`)
	// frameLine matches a line that is not a rule.
	frameLine = regexp.MustCompile(`^(?:table|chain|set|map|flowtable|type|policy|flags|elements|devices|hook|define|comment|counter \S+ \{|\})`)
	// priorities have names, of which an old nft knows some at some hooks only.
	priority   = regexp.MustCompile(`\bpriority\s+(raw|mangle|dstnat|filter|security|srcnat|out)(?:\s*([+-])\s*([0-9]+))?`)
	priorities = map[bool]map[string]int{
		false: {"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100},
		true:  {"dstnat": -300, "filter": -200, "out": 100, "srcnat": 300},
	}
	// effects begin what a rule does.
	effects = regexp.MustCompile(`\b(?:accept|drop|reject|return|continue|jump|goto|queue|masquerade|snat|dnat|redirect|log|counter|limit|dup|fwd|notrack|` +
		`synproxy|tproxy|(?:meta|ct|ip6?|tcp|udp|th|ether)\s+\w+\s+set|meta set|add @|update @|delete @)(?:\s|;|$)`)
	verdicts = regexp.MustCompile(`^(?:accept|drop|reject|return|continue|jump|goto|queue|masquerade|snat|dnat|redirect)\b`)
	omission = regexp.MustCompile(`(?i)^[#\[(<*\s-]*(?:\.\.\.|…|snip|many more|output omitted|truncated|etc\b|and so on)|` +
		`^[#(\[<{].*\b(?:` + leftOut + `|(?:more|other) ` + parts + `|rest of (?:the )?` + parts + `)\b|` +
		`\b` + parts + `\b.{0,60}\b` + leftOut + `\b|\b` + leftOut + `\b.{0,60}\b` + parts + `\b`)
	ruleIntro = regexp.MustCompile(`^(?:add|insert|replace)\s+rule\s+(?:(?:ip|ip6|inet|bridge|arp|netdev)\s+)?\S+\s+\S+\s+(?:(?:index|handle|position)\s+[0-9]+\s+)?`)
)

// Include matches what reads another file. nft would read one of this machine.
var Include = regexp.MustCompile(`(?:^|[{;])\s*include\s+["']`)

// Words of those who leave lines out.
const (
	leftOut = `(?:omitted|truncated|removed|left out|skipped|snipped|elided|trimmed|for brevity)`
	parts   = `(?:rules|lines|chains|entries|output|routes|rest|others)`
)

// IsOmission reports whether a line stands for lines that were left out, also as a comment.
func IsOmission(line string) bool { return omission.MatchString(line) }

// prepare rewrites what nft would take for a comment, does not know yet, or cannot know without the machine's interfaces.
func (l *listing) prepare() {
	l.tried, l.whole = map[int]int{}, map[int]string{}
	flowtable, depths := 0, l.depths() // flowtable: braces that it has open
	family := ""
	for i := range l.lines {
		line, trimmed := l.lines[i].Text, strings.TrimSpace(l.lines[i].Text)
		if m := TableLine.FindStringSubmatch(trimmed); m != nil && depths[i] == 0 {
			family = m[1]
		}
		switch {
		case Include.MatchString(line) && l.lines[i].Number > 0:
			l.NotRead, line = append(l.NotRead, Unread{l.lines[i].Number, "it reads a file that is not shown"}), ""
		case flowtable > 0 || strings.HasPrefix(trimmed, "flowtable "):
			flowtable += Braces(line)
			line = ""
		case IsOmission(trimmed) && depths[i] < 2 && l.lines[i].Number > 0:
			l.NotRead, line = append(l.NotRead, Unread{l.lines[i].Number, "lines are left out here"}), ""
		case IsOmission(trimmed):
			line = "counter " + l.mark(i, Mark{Rule: "lines are left out here", Test: "lines are left out here", Effect: "lines are left out here"})
		case foreign.MatchString(line):
			line = l.withoutForeign(i, trimmed)
		case flow.MatchString(line):
			found := flow.FindString(line)
			line = flow.ReplaceAllString(line, "") + " " + l.mark(i, Mark{Rule: trimmed, Test: found})
		}
		line = priority.ReplaceAllStringFunc(line, func(text string) string {
			m := priority.FindStringSubmatch(text)
			n, known := priorities[family == "bridge"][m[1]]
			if offset, _ := strconv.Atoi(m[2] + m[3]); known {
				return fmt.Sprintf("priority %d", n+offset)
			}
			return text
		})
		l.lines[i].Text = link.ReplaceAllString(line, "${1}name$2")
	}
}

// withoutForeign takes the extensions of iptables out of a rule. MASQUERADE is nft's own masquerade.
func (l *listing) withoutForeign(i int, rule string) string {
	m := Mark{Rule: rule}
	line := foreign.ReplaceAllStringFunc(rule, func(text string) string {
		found := foreign.FindStringSubmatch(text)
		switch name := found[1] + found[2]; {
		case name == "comment":
		case name == "MASQUERADE":
			return "masquerade"
		case strings.Contains(text, "xt match") || found[1] != "" && name == strings.ToLower(name):
			m.Test = text
		default:
			m.Effect = text
		}
		return ""
	})
	if m.Test+m.Effect == "" {
		return line
	}
	if m.Effect != "" || effects.FindStringIndex(line) == nil {
		line += " counter"
	}
	return line + " " + l.mark(i, m)
}

// mark returns a rule's comment that stands for what cannot be read.
func (l *listing) mark(i int, m Mark) string {
	m.Line = l.lines[i].Number
	l.Marks = append(l.Marks, m)
	return fmt.Sprintf("comment \"%s%d\"", markText, len(l.Marks)-1)
}

// depths returns how many braces are open in front of each line.
func (l *listing) depths() []int {
	depths, open := make([]int, len(l.lines)), 0
	for i, line := range l.lines {
		depths[i] = open
		open += Braces(line.Text)
	}
	return depths
}

// withoutErrors rewrites the lines that nft complains about. It returns false if it cannot.
func (l *listing) withoutErrors(text string) bool {
	found, depths := errorAt.FindAllStringSubmatch(text, -1), l.depths()
	done := map[int]bool{}
	for _, m := range found {
		n, _ := strconv.Atoi(m[1])
		if n < 1 || n > len(l.lines) {
			return false
		}
		i := n - 1
		line := strings.TrimSpace(l.lines[i].Text)
		command := ruleIntro.MatchString(line)
		switch {
		case line == "" || done[i]:
		case !command && (frameLine.MatchString(line) || Braces(line) != 0 || depths[i] != 2):
			if !l.without(i, depths) {
				return false
			}
		default:
			l.rewrite(i, line)
		}
		done[i] = true
	}
	return len(found) > 0
}

// rewrite takes a part out of a rule that nft refuses: each time another one, until nft reads the rest.
func (l *listing) rewrite(i int, line string) {
	if l.whole[i] == "" {
		l.whole[i] = line
	}
	rule := l.whole[i]
	intro := ruleIntro.FindString(rule)
	body := strings.TrimSuffix(strings.TrimSpace(rule[len(intro):]), ";")
	for {
		m := Mark{Rule: body}
		rest := ""
		tests, does := split(body)
		l.tried[i]++
		switch l.tried[i] {
		case 1: // something between the tests and the verdict
			if len(does) < 2 || !verdicts.MatchString(does[len(does)-1]) {
				continue
			}
			m.Test = strings.Join(does[:len(does)-1], " ")
			rest = tests + " " + does[len(does)-1]
		case 2: // what it does
			m.Effect = strings.Join(does, " ")
			if m.Effect == "" || tests == "" {
				continue
			}
			rest = tests + " counter"
		case 3: // what it tests
			m.Test, rest = tests, strings.Join(does, " ")
			if tests == "" || rest == "" {
				continue
			}
		default:
			m.Test, m.Effect, rest = body, body, "counter"
		}
		l.lines[i].Text = intro + rest + " " + l.mark(i, m)
		return
	}
}

// split takes a rule apart: its tests, and each thing that it does.
func split(rule string) (tests string, does []string) {
	if at := strings.Index(rule, ` comment "`); at >= 0 {
		rule = rule[:at]
	}
	hidden := []byte(rule) // without what stands in quotation marks and braces
	depth, quoted := 0, false
	for i, c := range hidden {
		switch {
		case c == '"':
			quoted = !quoted
		case !quoted && c == '{':
			depth++
		case !quoted && c == '}':
			depth--
		}
		if quoted || depth > 0 {
			hidden[i] = '_'
		}
	}
	at := effects.FindAllIndex(hidden, -1)
	if len(at) == 0 {
		return strings.TrimSpace(rule), nil
	}
	for i, one := range at {
		end := len(rule)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		if part := strings.TrimSpace(rule[one[0]:end]); !strings.HasPrefix(part, "counter") {
			does = append(does, part)
		}
	}
	return strings.TrimSpace(rule[:at[0][0]]), does
}

// without takes the item around a line out, or a whole table. Its lines are not read.
func (l *listing) without(at int, depths []int) bool {
	depth := min(depths[at], 1) // of the item in its table
	if strings.HasPrefix(strings.TrimSpace(l.lines[at].Text), "table ") {
		depth = 0
	}
	first := at
	for first > 0 && depths[first] > depth {
		first--
	}
	last := first
	for last < len(l.lines)-1 && (last == first && Braces(l.lines[first].Text) > 0 || depths[last+1] > depth) {
		last++
	}
	changed := false
	for i := first; i <= last; i++ {
		if n := l.lines[i].Number; n > 0 && l.lines[i].Text != "" && !slices.Contains(l.NotRead, Unread{n, refused}) {
			l.NotRead = append(l.NotRead, Unread{n, refused})
		}
		changed = changed || l.lines[i].Text != ""
		l.lines[i].Text = ""
	}
	return changed
}

const refused = "nft refuses it"
