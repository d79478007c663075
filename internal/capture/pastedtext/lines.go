package pastedtext

import (
	"html"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// textLine is a line of the text without what stands around the program's output: colours, what all lines begin with, marks of quotation,
// annotations.
type textLine struct {
	text string
	raw  string // without colours and prefixes only
	host string // that its prefix names
}

var (
	// colour is a sequence that sets a terminal's colour, whole or with its escape lost (ECMA-48).
	colour = regexp.MustCompile(`(?:\x1b|\^\[|\\e|\\033|\\x1b|\\u001b|␛)\[[0-9;]*[mK]|\[[0-9;]+m(?:\[K)?|\[m\[K|\[[mK]\b`)
	entity = regexp.MustCompile(`&(?:lt|gt|amp|quot|apos|nbsp|#[0-9]{1,5}|#x[0-9a-fA-F]{1,4});`)
	// typesetDash is a dash in front of a long option's name, for two hyphens.
	typesetDash   = regexp.MustCompile(`(^|\s)[–—]([a-z])`)
	typesetQuotes = strings.NewReplacer("“", `"`, "”", `"`, "„", `"`)
)

// general is the first byte, in UTF-8, of quotation marks, dashes and arrows (Unicode: General Punctuation, Arrows, Dingbats). Most
// lines have none.
const general = 0xe2

// linesOf takes a text apart into lines as the programs printed them.
func linesOf(text []byte) []textLine {
	raw := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, line := range raw {
		if strings.ContainsAny(line, "[") && colour.MatchString(line) {
			line = colour.ReplaceAllString(line, "")
		}
		raw[i] = strings.TrimRight(line, " \t\r")
	}
	hosts := withoutPrefixes(raw)
	lines := make([]textLine, len(raw))
	for i, line := range raw {
		if strings.IndexByte(line, '&') >= 0 && entity.MatchString(line) {
			line = html.UnescapeString(line)
		}
		rest, isRule := strings.CutPrefix(strings.TrimLeft(strings.ReplaceAll(line, "\t", " "), " >"), "-A ")
		if strings.IndexByte(line, general) >= 0 && isRule && strings.ContainsAny(rest, "“”„–—") {
			line = "-A " + typesetDash.ReplaceAllString(typesetQuotes.Replace(rest), "$1--$2")
		}
		lines[i] = textLine{plainPrompt(unannotated(clean(line))), line, hosts[i]}
	}
	return lines
}

// clean removes blanks, and the marks of quotations and code in mails and Markdown.
func clean(line string) string {
	line = strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(line, "\u00a0", " "), "\t", " "))
	for line == ">" || strings.HasPrefix(line, "> ") {
		line = strings.TrimSpace(line[1:])
	}
	if jiraFence.MatchString(line) {
		return ""
	}
	return strings.TrimSpace(strings.Trim(line, "`"))
}

// jiraFence begins and ends code in Jira's markup.
var jiraFence = regexp.MustCompile(`^\{(?:code|noformat|quote|panel)(?:[:|][^{}]*)?\}$`)

// annotation matches what people write behind a line: an arrow, and what they mean; behind a rule also a shell's comment.
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

// Bounds of the search for what lines begin with, so that reading takes linear time.
const (
	longestPrefix = 100 // bytes
	mostPrefixes  = 500 // that are tried for one text
)

// withoutPrefixes takes off what consecutive lines begin with: the number that an editor, grep or a list puts there, a log's time and
// origin, the border of a box. It is found by comparing lines: a line shows state only without its beginning, and those that follow have
// the same beginning, but for its digits and blanks. It returns the hosts that the prefixes name.
func withoutPrefixes(lines []string) map[int]string {
	tried, hosts := 0, map[int]string{}
	for i := 0; i < len(lines) && tried < mostPrefixes; i++ {
		if strings.TrimSpace(lines[i]) == "" || beginsState(lines[i]) {
			continue
		}
		end := i
		var prefix *regexp.Regexp
		for _, cut := range cuts(lines[i]) {
			if rest := strings.TrimRight(strings.TrimSuffix(lines[i][cut:], "│"), " "); rest == "" || rest[0] == ' ' || rest[0] == '\t' ||
				!strings.ContainsAny(lines[i][:cut], prefixMarks) || !beginsState(rest) {
				continue
			}
			for strings.HasPrefix(lines[i][cut:], "> ") {
				cut += 2
			}
			tried++
			prefix = alike(lines[i][:cut])
			for end = i; end < len(lines) && (strings.TrimSpace(lines[end]) == "" || prefix.MatchString(lines[end])); end++ {
			}
			if end > i+1 {
				break
			}
		}
		first := i // what stands above with the same beginning is prose, or a heading
		for end > i+1 && first > 0 && prefix.MatchString(lines[first-1]) {
			first--
		}
		quote := ""
		for ; end > i+1 && first < end; first++ {
			begin := prefix.FindString(lines[first])
			if n := len(begin); n > 0 && strings.ContainsAny(begin[n-1:], `"'`) {
				quote = begin[n-1:]
			}
			if m := prefixHost.FindStringSubmatch(begin); m != nil {
				hosts[first] = m[1] + m[2] + m[3]
			}
			lines[first] = lines[first][len(begin):]
			if quote != "" {
				lines[first] = strings.ReplaceAll(strings.TrimSuffix(strings.TrimSuffix(lines[first], ","), quote), `\`+quote, quote)
			} else if border := lastWord(begin); border == "│" || border == "|" || border == "┃" {
				lines[first] = strings.TrimRight(strings.TrimSuffix(lines[first], border), " ")
			}
		}
		i = max(i, end-1)
	}
	return hosts
}

// prefixMarks are characters of which each prefix has one.
const prefixMarks = "0123456789.:|>\"')](├│┃*•-"

func lastWord(text string) string {
	words := strings.Fields(text)
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

// cuts returns the places where a line's prefix can end: behind a blank, and behind a mark.
func cuts(line string) []int {
	var all []int
	for i := 1; i < min(len(line), longestPrefix); i++ {
		if strings.IndexByte(" \t:|>\"')]", line[i-1]) >= 0 || i > 2 && line[i-3:i] == "│" {
			all = append(all, i)
		}
	}
	return all
}

// alike matches what differs from a prefix in digits and in how many blanks there are, also where the rest of the line is empty.
func alike(prefix string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`^`)
	for i := 0; i < len(prefix); {
		j := i + 1
		switch c := prefix[i]; {
		case c >= '0' && c <= '9':
			for ; j < len(prefix) && prefix[j] >= '0' && prefix[j] <= '9'; j++ {
			}
			b.WriteString(`[0-9]+`)
		case c == ' ' || c == '\t':
			for ; j < len(prefix) && (prefix[j] == ' ' || prefix[j] == '\t'); j++ {
			}
			more := 0
			if i == 0 { // the numbers behind it are of several lengths
				more = 8
			}
			b.WriteString(`(?:[ \t]{1,` + string('0'+byte(min(j-i+1+more, 9))) + `}|$)`)
		default:
			for ; j < len(prefix) && prefix[j] >= 0x80; j++ {
			}
			b.WriteString(regexp.QuoteMeta(prefix[i:j]))
		}
		i = j
	}
	return regexp.MustCompile(b.String())
}

// stateBegin is how lines of the programs begin whose output is read.
var stateBegin = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`-(?:A|-append)\s+[A-Za-z]\S*\s+[-!]`, `-[NP]\s+[A-Za-z]\S*`, `\*\s?(?:nat|filter|mangle|raw|security)$`, `:[\w.-]+\s+(?:ACCEPT|DROP|-)(?:\s|$)`,
	`\[[0-9]+:[0-9]+\]\s+-A\s`, `COMMIT$`, `Chain \S+ \(`, `(?:pkts|num|target)\s+\S+\s`, `table (?:ip|ip6|inet|bridge|arp|netdev) \S+ \{`,
	`chain [\w.-]+ \{`, `(?:(?:unicast|local|broadcast|multicast|blackhole|unreachable|prohibit|throw) )?(?:default|[0-9a-f:.]+(?:/[0-9]+)?) (?:via|dev|proto|scope) \S`,
	`\s*nexthop `, `[0-9]+:\s+(?:not )?from \S`,
	`[0-9]+: [\w.@-]+: <[A-Z]`, `\s*inet6? \S+/[0-9]+ `, `(?:tcp|udp|icmp)\s+[0-9]+ [0-9]+ .*src=`, `(?:create|add) \S+ [0-9a-z]+[:.]\S+`,
	`Name: \S+$`, `(?:(?:[\w.-]+@[\w.-]+[: ]\S*)?[$#] (?:sudo )?|sudo )?(?:ip6?tables(?:-save|-nft|-legacy)?|nft|ip|ipset|conntrack|sysctl) (?:-\S|\w)`, `# (?:Generated|Completed)`, `(?:TCP|UDP)\s+[0-9.]+:[0-9]+\s+[a-z]`,
}, "|") + `)`)

// beginsState reports whether a line is one that a known program prints, as it stands.
func beginsState(line string) bool {
	for strings.HasPrefix(line, "> ") {
		line = line[2:]
	}
	return stateBegin.MatchString(strings.TrimLeft(line, " \t`")) || stateBegin.MatchString(line)
}

// What a line that no reader took can say of a machine's state.
var (
	flagToken    = regexp.MustCompile(`(?:^|[\s'"(])--?[A-Za-z][\w-]*`)
	addressToken = regexp.MustCompile(`(?:^|[^\w.])((?:[0-9]{1,3}|[xX]{1,3})(?:\.(?:[0-9]{1,3}|[xX]{1,3})){3})(?:[/:]|\b)|(?:^|[^\w:])((?:[0-9a-fA-F]{1,4}:){1,7}(?::|[0-9a-fA-F]{1,4})[0-9a-fA-F:]*)`)
	verdictToken = regexp.MustCompile(`\b(?:ACCEPT|DROP|REJECT|RETURN|MASQUERADE|SNAT|DNAT|REDIRECT|MARK|DENY|ALLOW|NOTRACK|PREROUTING|INPUT|FORWARD|OUTPUT|` +
		`POSTROUTING|[A-Z][A-Z0-9]*(?:[-_][A-Z0-9]+)+)\b`)
	linkToken = regexp.MustCompile(`\b(?:eth|ens|eno|enp|enx|wlan|wlp|wwan|docker|virbr|veth|cali|cni|tun|tap|wg|bond|team|vlan|vxlan|flannel|ppp|br-|azv|cbr|` +
		`kube-ipvs|tunl|ib)(?:[0-9]\w*|-\w+)(?:[.@]\w+)?\b`)
	tableToken = regexp.MustCompile(`\btables? (?:ip6?|inet|nat|filter|mangle|raw|[0-9]+)\b|\b(?:nat|mangle|filter|raw) table\b`)
	// settingToken is a sysctl's name, with or without its path.
	settingToken = regexp.MustCompile(`\bnet[./](?:ipv[46]|core|bridge|netfilter)[./]|\b(?:ip_forward|rp_filter|route_localnet|bridge-nf-call-\w+)\b`)
	// filterToken is a filter of tc.
	filterToken = regexp.MustCompile(`^filter\s.*\b(?:parent|protocol)\s|\baction\s(?:order|drop|pass|mirred|pedit|nat)\b`)
	// policyToken is of a NetworkPolicy, as kubectl shows it.
	policyToken = regexp.MustCompile(`\b\w*NetworkPolicy\b|\b[pP]od ?Selector:|\b[pP]olicy ?Types?:|\bisolated for (?:ingress|egress)\b`)
	lineToken   = regexp.MustCompile(`^(?:[a-z]+ )*(?:accept|drop|reject|masquerade|return);?$|[{};]$`) // of nft: the whole line is lower case
)

// stateOf reports whether a line that no reader took can say something of a machine's state: a flag, an address, a chain, a table, an
// interface or a verdict. ipv4 and ipv6 are set where all addresses that it names are of that family.
func stateOf(line string) (state, ipv4, ipv6 bool) {
	line = strings.ReplaceAll(strings.ReplaceAll(line, "```", ""), "---", "")
	for _, m := range addressToken.FindAllStringSubmatch(line, -1) {
		ipv4, ipv6 = ipv4 || m[1] != "", ipv6 || isIPv6(m[2])
	}
	state = ipv4 || ipv6 || slices.ContainsFunc([]*regexp.Regexp{flagToken, verdictToken, linkToken, tableToken, settingToken, filterToken, policyToken, lineToken},
		func(r *regexp.Regexp) bool { return r.MatchString(line) })
	return state, ipv4 && !ipv6, ipv6 && !ipv4
}

func isIPv6(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Is6()
}
