package iptables

import (
	"slices"
	"strconv"
	"strings"
)

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

// peek is the next word, "" at the end.
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

// listedMatches are the matches by the first word that they print.
var listedMatches map[string]func(l *restReader, not bool) bool

func init() { // the table refers to functions that refer to it
	listedMatches = map[string]func(*restReader, bool) bool{
		"/*":            (*restReader).comment,
		"tcp":           ports("tcp"),
		"udp":           ports("udp"),
		"udplite":       ports("udplite"),
		"sctp":          ports("sctp"),
		"dccp":          ports("dccp"),
		"icmp":          icmpName("icmp", "icmp-type", icmpNames),
		"icmptype":      icmpNumber("icmp", "icmp-type"),
		"ipv6-icmp":     icmpName("icmp6", "icmpv6-type", icmp6Names),
		"ipv6-icmptype": icmpNumber("icmp6", "icmpv6-type"),
		"multiport":     (*restReader).multiport,
		"mark":          after("match", "mark", "mark"),
		"connmark":      after("match", "connmark", "mark"),
		"tcpmss":        after("match", "tcpmss", "mss"),
		"DSCP":          after("match", "dscp", "dscp"),
		"helper":        (*restReader).helper,
		"tos":           (*restReader).tos,
		"ADDRTYPE":      (*restReader).addressType,
		"source":        addressRange("src-range"),
		"destination":   addressRange("dst-range"),
		"recent:":       (*restReader).recent,
		"statistic":     (*restReader).statistic,
		"PHYSDEV":       (*restReader).physdev,
		"owner":         (*restReader).owner,
		"PKTTYPE":       (*restReader).packetType,
		"TTL":           hops("ttl"),
		"HL":            hops("hl"),
		"length":        after("", "length", "length"),
		"cgroup":        after("", "cgroup", "cgroup"),
		"nfacct-name":   after("", "nfacct", "nfacct-name"),
		"src-group":     after("", "devgroup", "src-group"),
		"dst-group":     after("", "devgroup", "dst-group"),
		"state":         after("", "state", "state"),
		"MAC":           after("", "mac", "mac-source"),
		"limit:":        (*restReader).limit,
		"#conn":         (*restReader).connectionLimit,
		"socket":        flags("socket", "--", "transparent nowildcard restore-skmark"),
		"rpfilter":      flags("rpfilter", "", "loose validmark accept-local invert"),
		"match-set":     (*restReader).set,
	}
	for option := range matchOptions["conntrack"] {
		listedMatches[option] = after("", "conntrack", option)
	}
}

// after makes a reader of "WORDS [!] VALUE" as one option.
func after(words, module, option string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		return l.lit(words) && l.value(module, option, not)
	}
}

// flags makes a reader of words that are options without values.
func flags(module, prefix, names string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		l.begin(module)
		for {
			name, ok := strings.CutPrefix(l.peek(), prefix)
			if !ok || !containsWord(names, name) {
				return !not
			}
			l.next()
			l.add(module, Opt(name))
		}
	}
}

func containsWord(words, word string) bool {
	return word != "" && strings.Contains(" "+words+" ", " "+word+" ")
}

func (l *restReader) comment(not bool) bool {
	text, rest, ok := strings.Cut(l.rest, " */")
	text, ok2 := strings.CutPrefix(text, " ")
	if !ok || !ok2 || not || rest != "" && rest[0] != ' ' {
		return false
	}
	l.rest = rest
	l.rule.Matches = append(l.rule.Matches, CommentMatch(text))
	return true
}

// ports makes a reader of "tcp spts:1:2 dpt:!80 option=5 flags:0x17/0x02"; the module's name can stand alone.
func ports(module string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		l.begin(module)
		for {
			word := l.peek()
			name, value, ok := strings.Cut(word, ":")
			if !ok {
				name, value, ok = strings.Cut(word, "=")
			}
			read, known := portFields[name]
			if !ok || !known {
				return !not
			}
			l.next()
			value, inverted := strings.CutPrefix(value, "!")
			o, ok := read(value)
			if !ok {
				return false
			}
			o.Not = inverted
			l.add(module, o)
		}
	}
}

var portFields = map[string]func(string) (Option, bool){
	"spt": portOption("sport"), "spts": portOption("sport"), "dpt": portOption("dport"), "dpts": portOption("dport"),
	"flags": flagsOption, "option": func(v string) (Option, bool) { return Opt("tcp-option", v), isNumber0(v) },
}

func portOption(name string) func(string) (Option, bool) {
	return func(v string) (Option, bool) {
		v, ok := portNumbers(v, ":")
		return Opt(name, v), ok
	}
}

// portNumbers turns names of services into numbers in a list or range.
func portNumbers(text, separators string) (string, bool) {
	var b strings.Builder
	for {
		i := strings.IndexAny(text, separators)
		word := text
		if i >= 0 {
			word = text[:i]
		}
		n, named := serviceNames[word]
		if !named {
			parsed, err := strconv.ParseUint(word, 10, 16)
			if err != nil {
				return "", false
			}
			n = uint16(parsed)
		}
		b.WriteString(strconv.Itoa(int(n)))
		if i < 0 {
			return b.String(), true
		}
		b.WriteByte(text[i])
		text = text[i+1:]
	}
}

func isNumber0(s string) bool {
	_, err := strconv.ParseUint(s, 0, 32)
	return err == nil
}

// flagsOption reads TCP's flags: MASK/SET, as numbers with -n and as names without.
func flagsOption(v string) (Option, bool) {
	mask, set, ok := strings.Cut(v, "/")
	mask, ok1 := flagList(mask)
	set, ok2 := flagList(set)
	return Opt("tcp-flags", mask, set), ok && ok1 && ok2
}

func flagList(s string) (string, bool) {
	bits, err := strconv.ParseUint(s, 0, 8)
	if err != nil {
		return s, IsName(s)
	}
	if bits == 0 {
		return "NONE", true
	}
	var names []string
	for i, name := range tcpFlagNames {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ","), bits < 1<<len(tcpFlagNames)
}

func icmpName(module, option string, names map[string]string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		inverted := l.not()
		if l.peek() == "type" && inverted { // "icmp !type 8 code 0"
			l.next()
			return icmpNumber(module, option)(l, true)
		}
		value, ok := names[l.next()]
		return ok && !not && l.add(module, Option{Not: inverted, Name: option, Args: []string{value}})
	}
}

func icmpNumber(module, option string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		value := l.next()
		if !isNumber0(value) {
			return false
		}
		if l.lit("code") {
			value += "/" + l.next()
		} else if value == "255" && module == "icmp" {
			value = "any" // XT_ICMP_ANY
		}
		return IsName(value) && l.add(module, Option{Not: not, Name: option, Args: []string{value}})
	}
}

func (l *restReader) multiport(not bool) bool {
	which := l.next()
	not = l.not() || not
	list, ok := portNumbers(l.next(), ",:")
	_, known := matchOptions["multiport"][which]
	l.begin("multiport")
	return ok && known && l.add("multiport", Option{Not: not, Name: which, Args: []string{list}})
}

func (l *restReader) helper(not bool) bool {
	if !l.lit("match") {
		return false
	}
	not = l.not() || not
	name, ok := l.quoted()
	return ok && l.add("helper", Option{Not: not, Name: "helper", Args: []string{name}})
}

// tos reads "tos match0x10/0x3f" and "tos match!0x10/0x3f".
func (l *restReader) tos(not bool) bool {
	value, ok := l.glued("match")
	value, inverted := strings.CutPrefix(value, "!")
	return ok && !not && isNumber0(strings.Split(value, "/")[0]) && l.add("tos", Option{Not: inverted, Name: "tos", Args: []string{value}})
}

func (l *restReader) addressType(not bool) bool {
	if not || !l.lit("match") {
		return false
	}
	l.begin("addrtype")
	for {
		switch word := l.peek(); {
		case word == "src-type" || word == "dst-type":
			l.next()
			if !l.value("addrtype", word, false) {
				return false
			}
		case l.lit("limit-in"):
			l.add("addrtype", Opt("limit-iface-in"))
		case l.lit("limit-out"):
			l.add("addrtype", Opt("limit-iface-out"))
		default:
			return true
		}
	}
}

func addressRange(option string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool { return l.lit("IP range") && l.value("iprange", option, not) }
}

var recentActions = map[string]string{"SET": "set", "CHECK": "rcheck", "UPDATE": "update", "REMOVE": "remove"}

// recentFields are what "recent:" prints behind its action, and the options they are.
var recentFields = map[string]string{"seconds:": "seconds", "hit_count:": "hitcount", "name:": "name"}

func (l *restReader) recent(not bool) bool {
	l.begin("recent")
	action, ok := recentActions[l.next()]
	if !ok {
		return false
	}
	l.add("recent", Option{Not: not, Name: action})
	side := ""
	for {
		word := l.peek()
		switch option := recentFields[word]; {
		case option != "":
			l.next()
			if !l.value("recent", option, false) {
				return false
			}
		case word == "reap":
			l.next()
			l.add("recent", Opt("reap"))
		case word == "TTL-Match":
			l.next()
			l.add("recent", Opt("rttl"))
		case word == "side:":
			l.next()
			side = map[string]string{"source": "rsource", "dest": "rdest"}[l.next()]
		case word == "mask:":
			l.next()
			if !l.value("recent", "mask", false) {
				return false
			}
		default:
			return side != "" && l.add("recent", Opt(side))
		}
	}
}

func (l *restReader) statistic(not bool) bool {
	l.begin("statistic")
	if not || !l.lit("mode") {
		return false
	}
	switch mode := l.next(); mode {
	case "random":
		l.add("statistic", Opt("mode", mode))
		not := l.not()
		return l.lit("probability") && l.value("statistic", "probability", not)
	case "nth":
		l.add("statistic", Opt("mode", mode))
		not := l.not()
		if !l.lit("every") || !l.value("statistic", "every", not) {
			return false
		}
		if l.lit("packet") {
			return l.value("statistic", "packet", false)
		}
		return l.add("statistic", Opt("packet", "0")) // -L leaves out 0
	}
	return false
}

func (l *restReader) physdev(not bool) bool {
	if not || !l.lit("match") {
		return false
	}
	l.begin("physdev")
	for {
		before := l.rest
		not := l.lit("!")
		name, ok := l.glued("--")
		n, known := matchOptions["physdev"][name]
		if !ok || !known {
			l.rest = before
			return true
		}
		o := Option{Not: not, Name: name}
		if n == 1 {
			o.Args = []string{l.next()}
			if !isValue(o.Args[0]) {
				return false
			}
		}
		l.add("physdev", o)
	}
}

func (l *restReader) owner(not bool) bool {
	switch {
	case l.lit("UID match"):
		return l.user("uid-owner", not)
	case l.lit("GID match"):
		return l.user("gid-owner", not)
	case l.lit("socket exists"):
		return l.add("owner", Option{Not: not, Name: "socket-exists"})
	}
	return false
}

// user reads a number, a range or root; whose number another name has is the machine's to tell.
func (l *restReader) user(option string, not bool) bool {
	if l.lit("root") {
		return l.add("owner", Option{Not: not, Name: option, Args: []string{"0"}})
	}
	return strings.Trim(l.peek(), "0123456789-") == "" && l.value("owner", option, not)
}

func (l *restReader) packetType(not bool) bool {
	not = l.lit("!=") || not
	return (not || l.lit("=")) && l.value("pkttype", "pkt-type", not)
}

// hops makes a reader of "TTL match TTL == 5" and HL's like.
func hops(module string) func(*restReader, bool) bool {
	suffix := map[string]string{"==": "-eq", "!=": "-eq", "<": "-lt", ">": "-gt"}
	return func(l *restReader, not bool) bool {
		if not || !l.lit("match "+strings.ToUpper(module)) {
			return false
		}
		op := l.next()
		return suffix[op] != "" && l.value(module, module+suffix[op], op == "!=")
	}
}

// limit reads "limit: avg 5/min burst 10"; a burst of 5 is the default, which iptables-save leaves out. What hashlimit prints does not
// tell its table's name.
func (l *restReader) limit(not bool) bool {
	l.begin("limit")
	if not || !l.lit("avg") || !l.value("limit", "limit", false) || !l.lit("burst") {
		return false
	}
	return l.lit("5") || l.value("limit", "limit-burst", false)
}

// connectionLimit reads "#conn src/32 > 3".
func (l *restReader) connectionLimit(not bool) bool {
	side, mask, ok := strings.Cut(l.next(), "/")
	option := map[string]string{">": "connlimit-above", "<=": "connlimit-upto"}[l.next()]
	flag := map[string]string{"src": "connlimit-saddr", "dst": "connlimit-daddr"}[side]
	l.begin("connlimit")
	return ok && !not && option != "" && flag != "" && isValue(mask) && l.value("connlimit", option, false) &&
		l.add("connlimit", Opt("connlimit-mask", mask)) && l.add("connlimit", Opt(flag))
}

func (l *restReader) set(not bool) bool {
	name, sides := l.next(), l.next()
	l.begin("set")
	if !isValue(name) || !isValue(sides) {
		return false
	}
	l.add("set", Option{Not: not, Name: "match-set", Args: []string{name, sides}})
	if l.lit("return-nomatch") {
		l.add("set", Opt("return-nomatch"))
	}
	return true
}
