package excerpt

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// nftRounds is how often nft is asked about one text. It names ten mistakes at a time, and the kernel's complaints come after its own.
const nftRounds = 12

// unreadMark begins the comment of a rule that stands for what nft cannot read.
const unreadMark = "packetwalk cannot read: "

var (
	nftErrorAt = regexp.MustCompile(`line ([0-9]+):[0-9]+-[0-9]+: Error`)
	// nftForeign is how nft writes an extension of iptables that it cannot translate: the first form is a comment for nft itself.
	nftForeign = regexp.MustCompile(`# xt_\w+|\bxt (?:match|target|watcher) "?\w+"?`)
	// nftFlow hands a connection to a flowtable, which needs the machine's interfaces. What is behind it holds where that succeeds.
	nftFlow    = regexp.MustCompile(`\bflow (?:add|offload) @\S+`)
	nftComment = regexp.MustCompile(`# xt_comment\b|\bxt match "comment"`)
	// nftLink is a test for an interface's index, which is read as one for its name: the interface does not exist where nft reads the text.
	nftLink = regexp.MustCompile(`\b([io]if)(\s+(?:!=\s+|==\s+)?["{a-zA-Z_]|\s+\.\s)`)
	nftHook = regexp.MustCompile(`\btype\s+\w+\s+hook\s+\w+`)
	// nftFrame begins a line that is no rule of a chain.
	nftFrame = regexp.MustCompile(`^(?:table|chain|set|map|flowtable|type|policy|flags|elements|devices|hook|define|counter \S+ \{|\})`)
)

// nftText has nft read its own syntax. What nft cannot read is a rule that is not understood, in the chain where it stands. If it is no
// rule, each base chain of its table has such a rule in place of its own.
func (rd *reader) nftText(b block) error {
	if rd.nft == nil {
		return errors.New("cannot read nft's own syntax here")
	}
	t := nftListing{lines: strings.Split(closeBraces(string(b.Text)), "\n")}
	t.prepare()
	for range nftRounds {
		rules, err := rd.nft([]byte(strings.Join(t.lines, "\n")))
		if err == nil {
			if _, err := rd.Read(files[nftJSON], rules); err != nil {
				rd.Host.Partial[snapshot.NFT] = err.Error()
			}
			rd.unreadRules(t.unread)
			return nil
		}
		if !t.withoutErrors(err.Error()) {
			return err
		}
	}
	return errors.New("nft does not load it")
}

// nftListing is a text in nft's own syntax, in lines.
type nftListing struct {
	lines  []string
	unread []string // what rules that nft cannot read were, by the number in their comment
}

// prepare takes out what nft would take for a comment, or cannot know without the machine's interfaces.
func (t *nftListing) prepare() {
	flowtable, depths := 0, t.depths() // flowtable: braces that it has open
	for i, line := range t.lines {
		line = nftComment.ReplaceAllString(line, "")
		at := nftForeign.FindStringIndex(line)
		switch trimmed := strings.TrimSpace(line); {
		case flowtable > 0 || strings.HasPrefix(trimmed, "flowtable "):
			flowtable += braces(line)
			t.lines[i] = ""
		case at != nil:
			t.lines[i] = line[:at[0]] + " counter " + t.mark(line)
		case nftFlow.MatchString(line):
			t.lines[i] = nftFlow.ReplaceAllString(line, "") + " " + t.mark(trimmed)
		case omission.MatchString(trimmed) && depths[i] >= 2:
			t.lines[i] = "counter " + t.mark("lines are left out here")
		default:
			t.lines[i] = nftLink.ReplaceAllString(line, "${1}name$2")
		}
	}
}

// mark is a rule's comment that stands for what cannot be read.
func (t *nftListing) mark(line string) string {
	t.unread = append(t.unread, strings.TrimSpace(line))
	return fmt.Sprintf("comment \"%s%d\"", unreadMark, len(t.unread)-1)
}

// depths are how many braces are open in front of each line.
func (t *nftListing) depths() []int {
	depths, open := make([]int, len(t.lines)), 0
	for i, line := range t.lines {
		depths[i] = open
		open += braces(line)
	}
	return depths
}

// withoutErrors replaces the lines that nft complains about. It returns false if it cannot.
func (t *nftListing) withoutErrors(text string) bool {
	found, depths := nftErrorAt.FindAllStringSubmatch(text, -1), t.depths()
	for _, m := range found {
		n, _ := strconv.Atoi(m[1])
		if n < 1 || n > len(t.lines) {
			return false
		}
		switch line := strings.TrimSpace(t.lines[n-1]); {
		case line == "":
		case strings.HasPrefix(line, "chain unread"):
			return false
		case strings.Contains(line, unreadMark) || nftFrame.MatchString(line) || braces(line) != 0 || depths[n-1] != 2:
			if !t.keepHooks(n-1, depths) {
				return false
			}
		default:
			t.lines[n-1] = "counter " + t.mark(line)
		}
	}
	return len(found) > 0
}

// keepHooks leaves of the table around a line its base chains, each with one rule that is not understood.
func (t *nftListing) keepHooks(at int, depths []int) bool {
	first := at
	for first > 0 && depths[first] > 0 {
		first--
	}
	last := at
	for last < len(t.lines)-1 && (last == first || depths[last+1] > 0) {
		last++
	}
	if !nftTable.MatchString(strings.TrimSpace(t.lines[first])) {
		return false
	}
	for i := first + 1; i < last; i++ {
		line := strings.TrimSpace(t.lines[i])
		t.lines[i] = ""
		if hook := nftHook.FindStringIndex(line); hook != nil {
			base := strings.TrimRight(line[hook[0]:], "; }")
			t.lines[i] = fmt.Sprintf("chain unread%d { %s; counter %s; }", i, base, t.mark(unreadTable))
		}
	}
	return true
}

// braces counts those that a line opens, less those that it closes, outside of quotation marks and comments.
func braces(line string) int {
	n, quoted := 0, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case quoted:
		case r == '#':
			return n
		case r == '{':
			n++
		case r == '}':
			n--
		}
	}
	return n
}

// closeBraces ends a text that was cut off. Whatever was open may have had more: a chain gets a rule that is not understood.
func closeBraces(text string) string {
	depth := 0
	for line := range strings.Lines(text) {
		depth += braces(line)
	}
	if depth >= 2 {
		text += "...\n"
	}
	return text + strings.Repeat("}\n", max(depth, 0))
}

// unreadTable stands for all rules of a table.
const unreadTable = "a table that cannot be read"

// unreadTables stand for tables of which nothing was read: wherever the kernel can call their chains there is a rule not understood.
func (rd *reader) unreadTables(b block) {
	for line := range strings.Lines(string(b.Text)) {
		m := nftTable.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		family, ok := map[string]netfilter.Family{"ip": netfilter.IPv4, "ip6": netfilter.IPv6, "inet": netfilter.Inet}[m[1]]
		if !ok {
			continue
		}
		t := &netfilter.Table{Family: family, Name: m[2], Dialect: netfilter.NFTables}
		for hook := netfilter.Prerouting; hook <= netfilter.Postrouting; hook++ {
			c := &netfilter.Chain{Table: t, Name: hook.String(), Base: &netfilter.Base{Type: "filter", Hook: hook}, Policy: netfilter.Accept}
			c.Rules = []netfilter.Rule{{Number: 1, Text: unreadTable, Statements: notUnderstood(unreadTable)}}
			t.Chains = append(t.Chains, c)
		}
		rd.AddTables(t)
	}
}

func notUnderstood(text string) []netfilter.Statement {
	return []netfilter.Statement{&netfilter.UnknownTest{Text: text}, &netfilter.UnknownEffect{Text: text}}
}

// unreadRules makes rules that are not understood of those that have a mark.
func (rd *reader) unreadRules(lines []string) {
	for _, t := range rd.Host.Rules.Tables {
		for _, c := range t.Chains {
			for i := range c.Rules {
				number, ok := strings.CutPrefix(c.Rules[i].Comment, unreadMark)
				n, err := strconv.Atoi(number)
				if !ok || err != nil || n >= len(lines) {
					continue
				}
				r, what := &c.Rules[i], lines[n]
				r.Text, r.Comment = what, ""
				if flow := nftFlow.FindString(what); flow != "" && len(r.Statements) > 0 {
					r.Statements = slices.Insert(r.Statements, len(r.Statements)-1, notUnderstood(flow)[0])
					continue
				}
				if at := nftForeign.FindStringIndex(what); at != nil {
					what = what[at[0]:]
				}
				r.Statements = append(r.Statements, notUnderstood(what)...)
				rd.Assume("%s: nft cannot read it, so its effect is unknown: %s", c.Ref(r), lines[n])
			}
		}
	}
}

var (
	nftTable = regexp.MustCompile(`^(?:add |create )?table (ip|ip6|inet|bridge|arp|netdev) (\S+) \{`)
	nftChain = regexp.MustCompile(`^chain ([\w.-]+) \{$`)
	// nftCommand is "nft list chain ip nat POSTROUTING", and what it lists without a name.
	nftCommand = regexp.MustCompile(`(?:^|[\s/])nft\s(?:-\S+\s+)*list\s+` +
		`(?:(ruleset)(\s+(?:ip|ip6|inet|bridge|arp|netdev)\b)?|(?:chain|table)\s+(?:(ip|ip6|inet|bridge|arp|netdev)\s+)?([\w.-]+))`)
	// nftDefine gives a name to what a file's rules then call by it.
	nftDefine = regexp.MustCompile(`^define \w+ = \S`)
)

// nftOf is what an nft command asked for.
type nftOf struct {
	family, table string // "" for none
	ruleset       bool   // of all families
}

// parseNFT reads a command line; the zero value is for any other command.
func parseNFT(command string) nftOf {
	m := nftCommand.FindStringSubmatch(command)
	if m == nil {
		return nftOf{}
	}
	return nftOf{family: cmp.Or(m[3], "ip"), table: m[4], ruleset: m[1] != "" && m[2] == ""}
}
