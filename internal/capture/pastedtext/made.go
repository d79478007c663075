package pastedtext

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/syntax/iproute"
	"packetwalk.dev/internal/syntax/iptables"
)

// madeRule holds what a command adds: "-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE", "-I FORWARD 2 -j DROP", "-P FORWARD DROP", "-N MINE".
var (
	madeRule  = regexp.MustCompile(`\s(-A|--append|-I|--insert|-P|--policy|-N|--new-chain)\s+(\S+)(?:\s+(.*))?$`)
	tableFlag = regexp.MustCompile(`\s(?:-t|--table)[\s=]\S+`)
)

// made takes a command that adds a rule, makes a chain or sets a policy, for what it leaves behind: a rule of a chain that is not shown
// whole. A table that the command does not name is filter.
func (s *scanner) made(command string, of context) bool {
	m := madeRule.FindStringSubmatch(tableFlag.ReplaceAllString(command, ""))
	if m == nil || !iptables.IsName(m[2]) {
		return false
	}
	table := cmp.Or(of.table, iptables.Filter)
	if !isTable(table) {
		return false
	}
	if last := s.madeIn; last.line != s.at-1 || last.table != table || last.family != of.family {
		s.reset()
	}
	s.madeIn = lastMaker{s.at, of.family, table}
	s.now = context{source: source{family: of.family, table: table}}
	chain, spec := m[2], strings.TrimSpace(strings.TrimSuffix(m[3], `\`)) // the next line goes on
	switch option := m[1]; option {
	case "-N", "--new-chain":
	case "-P", "--policy":
		if !isPolicy(strings.TrimSpace(spec)) {
			return false
		}
		s.begin(iptables.Chain{Name: chain, Policy: strings.TrimSpace(spec)}, false)
	default:
		at, rest, _ := strings.Cut(spec, " ")
		number, err := strconv.Atoi(at)
		if err == nil {
			spec = rest
		}
		insert := option == "-I" || option == "--insert"
		if !s.rule("-A " + chain + " " + spec) {
			return false
		}
		if s.lastRule.run.made = true; insert {
			s.lastRule.run.rules[s.lastRule.index].insert = max(number, 1)
		}
	}
	s.now = context{}
	s.noteChain(assumedRun, "", s.at, chain, "assuming its commands were run")
	return true
}

// lastMaker is the last command that made something.
type lastMaker struct {
	line, family int
	table        string
}

// ipCommandMade is "ip -6 route add default via fe80::1 dev eth0" in its parts.
var ipCommandMade = regexp.MustCompile(`^(?:sudo\s+)?(?:/\S*/)?ip\s+((?:-\S+\s+)*)(ro?u?t?e?|rul?e?|ad?d?r?e?s?s?|li?n?k?)\s+(add|append|prepend|replace|change|set|a)\s+(.+)$`)

// ipMade takes a command of ip that adds a policy rule, a route, an address or a link, which is assumed to have been run.
func (s *scanner) ipMade(line string) bool {
	command, _ := commandOf(line)
	if m := oneSysctl.FindStringSubmatch(command); m != nil {
		return s.added(SysctlList, "sysctl", m[1]+" = "+m[2])
	}
	if m := echoed.FindStringSubmatch(command); m != nil {
		return s.added(SysctlList, "sysctl", strings.ReplaceAll(m[2], "/", ".")+" = "+m[1])
	}
	m := ipCommandMade.FindStringSubmatch(command)
	if m == nil || variableLink.MatchString(command) {
		return false
	}
	six, words := strings.Contains(m[1], "-6"), strings.Fields(m[4])
	s.routes = ipCommand{ipv6: six, some: true}
	switch {
	case strings.HasPrefix("rule", m[2]) && len(m[2]) > 1 && m[2][:2] == "ru":
		return s.added(IPRule, "ip rule", s.ruleOf(words, six))
	case m[2][0] == 'r':
		s.added(IPRoute, "ip route", strings.Join(words, " "))
		s.blocks[len(s.blocks)-1].verb = m[3]
		return true
	case m[2][0] == 'a':
		return s.addAddress(words)
	case m[3] == "set" && (len(words) == 2 || len(words) == 3 && words[0] == "dev") && words[len(words)-1] == "up" && !s.listsDown(words[len(words)-2]):
		s.reset()
		s.NoEffect(s.at, "a command that changes nothing")
		return true
	case m[3] == "add" && slices.Contains(words, "type"):
		name := words[0]
		for i := 0; i+1 < len(words); i++ {
			if words[i] == "name" || words[i] == "dev" && i == 0 {
				name = words[i+1]
			}
		}
		return s.added(IPAddress, "ip link", fmt.Sprintf("%d: %s: <UP,LOWER_UP> mtu 1500", s.nextLink(), name))
	}
	return false
}

var (
	oneSysctl = regexp.MustCompile(`^(?:sudo\s+)?(?:/\S*/)?sysctl\s+(?:-\S+\s+)*(net\.[\w.-]+)=([\d-]+)$`)
	echoed    = regexp.MustCompile(`^(?:sudo\s+)?echo\s+"?([0-9]+)"?\s*(?:>|\|\s*(?:sudo\s+)?tee)\s*/proc/sys/(net/\S+)$`)
)

// variableLink is an interface that a variable stands for.
var variableLink = regexp.MustCompile("\\s(?:dev|oif|iif|set|vrf)\\s+\\S*[$`<>]")

// added adds lines that a command leaves behind.
func (s *scanner) added(kind BlockKind, what string, lines ...string) bool {
	filtered := s.filtered
	s.filtered = true
	for i, line := range lines {
		s.addLine(kind, i == 0, line)
	}
	s.filtered, s.routes = filtered, ipCommand{}
	s.noteChain(assumedRun, "", s.at, what, "assuming its commands were run")
	return true
}

// listsDown reports whether a link is listed and not up.
func (s *scanner) listsDown(link string) bool {
	flags := regexp.MustCompile(`(?m)^[0-9]+: ` + regexp.QuoteMeta(link) + `(?:@\S+)?: <[^>]*>`)
	for i := range s.blocks {
		if s.blocks[i].Kind == IPAddress && s.blocks[i].JSON {
			return true
		}
		for _, found := range flags.FindAllString(string(s.blocks[i].Text), -1) {
			if s.blocks[i].Kind == IPAddress && !isUp.MatchString(found) {
				return true
			}
		}
	}
	return false
}

// inJSON stands for the destinations that a list in JSON has.
const inJSON = "JSON"

var isUp = regexp.MustCompile(`[<,]UP[,>]`)

// settleMadeRoutes does not carry out a command that changes which of several routes to a destination comes first.
func (s *scanner) settleMadeRoutes() {
	known := map[string]bool{}
	s.blocks = slices.DeleteFunc(s.blocks, func(b Block) bool {
		if b.Kind != IPRoute {
			return false
		}
		words := strings.Fields(b.lines()[0])
		order := b.verb != "" && strings.Trim(b.verb, "ad") != "" && b.verb != "append"
		if order && (known[destinationOf(words)] || known[inJSON]) {
			s.at = b.Line
			command, _ := commandOf(s.lines[b.Line-1].text)
			s.noteChange(command, []state{b.state()})
			s.notCarriedOut(s.changes[len(s.changes)-1])
			return true
		}
		known[inJSON] = known[inJSON] || b.JSON
		for _, line := range b.lines() {
			known[destinationOf(strings.Fields(line))] = true
		}
		return false
	})
}

// destinationOf returns where a route leads, in one way of writing.
func destinationOf(words []string) string {
	if len(words) > 1 && iproute.IsRouteType(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	if p, ok := routeDestination(words[0]); ok && p.Bits() > 0 {
		return p.Masked().String()
	} else if ok {
		return "default"
	}
	return words[0]
}

// ruleOf writes a policy rule as it is listed. One without a priority gets the next one before all others (fib_default_rule_pref).
func (s *scanner) ruleOf(words []string, six bool) string {
	priority := 32766
	if p := s.priorities[six]; p > 0 {
		priority = p
	}
	own := priority - 1
	var rest []string
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case i+1 < len(words) && len(w) >= 4 && (strings.HasPrefix("preference", w) || strings.HasPrefix("priority", w) || w == "order"):
			if n, err := strconv.Atoi(words[i+1]); err == nil {
				own = n
			}
			i++
		case w == "dev":
			rest = append(rest, "iif")
		default:
			rest = append(rest, w)
		}
	}
	if s.priorities == nil {
		s.priorities = map[bool]int{}
	}
	s.priorities[six] = min(priority, own)
	return fmt.Sprintf("%d: %s", own, strings.Join(rest, " "))
}

// addAddress adds an address, and the route to its network.
func (s *scanner) addAddress(words []string) bool {
	link := ""
	for i := 0; i+1 < len(words); i++ {
		if words[i] == "dev" {
			link = words[i+1]
		}
	}
	prefix, err := netip.ParsePrefix(words[0])
	if err != nil || link == "" || slices.Contains(words, "peer") {
		return false
	}
	family := map[bool]string{false: "inet", true: "inet6"}[prefix.Addr().Is6()]
	s.added(IPAddress, "ip address", fmt.Sprintf("%d: %s: <UP,LOWER_UP> mtu 1500", s.nextLink(), link),
		fmt.Sprintf("%s %s scope global %s", family, prefix, link))
	if prefix.IsSingleIP() {
		return true
	}
	return s.added(IPRoute, "ip address", fmt.Sprintf("%s dev %s proto kernel scope link src %s", prefix.Masked(), link, prefix.Addr()))
}
