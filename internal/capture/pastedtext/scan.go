package pastedtext

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nfttext"
)

// textRule is one rule as the text has it.
type textRule struct {
	line   int
	rule   iptables.Rule
	hidden bool   // its interfaces are not shown (iptables -L without -v)
	key    string // what every kind of output shows of it
	insert int    // the place where a command puts it, from 1; 0 for the end
}

func newShown(line int, r iptables.Rule, hidden bool) textRule {
	bare := r
	bare.In, bare.Out = iptables.NameMatch{}, iptables.NameMatch{}
	return textRule{line: line, rule: r, hidden: hidden, key: bare.Spec()}
}

// run is consecutive rules of one chain, as one command printed them.
type run struct {
	source
	line     int
	chain    string // "" for a listed rule whose chain is not shown
	policy   string // of a built-in chain, where shown, with its counters
	passed   iptables.Counters
	rules    []textRule
	whole    bool // all rules of the chain are here
	made     bool // commands added the rules
	begun    bool // its table began with *table, and COMMIT was not seen
	unused   bool // nothing refers to the chain
	saved    bool // it is of a table that is shown whole, from *table to COMMIT
	selected bool // a command asked for its table
	number   int  // of its last rule, from --line-numbers; 0 where none is shown
	headless int  // the COMMIT that ends its table, whose heading is not in the text; 0 for none
	from     origin
	output   *output
}

// source is what the lines before rules tell of them.
type source struct {
	command  int    // line of the one that printed them; 0 where none is shown
	pipeline string // it and the programs that its output went through; "" where it went through none
	family   int    // 4, 6 or 0
	variant  string // of iptables: "legacy", "nft", or "" where nothing tells
	table    string // "" where nothing tells
	why      string // why the table is assumed; "" where the text says it
	alone    bool   // the command asked for one chain
}

// output is what one command printed of one table, as far as the chains' headings tell: a run without a heading has none.
type output struct {
	chains   map[string]bool
	hooks    []string // those that are built in
	userSeen bool     // chains that are not built in come last
}

// takes reports whether a chain's heading can stand below those that are there: each chain stands once, the built-in ones first, and
// PREROUTING before all.
func (o *output) takes(chain string) bool {
	return o != nil && !o.chains[chain] && (!iptables.IsBuiltIn(chain) || !o.userSeen) && (chain != "PREROUTING" || len(o.chains) == 0)
}

func (o *output) add(chain string) {
	o.chains[chain] = true
	if iptables.IsBuiltIn(chain) {
		o.hooks = append(o.hooks, chain)
	} else {
		o.userSeen = true
	}
}

// allowed reports whether a table can have all of its built-in chains.
func (o *output) allowed(table string) bool {
	return !slices.ContainsFunc(o.hooks, func(hook string) bool { return !tableAllows(hook, table) })
}

// table returns the one that has these built-in chains and no others; "" where that does not tell.
func (o *output) table() string {
	for _, table := range []string{iptables.Mangle, iptables.NAT, iptables.Filter, iptables.Raw} {
		if o != nil && slices.Equal(slices.Sorted(slices.Values(o.hooks)), slices.Sorted(slices.Values(iptables.BuiltIn(table)))) {
			return table
		}
	}
	return ""
}

// context is what the lines before tell about those that follow.
type context struct {
	source
	save     bool   // between *table and COMMIT
	selected bool   // the command asked for one table
	piped    bool   // the command's output went through another program: lines may be missing
	chain    string // that was asked for, or that a listing's heading names
	columns  iptables.Columns
	listing  bool // below a line "Chain …"
	members  bool // below a line "Members:" of ipset list
}

// scanner takes a text apart.
type scanner struct {
	notes
	known *knownRules
	Fates
	at         int // index of the present line
	now        context
	output     *output // that the present line is of
	found      []*run
	section    int             // first run of the present command's output
	headers    map[string]*run // its runs that begin with the chain's name
	blocks     []Block
	lastEnd    int       // line after the last block's last line
	from       origin    // of what the present command printed
	routes     ipCommand // what the present command asked for
	nft        nftOf
	madeIn     lastMaker
	chain      string // of "ebtables -L", whose rules come
	form       string // of a program's output whose lines are written as those of ip: its heading
	link       string // the interface that such lines are about
	links      int    // how many there were
	filtered   bool   // it went through another program: lines may be missing
	session    origin // the command that opened the shell whose bare prompts follow
	lastRule   ruleAt
	whole      string // what ends the block whose lines are taken as they are: see foreign
	depth      int    // how many of its braces are open
	allShown   bool   // the present command lists all connections, sets, or other entries
	setting    string // the sysctl whose value the present command prints alone
	changes    []change
	restored   bool         // the tables below are those that a command loads
	until      int          // where rules of a later time begin; 0 for nowhere
	priorities map[bool]int // the lowest priority of rules that commands added, by whether they are IPv6's
	promptAt   int          // the line of the last prompt; 0 for none
	printed    []string     // the last files that commands printed
	hashes     map[int]hashMeaning
	structures int    // of a script that are open
	errexit    bool   // a command that fails ends the script
	mayEnd     int    // the line of the first such command; 0 for none
	passive    string // the program whose output says nothing of rules or routes
}

func (s *scanner) scan() {
	s.reset()
	s.Account, s.hashes = make(snapshot.Account, len(s.lines)), hashMeanings(s.lines)
	hosts := nameLines(s.lines)
	for s.at < len(s.lines) {
		line, more := s.joined(s.at)
		s.at++
		if name := hosts[s.at]; name != "" {
			s.reset()
			s.whole, s.from = "", origin{machine: name, headed: true}
			if s.lines[s.at-1].host == "" {
				s.NoEffect(s.at, "heading")
				continue
			}
		}
		if s.whole != "" || !s.hash(line) {
			s.read(line)
		}
		s.pass(more)
	}
}

// read gives a line to the first reader that takes it.
func (s *scanner) read(line string) {
	s.see(line)
	for _, r := range readers {
		if !r.read(s, line) {
			continue
		}
		s.filter(line)
		if s.Account[s.at-1] == (snapshot.TextLine{}) {
			s.Account[s.at-1].As = r.as
		}
		if s.Account[s.at-1].Fate == snapshot.LineRead && r.as != "command" {
			s.passive = ""
		}
		s.checkErrexit(line)
		return
	}
}

// readers take the lines apart, each line the first one that knows it. A reader may state another fate than that the line was read.
var readers []struct {
	as   string
	read func(s *scanner, line string) bool
}

func init() { // the readers use each other
	readers = []struct {
		as   string
		read func(s *scanner, line string) bool
	}{
		{"a whole block", (*scanner).foreign},
		{"blank", (*scanner).blank},
		{"script", (*scanner).control},
		{"options of the shell", (*scanner).shellOptions},
		{"commands", (*scanner).several},
		{"command of iptables", (*scanner).command},
		{"command of ip", (*scanner).ipMade},
		{"command of nft", (*scanner).nftMade},
		{"command", (*scanner).prompt},
		{"chain or table of iptables", (*scanner).heading},
		{"rule of iptables", (*scanner).rule},
		{"listed rule of iptables", (*scanner).listed},
		{"neighbour", (*scanner).neighbour},
		{"packet", (*scanner).packet},
		{"output of another program", (*scanner).readOther},
		{"comment", (*scanner).comment},
		{"lines left out", (*scanner).omission},
		{"end of the rule above", (*scanner).cutShort},
		{"not read", (*scanner).readUnknown},
	}
}

// blank takes an empty line, and the fences of Markdown.
func (s *scanner) blank(line string) bool {
	if line != "" && !strings.HasPrefix(s.lines[s.at-1].raw, "```") {
		return false
	}
	s.NoEffect(s.at, "blank")
	if line == "" && !s.now.save {
		s.now.listing, s.now.members = false, false
		s.cut()
	}
	return line == ""
}

func (s *scanner) comment(line string) bool {
	is := strings.HasPrefix(line, "#") && !nfttext.IsOmission(line)
	if is {
		s.NoEffect(s.at, "comment")
	}
	return is
}

// command takes a command line: what it asked for is the context of what follows.
func (s *scanner) command(line string) bool {
	words := strings.Fields(strings.ReplaceAll(line, "|", " | "))
	i := slices.IndexFunc(words, isProgram)
	prompt := i < 0 && len(words) > 1 && strings.HasSuffix(words[0], "$") && strings.Contains(words[0], "@")
	if i < 0 || !isPrompt(words[:i]) {
		if prompt {
			s.reset()
		}
		return prompt
	}
	next := context{source: source{family: 4, command: s.at}}
	name := words[i][strings.LastIndexByte(words[i], '/')+1:]
	if strings.HasPrefix(name, "ip6") {
		next.family = 6
	}
	next.variant = variantOf(name)
	stages := strings.Split(strings.Join(words[i:], " "), "|")
	if next.piped = len(stages) > 1; next.piped && len(stages) <= mostStages {
		for k, stage := range stages {
			stages[k] = strings.TrimSpace(stage)
		}
		next.pipeline = strings.Join(stages, " | ")
	}
	lists := next.options(strings.Fields(stages[0])[1:], strings.HasSuffix(name, "-save"))
	if !lists && s.made(strings.Join(words[i:], " "), next) {
		return true
	}
	if !lists || mentions(strings.Join(stages[1:], "|")) != nil {
		return false // prose, or what another reader takes
	}
	s.reset()
	s.now = next
	return true
}

// variantOf returns the variant of iptables that a program's name, or the first line of iptables-save, tells.
func variantOf(text string) string {
	switch {
	case strings.Contains(text, "-legacy"):
		return "legacy"
	case strings.Contains(text, "tables-nft"), strings.Contains(text, "(nf_tables)"):
		return "nft"
	}
	return ""
}

// mostStages bounds how many programs of a pipeline are looked at.
const mostStages = 16

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

// isPrompt reports whether a command can stand behind these words.
func isPrompt(words []string) bool {
	if len(words) == 0 {
		return true
	}
	last := words[len(words)-1]
	return last == "sudo" || last == "--" || strings.ContainsAny(last[len(last)-1:], "$#>%:")
}

// options reads those of an iptables command. It reports whether the command lists rules.
func (c *context) options(words []string, save bool) (lists bool) {
	for i, word := range words {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch {
		case word == "-t" || word == "--table":
			c.table = value
		case strings.HasPrefix(word, "--table="):
			c.table = word[len("--table="):]
		case strings.HasPrefix(word, "-t") && len(word) > 2:
			c.table = word[2:]
		case strings.HasPrefix(word, "--list") || isShort(word) && strings.ContainsAny(word, "LS"):
			if lists = true; iptables.IsName(value) {
				c.chain, c.alone = value, true
			}
		}
	}
	if lists = lists || save; !lists {
		return false
	}
	if !isTable(c.table) {
		c.table = ""
	}
	if c.table == "" && !save {
		c.table, c.why = iptables.Filter, "by the command, which names no table"
	}
	return true
}

// isShort tells of options like -nvL, together in one word.
func isShort(word string) bool {
	return len(word) > 1 && word[0] == '-' && strings.Trim(word[1:], "nvxLSt0123456789w") == ""
}

// heading takes the lines that say where rules stand: *nat, COMMIT, :CHAIN, -N, -P, Chain, and a listing's column titles.
func (s *scanner) heading(line string) bool {
	fields := strings.Fields(line)
	switch {
	case line[0] == '*' && isTable(strings.TrimSpace(line[1:])):
		s.now = context{source: source{table: strings.TrimSpace(line[1:]), family: s.now.family, variant: s.now.variant}, save: true, piped: s.now.piped,
			selected: s.restored || s.now.table != "" && !s.now.save}
		s.cut()
	case line == "COMMIT":
		for _, r := range s.found[s.section:] {
			r.saved, r.begun = r.whole && s.now.save, false
			if !s.now.save && r.table == "" {
				r.headless = s.at
			}
		}
		family, variant := s.now.family, s.now.variant
		s.reset()
		s.now.family, s.now.variant = family, variant
	case len(fields) >= 2 && len(fields) <= 5 && (fields[0] == "-N" || fields[0] == "-P") && iptables.IsName(fields[1]):
		policy := ""
		if fields[0] == "-P" {
			if len(fields) < 3 || !isPolicy(fields[2]) {
				return false
			}
			policy = fields[2]
		}
		s.begin(iptables.Chain{Name: fields[1], Policy: policy}, !s.now.piped)
	case strings.HasPrefix(line, "# Generated by ip6tables-save"):
		s.now.family, s.now.variant = 6, cmp.Or(s.now.variant, variantOf(line))
	case strings.HasPrefix(line, "# Generated by iptables-save"):
		s.now.family, s.now.variant = 4, cmp.Or(s.now.variant, variantOf(line))
	default:
		if c, err := iptables.ParseChain(line); err == nil {
			s.begin(c, s.now.save && !s.now.piped)
			return true
		}
		if c, ok := iptables.ParseChainHeader(line); ok {
			s.begin(c, !s.now.piped)
			s.now.listing, s.now.columns, s.now.chain = true, iptables.Columns{}, c.Name
			return true
		}
		c, ok := iptables.ParseColumns(line)
		if ok {
			s.now.columns = c
		}
		return ok
	}
	return true
}

// isPolicy tells what a built-in chain can have as its policy.
func isPolicy(word string) bool { return word == "ACCEPT" || word == "DROP" }

func isTable(name string) bool {
	return name == iptables.NAT || name == iptables.Filter || name == iptables.Mangle || name == iptables.Raw || name == "security" ||
		name == "broute"
}

// begin notes a chain whose name, and with it the run of its rules, is shown.
func (s *scanner) begin(c iptables.Chain, whole bool) {
	if !s.output.takes(c.Name) {
		s.output = &output{chains: map[string]bool{}}
	}
	s.output.add(c.Name)
	r := &run{line: s.at, source: s.now.source, output: s.output, chain: c.Name, policy: c.Policy, passed: c.Counters, whole: whole,
		begun: s.now.save, selected: s.now.selected, unused: c.Unused, from: s.from}
	s.found = append(s.found, r)
	s.headers[c.Name] = r
}

// put adds a rule to the run that it belongs to: that of the chain's heading in the same output, or the one just before it.
func (s *scanner) put(chain string, rule textRule) {
	if other := tableOfTarget[rule.rule.Target.Name]; s.now.save && s.now.piped && (other != "" && other != s.now.table || !tableAllows(chain, s.now.table)) {
		s.reset() // where lines are missing, another table has begun
	}
	r := s.headers[chain]
	if last := len(s.found) - 1; r == nil && last >= s.section && s.found[last].chain == chain {
		r = s.found[last]
	}
	if r == nil {
		r = &run{line: rule.line, source: s.now.source, chain: chain, from: s.from}
		s.found = append(s.found, r)
	}
	r.rules = append(r.rules, rule)
	s.lastRule = ruleAt{run: r, index: len(r.rules) - 1, line: rule.line, open: isCutOff(&rule.rule)}
}

// ruleAt is a rule's place among those found, its last line, and its text. Open says that it lacks its target.
type ruleAt struct {
	run          *run
	index, line  int
	text         string
	lines        int // that were read as its continuation
	open, listed bool
}

// rule takes "-A CHAIN …" with or without counters in front, and the lines that it goes on in.
func (s *scanner) rule(line string) bool {
	chain, spec, counters, ok := cutRule(line)
	if !ok {
		return false
	}
	r, known := iptables.ParseSpec(spec)
	if !known {
		r = iptables.Rule{Unknown: spec}
	}
	open := !known && (strings.Count(spec, `"`)-strings.Count(spec, `\"`))%2 == 1 // cut off in a comment
	if open {
		r = iptables.Rule{Unknown: iptables.UnreadableListed(spec).Unknown}
	}
	r.Counters = counters
	doubtVariables(&r)
	s.put(chain, newShown(s.at, r, false))
	s.lastRule.text, s.lastRule.open = line, s.lastRule.open || open
	return true
}

// variable stands for a value that a shell or a reader is to put in: "$WAN", "${WAN}", "$(get_wan)", "<wan-interface>".
var variable = regexp.MustCompile("[$`<>]")

// doubtVariables leaves it open whether the rule matches whose interface is a variable.
func doubtVariables(r *iptables.Rule) {
	for _, name := range []*iptables.NameMatch{&r.In, &r.Out} {
		if variable.MatchString(name.Name) {
			r.Doubt = name.Name + " stands for an interface"
			*name = iptables.NameMatch{}
		}
	}
}

// ruleCounters are those that "iptables -S -v" puts into a rule.
var ruleCounters = regexp.MustCompile(`(?:^|\s)-c ([0-9]+) ([0-9]+)(?:\s|$)`)

func cutRule(line string) (chain, spec string, counters *iptables.Counters, ok bool) {
	if line[0] == '[' {
		text, rest, _ := strings.Cut(line, " ")
		c, err := iptables.ParseCounters(text)
		if err != nil {
			return "", "", nil, false
		}
		counters, line = &c, strings.TrimLeft(rest, " ")
	}
	if strings.HasPrefix(line, "--append ") {
		line = "-A " + line[len("--append "):]
	}
	rest, ok := strings.CutPrefix(line, "-A ")
	chain, spec, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
	spec = strings.TrimSpace(spec)
	for _, m := range ruleCounters.FindAllStringSubmatchIndex(spec, -1) {
		if strings.Count(spec[:m[0]], `"`)%2 == 1 {
			continue // in a comment
		}
		var c iptables.Counters
		_, _ = fmt.Sscan(spec[m[2]:m[3]], &c.Packets)
		_, _ = fmt.Sscan(spec[m[4]:m[5]], &c.Bytes)
		counters, spec = &c, strings.TrimSpace(spec[:m[0]]+" "+spec[m[1]:])
		break
	}
	ok = ok && iptables.IsName(chain) && chain != "!" && (spec == "" || spec[0] == '-' || spec[0] == '!')
	return chain, spec, counters, ok
}

// listed takes one rule of a listing.
func (s *scanner) listed(line string) bool {
	l, ok := iptables.ParseListed(line, s.now.columns)
	if !ok {
		l, ok = iptables.ParseListed(line, iptables.Columns{})
	}
	if !ok {
		if !s.now.listing || !iptables.LooksListed(line) {
			return false
		}
		s.note(leftOut, s.at, "line %d: the listed rule cannot be read, so its effect is unknown: %s", s.at, line)
		l = iptables.ListingLine{Rule: iptables.UnreadableListed(line), Verbose: true}
	}
	chain, why := s.now.chain, ""
	if chain == "" {
		if chain, why = s.known.placeOf(&l.Rule); chain == "" {
			s.note(leftOut, s.at, "line %d: the rule's chain is not shown, so it is left out: %s", s.at, line)
			s.NotRead(s.at, "a rule whose chain is not shown")
			return true
		}
		s.note(assumedChain, s.at, "line %d: the rule's chain is not shown; assuming %s, %s", s.at, chain, why)
	}
	s.put(chain, newShown(s.at, l.Rule, !l.Verbose))
	s.lastRule.text, s.lastRule.listed = line, true
	if r := s.lastRule.run; l.Number > 0 {
		if l.Number != r.number+1 {
			s.NotRead(s.at, fmt.Sprintf("rules of %s before number %d are left out", chain, l.Number))
		}
		r.number = l.Number
	}
	return true
}

// runs returns what was found of one family: by its command or heading, else by its addresses. A run of which nothing tells is IPv4's.
func (s *scanner) runs(family int) []*run {
	return slices.DeleteFunc(slices.Clone(s.found), func(r *run) bool {
		f := r.family
		for i := 0; i < len(r.rules) && f != 6; i++ {
			f = max(f, r.rules[i].rule.Family())
		}
		return max(f, 4) != family
	})
}
