package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// shown is one rule as the text has it.
type shown struct {
	line   int
	rule   Rule
	hidden bool // its interfaces are not shown (iptables -L without -v)
}

// run is consecutive rules of one chain, as one command printed them.
type run struct {
	line    int
	family  int    // 4, 6 or 0
	table   string // "" where nothing around the lines tells
	why     string // how the table is known
	chain   string // "" for a listed rule whose chain is not shown
	policy  string // of a built-in chain, where shown, with its counters
	passed  Counters
	rules   []shown
	whole   bool // all rules of the chain are here
	saved   bool // it is of a table that is shown whole, from *table to COMMIT
	from    origin
	output  *output
	command int    // line of the command that printed it; 0 where none is shown
	filter  filter // of the command, where known
}

// output is what one command printed of one table, as far as the chains' headings tell: a run without a heading has none.
type output struct {
	chains   map[string]bool
	hooks    []string // those that are built in
	userSeen bool     // chains that are not built in come last
}

// takes tells whether a chain's heading can stand below those that are there: each chain stands once, the built-in ones first, and
// PREROUTING before all.
func (o *output) takes(chain string) bool {
	_, builtIn := hooks[chain]
	return o != nil && !o.chains[chain] && !(builtIn && o.userSeen) && !(chain == "PREROUTING" && len(o.chains) > 0)
}

func (o *output) add(chain string) {
	o.chains[chain] = true
	if _, builtIn := hooks[chain]; builtIn {
		o.hooks = append(o.hooks, chain)
	} else {
		o.userSeen = true
	}
}

// table is the one that has these built-in chains and no others; "" where that does not tell.
func (o *output) table() string {
	for _, table := range []string{Mangle, NAT, Filter} {
		if o.hasAll(table) {
			return table
		}
	}
	return ""
}

// hasAll tells whether the built-in chains are those of a table.
func (o *output) hasAll(table string) bool {
	if o == nil {
		return false
	}
	all := builtIn[table]
	missing := len(all) - len(o.hooks)
	if table == NAT && missing == 1 && !o.chains["INPUT"] { // which is there since Linux 2.6.36
		missing = 0
	}
	return missing == 0 && !slices.ContainsFunc(o.hooks, func(chain string) bool { return !slices.Contains(all, chain) })
}

// context is what the lines before tell about those that follow.
type context struct {
	table, why string
	family     int
	save       bool // between *table and COMMIT
	piped      bool // the command's output went through another program: lines may be missing
	command    int  // its line; 0 for none
	filter     filter
	chain      string
	columns    columns
	listing    bool // below a line "Chain …"
	members    bool // below a line "Members:" of ipset list
}

// scanner takes a text apart.
type scanner struct {
	lines    []string
	at       int // index of the present line
	now      context
	output   *output // that the present line is of
	found    []*run
	section  int             // first run of the present command's output
	headers  map[string]*run // its runs that begin with the chain's name
	blocks   []Block
	lastEnd  int // line after the last block's last line
	assumed  []Assumption
	from     origin // of what the present command printed
	filtered bool   // it went through another program: lines may be missing
	session  string // the command that opened the shell whose bare prompts follow
}

func (s *scanner) assume(kind AssumptionKind, line int, format string, args ...any) {
	s.assumed = append(s.assumed, Assumption{Kind: kind, Line: line, Text: fmt.Sprintf(format, args...)})
}

func (s *scanner) scan() {
	s.reset()
	for s.at < len(s.lines) {
		line := clean(s.lines[s.at])
		s.at++
		s.see(line)
		s.line(line)
	}
}

// clean removes blanks, and the marks of quotations and code in mails and Markdown.
func clean(line string) string {
	line = strings.TrimSpace(strings.ReplaceAll(line, "\u00a0", " "))
	for strings.HasPrefix(line, "> ") {
		line = strings.TrimSpace(line[2:])
	}
	return strings.TrimSpace(strings.Trim(line, "`"))
}

// line takes one line, and those after it that belong to it.
func (s *scanner) line(line string) {
	switch {
	case line == "":
		if !s.now.save {
			s.now.listing, s.now.members = false, false
			s.cut()
		}
	case s.command(line), s.heading(line), s.rule(line), s.listed(line), s.other(line):
	case strings.HasPrefix(line, "#"):
	default: // prose
		if !s.now.save {
			s.reset()
		}
	}
}

// command takes a command line: what it asked for is the context of what follows.
func (s *scanner) command(line string) bool {
	words := strings.Fields(line)
	i := slices.IndexFunc(words, isProgram)
	prompt := i < 0 && len(words) > 1 && strings.HasSuffix(words[0], "$") && strings.Contains(words[0], "@")
	if i < 0 || !isPrompt(words[:i]) {
		if prompt {
			s.reset()
		}
		return prompt
	}
	next := context{family: 4}
	name := words[i][strings.LastIndexByte(words[i], '/')+1:]
	if strings.HasPrefix(name, "ip6") {
		next.family = 6
	}
	save := strings.HasSuffix(name, "-save")
	changes := readCommand(&next, words[i+1:], save)
	switch {
	case changes != "":
		s.assume(LeftOut, s.at, "line %d: a command that changes rules (%s) is not carried out", s.at, changes)
		next = context{}
	case !save && next.why == "":
		return false // prose
	}
	next.command = s.at
	next.filter, _ = filterOf(line)
	s.reset()
	s.now = next
	return true
}

// reset forgets the context: what follows is of another origin.
func (s *scanner) reset() {
	s.now, s.output = context{}, nil
	s.cut()
}

// cut begins a new section: the rules that follow were not printed with those before.
func (s *scanner) cut() {
	s.section = len(s.found)
	s.headers = map[string]*run{}
}

func isProgram(word string) bool {
	word = word[strings.LastIndexByte(word, '/')+1:]
	for _, program := range []string{"iptables", "ip6tables"} {
		if rest, ok := strings.CutPrefix(word, program); ok {
			switch rest {
			case "", "-save", "-nft", "-legacy", "-nft-save", "-legacy-save":
				return true
			}
		}
	}
	return false
}

// isPrompt tells whether a command can stand behind these words.
func isPrompt(words []string) bool {
	if len(words) == 0 {
		return true
	}
	last := words[len(words)-1]
	return last == "sudo" || last == "--" || strings.ContainsAny(last[len(last)-1:], "$#>%:")
}

// readCommand reads the options of an iptables command. It returns the option by which it changes rules, "" for none.
func readCommand(c *context, words []string, save bool) (changes string) {
	lists := save
	for i := 0; i < len(words); i++ {
		word := words[i]
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		if at := strings.IndexByte(word, '|'); at >= 0 {
			c.piped = true
			if word = word[:at]; word == "" {
				break
			}
		}
		switch {
		case word == "-t" || word == "--table":
			c.table, i = value, i+1
		case strings.HasPrefix(word, "--table="):
			c.table = word[len("--table="):]
		case strings.HasPrefix(word, "-t") && len(word) > 2:
			c.table = word[2:]
		case strings.HasPrefix(word, "--list") || isShort(word) && strings.ContainsAny(word, "LS"):
			lists = true
			if isWord(value) && !strings.Contains(value, "|") {
				c.chain, i = value, i+1
			} else if name, _, cut := strings.Cut(value, "|"); cut && isWord(name) {
				c.chain, c.piped, i = name, true, i+1
			}
		case slices.Contains([]string{"-A", "-I", "-D", "-R", "-F", "-X", "-N", "-P", "-Z", "-E"}, word):
			changes = word
		}
		if c.piped {
			break
		}
	}
	if !lists {
		return changes
	}
	switch {
	case !isWord(c.table) || c.table == "":
		c.table = ""
		if !save {
			c.table, c.why = Filter, "by the command, which names no table"
		}
	default:
		c.why = "by the command"
	}
	return ""
}

// isShort tells of options like -nvL, together in one word.
func isShort(word string) bool {
	return len(word) > 1 && word[0] == '-' && strings.Trim(word[1:], "nvxLSt0123456789w") == ""
}

// heading takes the lines that say where rules stand: *nat, COMMIT, :CHAIN, -N, -P, Chain, and a listing's column titles.
func (s *scanner) heading(line string) bool {
	fields := strings.Fields(line)
	switch {
	case line[0] == '*' && len(fields) == 1 && isTable(line[1:]):
		s.now = context{table: line[1:], why: "by *" + line[1:], family: s.now.family, save: true, piped: s.now.piped}
		s.cut()
	case line == "COMMIT":
		for _, r := range s.found[s.section:] {
			r.saved = r.whole && s.now.save
		}
		family := s.now.family
		s.reset()
		s.now.family = family
	case line[0] == ':' && len(fields) >= 2 && len(fields) <= 3 && isWord(fields[0][1:]) && isPolicy(fields[1]) &&
		(len(fields) == 2 || strings.HasPrefix(fields[2], "[")):
		c := Chain{Name: fields[0][1:], Policy: strings.TrimPrefix(fields[1], "-")}
		if len(fields) == 3 {
			c.Counters, _ = parseCounters(fields[2])
		}
		s.begin(c, s.now.save && !s.now.piped)
	case len(fields) >= 2 && len(fields) <= 5 && (fields[0] == "-N" || fields[0] == "-P") && isWord(fields[1]):
		policy := ""
		if fields[0] == "-P" {
			if len(fields) < 3 || !isWord(fields[2]) {
				return false
			}
			policy = fields[2]
		}
		s.begin(Chain{Name: fields[1], Policy: policy}, !s.now.piped)
	case strings.HasPrefix(line, "# Generated by ip6tables-save"):
		s.now.family = 6
	case strings.HasPrefix(line, "# Generated by iptables-save"):
		s.now.family = 4
	default:
		if c, ok := parseChainHeader(line); ok {
			s.begin(c, !s.now.piped)
			s.now.listing, s.now.columns = true, columns{}
			return true
		}
		c, ok := parseColumns(line)
		if ok {
			s.now.columns = c
		}
		return ok
	}
	return true
}

func isTable(name string) bool {
	return name == NAT || name == Filter || name == Mangle || name == Raw || name == "security" || name == "broute"
}

// begin notes a chain whose name, and with it the run of its rules, is shown.
func (s *scanner) begin(c Chain, whole bool) {
	if !s.output.takes(c.Name) {
		s.output = &output{chains: map[string]bool{}}
	}
	s.output.add(c.Name)
	r := &run{line: s.at, output: s.output, family: s.now.family, table: s.now.table, why: s.now.why, chain: c.Name, policy: c.Policy, passed: c.Counters, whole: whole,
		from: s.from, command: s.now.command, filter: s.now.filter}
	s.found = append(s.found, r)
	s.headers[c.Name] = r
}

// put adds a rule to the run that it belongs to: that of the chain's heading in the same output, or the one just before it.
func (s *scanner) put(chain string, rule shown) {
	r := s.headers[chain]
	if last := len(s.found) - 1; r == nil && last >= s.section && s.found[last].chain == chain {
		r = s.found[last]
	}
	if r == nil {
		r = &run{line: rule.line, family: s.now.family, table: s.now.table, why: s.now.why, chain: chain, from: s.from,
			command: s.now.command, filter: s.now.filter}
		s.found = append(s.found, r)
	}
	r.rules = append(r.rules, rule)
}

// rule takes "-A CHAIN …" with or without counters in front, and the lines that it goes on in.
func (s *scanner) rule(line string) bool {
	chain, spec, counters, ok := cutRule(line)
	if !ok {
		return false
	}
	first := s.at
	r, known := ParseSpec(spec)
	if !known {
		if plain := untypographic(spec); plain != spec {
			if r, known = ParseSpec(plain); known {
				spec = plain
				s.assume(Mended, first, "line %d: its typographic quotes and dashes are taken as plain ones", first)
			}
		}
	}
	if joined, n, ok := s.unwrap(spec, r, known); ok {
		r, known = ParseSpec(joined)
		s.at += n
		s.assume(Mended, first, "line %d: taken to go on in the line below it", first)
	}
	if !known {
		r = Rule{Unknown: spec}
	}
	r.Counters = counters
	s.put(chain, shown{line: first, rule: r})
	return true
}

func cutRule(line string) (chain, spec string, counters *Counters, ok bool) {
	if line[0] == '[' {
		text, rest, _ := strings.Cut(line, " ")
		c, err := parseCounters(text)
		if err != nil {
			return "", "", nil, false
		}
		counters, line = &c, strings.TrimLeft(rest, " ")
	}
	rest, ok := strings.CutPrefix(line, "-A ")
	chain, spec, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
	spec = strings.TrimSpace(spec)
	ok = ok && isWord(chain) && chain != "!" && (spec == "" || spec[0] == '-' || spec[0] == '!' || strings.HasPrefix(spec, "\u2013") || strings.HasPrefix(spec, "\u2014"))
	return chain, spec, counters, ok
}

var plainSigns = strings.NewReplacer("\u201c", `"`, "\u201d", `"`, "\u2018", "'", "\u2019", "'", "\u2013", "--", "\u2014", "--")

// untypographic undoes what programs for writing make of quotes and dashes; a dash before a single letter was one.
func untypographic(s string) string {
	words := strings.Fields(plainSigns.Replace(s))
	for i, w := range words {
		if len(w) == 3 && strings.HasPrefix(w, "--") {
			words[i] = w[1:]
		}
	}
	return strings.Join(words, " ")
}

// unwrap joins a rule with the lines below it where that makes a rule of what is none alone, or completes a chain's name or a port.
func (s *scanner) unwrap(spec string, r Rule, known bool) (joined string, lines int, ok bool) {
	const most = 4
	joined = spec
	for n := range most {
		if s.at+n >= len(s.lines) {
			return joined, lines, lines > 0
		}
		next := clean(s.lines[s.at+n])
		if next == "" || s.begins(next) {
			return joined, lines, lines > 0
		}
		if known && r.Target.Name != "" { // a whole rule, unless its last word goes on
			if completes(r, joined+next, next) {
				return joined + next, n + 1, true
			}
			return joined, lines, lines > 0
		}
		for _, between := range []string{" ", ""} {
			if whole, ok := ParseSpec(joined + between + next); ok && whole.Target.Name != "" {
				joined, r, known, lines = joined+between+next, whole, true, n+1
				break
			}
		}
		if lines == 0 {
			joined += " " + next
		}
	}
	return joined, lines, lines > 0
}

// completes tells whether a single word below a rule is the end of its last word: a chain's name of kube-proxy that is cut short, or digits
// of a port.
func completes(r Rule, joined, next string) bool {
	whole, ok := ParseSpec(joined)
	if !ok || strings.ContainsAny(next, " \t") {
		return false
	}
	return isKubeHash(whole.Target.Name) && !isKubeHash(r.Target.Name) || strings.Trim(next, "0123456789") == "" && len(next) < 5
}

// isKubeHash tells of kube-proxy's chains for a service or an endpoint: a prefix and 16 characters of base32.
func isKubeHash(chain string) bool {
	i := strings.LastIndexByte(chain, '-')
	return strings.HasPrefix(chain, "KUBE-") && i == len("KUBE-SVC") && len(chain)-i-1 == 16
}

// begins tells whether a line begins something of its own.
func (s *scanner) begins(line string) bool {
	if _, _, _, ok := cutRule(line); ok {
		return true
	}
	probe := scanner{lines: s.lines, at: s.at, now: s.now, headers: map[string]*run{}}
	return probe.command(line) || probe.heading(line) || probe.listed(line) || probe.other(line) || line[0] == '#'
}

// listed takes one rule of a listing.
func (s *scanner) listed(line string) bool {
	first := s.at
	if strings.Contains(line, "/* ") && !strings.Contains(line, " */") && s.at < len(s.lines) {
		if next := clean(s.lines[s.at]); strings.Contains(next, "*/") {
			line += " " + next
			s.at++
		}
	}
	l, ok := parseListed(line, s.now.columns)
	if !ok {
		l, ok = parseListed(line, columns{})
	}
	if !ok {
		s.at = first
		if !s.now.listing || !looksListed(line) {
			return false
		}
		s.assume(LeftOut, first, "line %d: the listed rule cannot be read, so it is not known what it does: %s", first, line)
		text := string(appendQuoted(nil, line))
		l = listed{rule: Rule{Unknown: "-m listed " + text + " -j " + text}, verbose: true}
	}
	if s.at > first {
		s.assume(Mended, first, "line %d: taken to go on in the line below it", first)
	}
	r := shown{line: first, rule: l.rule, hidden: !l.verbose}
	if s.now.listing && len(s.found) > 0 {
		last := s.found[len(s.found)-1]
		last.rules = append(last.rules, r)
		return true
	}
	chain, why := s.now.chain, ""
	if chain == "" {
		if chain, why = placeOf(&l.rule); chain == "" {
			s.assume(LeftOut, first, "line %d: the rule's chain is not shown, so it is left out: %s", first, line)
			return true
		}
		s.assumed = append(s.assumed, Assumption{Kind: AssumedPlace, Line: first, Table: s.now.table, Chains: []string{chain},
			Text: fmt.Sprintf("line %d: the rule's chain is not shown: taken to be %s, %s", first, chain, why)})
	}
	s.put(chain, r)
	return true
}

// placeOf tells the chain of a listed rule that stands alone.
func placeOf(r *Rule) (chain, why string) {
	comment := r.Comment()
	switch {
	case comment == "kubernetes service traffic requiring SNAT":
		return "KUBE-POSTROUTING", "by its comment"
	case strings.HasPrefix(comment, "ip-masq-agent: ensure") || strings.HasPrefix(comment, "kubenet: SNAT") || comment == "kubernetes postrouting rules":
		return "POSTROUTING", "by its comment"
	case strings.HasPrefix(comment, "ip-masq-agent: "):
		return "IP-MASQ-AGENT", "by its comment"
	case strings.HasSuffix(comment, " cluster IP") || strings.HasSuffix(comment, " loadbalancer IP") && strings.HasPrefix(r.Target.Name, "KUBE-FW-"):
		return "KUBE-SERVICES", "by its comment"
	case r.Target.Name == "MASQUERADE" || r.Target.Name == "SNAT":
		return "POSTROUTING", "by its target"
	}
	return "", ""
}

// other takes lines of other programs' output into blocks.
func (s *scanner) other(line string) bool {
	if strings.HasPrefix(line, "conntrack v") {
		return true
	}
	kind, begins := s.kindOf(line)
	if kind == "" {
		return false
	}
	if n := len(s.blocks); n == 0 || begins || s.lastEnd != s.at-1 || s.blocks[n-1].Kind != kind {
		s.blocks = append(s.blocks, Block{Kind: kind, Line: s.at, Filtered: s.filtered, from: s.from})
	}
	last := &s.blocks[len(s.blocks)-1]
	last.Text = append(append(last.Text, line...), '\n')
	s.lastEnd = s.at
	if !s.now.save {
		members := kind == IPSetList && (s.now.members || line == "Members:")
		s.reset()
		s.now.members = members
	}
	return true
}

// kindOf recognises a line of another program; begins tells that it is the first of a block.
func (s *scanner) kindOf(line string) (kind BlockKind, begins bool) {
	fields := strings.Fields(line)
	first, second := fields[0], ""
	if len(fields) > 1 {
		second = fields[1]
	}
	inside := func(k BlockKind) bool {
		n := len(s.blocks)
		return n > 0 && s.blocks[n-1].Kind == k && s.lastEnd == s.at-1
	}
	switch {
	case first == "Name:" && len(fields) == 2 && s.at < len(s.lines) && strings.HasPrefix(clean(s.lines[s.at]), "Type:"):
		return IPSetList, true
	case inside(IPSetList) && (s.now.members && isMember(fields) || isSetField(first)):
		return IPSetList, false
	case (first == "create" || first == "-N") && len(fields) >= 3 && strings.Contains(fields[2], ":") && strings.Trim(fields[2], "abcdefghijklmnopqrstuvwxyz:,") == "":
		return IPSetSave, false
	case first == "add" && len(fields) >= 3 && inside(IPSetSave):
		return IPSetSave, false
	case strings.Contains(line, " src=") && strings.Contains(line, " dst=") && strings.Count(line, "src=") == 2:
		return Conntrack, false
	case isLinkLine(first, second, line):
		return IPAddress, false
	case inside(IPRoute) && first == "nexthop":
		return IPRoute, false
	case inside(IPAddress) && isAddressLine(first):
		return IPAddress, false
	case strings.HasSuffix(first, ":") && second == "from" && strings.Trim(first, "0123456789:") == "" && len(fields) > 3:
		return IPRule, false
	case isRouteLine(fields), s.at < len(s.lines) && strings.HasPrefix(clean(s.lines[s.at]), "nexthop ") && isRouteLine(append(fields, "dev", "")):
		return IPRoute, false
	case strings.HasPrefix(first, "net.") && len(fields) >= 3 && second == "=":
		return Sysctl, false
	}
	return "", false
}

func isSetField(first string) bool {
	return slices.Contains([]string{"Type:", "Revision:", "Header:", "Size", "References:", "Number", "Members:", "Comment:"}, first)
}

// isMember tells whether a line can be a set's member: an address, a number or a name, then options.
func isMember(fields []string) bool {
	if len(fields) > 1 && !slices.Contains([]string{"timeout", "nomatch", "packets", "bytes", "comment", "skbmark", "skbprio", "skbqueue", "before", "after"}, fields[1]) {
		return false
	}
	return !strings.ContainsAny(fields[0], "$\"'`|;()")
}

func isLinkLine(first, second, line string) bool {
	return len(first) > 1 && strings.Trim(first, "0123456789") == ":" && strings.HasSuffix(second, ":") && strings.Contains(line, " <") && strings.Contains(line, "> mtu ")
}

func isAddressLine(first string) bool {
	return first == "inet" || first == "inet6" || first == "valid_lft" || first == "altname" || strings.HasPrefix(first, "link/") ||
		first == "veth" || first == "bridge" || first == "bridge_slave"
}

// isRouteLine recognises a route as ip-route(8) lists them.
func isRouteLine(fields []string) bool {
	if slices.Contains([]string{"unicast", "local", "broadcast", "multicast", "blackhole", "unreachable", "prohibit", "throw"}, fields[0]) {
		if fields = fields[1:]; len(fields) == 0 {
			return false
		}
		if _, ok := routeDestination(fields[0]); ok && len(fields) == 1 {
			return true
		}
	}
	if _, ok := routeDestination(fields[0]); !ok {
		return false
	}
	return len(fields) >= 3 && slices.Contains([]string{"via", "dev", "proto", "scope", "nhid", "metric"}, fields[1])
}

func routeDestination(s string) (netip.Prefix, bool) {
	if s == "default" {
		return netip.Prefix{}, true
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, true
	}
	a, err := netip.ParseAddr(s)
	return netip.PrefixFrom(a, a.BitLen()), err == nil
}

// runs are what was found of one family: by its command or heading, else by its addresses. A run of which nothing tells is IPv4's.
func (s *scanner) runs(family int) []*run {
	return slices.DeleteFunc(slices.Clone(s.found), func(r *run) bool {
		f := r.family
		for i := 0; i < len(r.rules) && f != 6; i++ {
			f = max(f, familyOfRule(&r.rules[i].rule))
		}
		return max(f, 4) != family
	})
}
