package excerpt

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// madeRule is what a command adds: "-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE", "-I FORWARD 2 -j DROP", "-P FORWARD DROP", "-N MINE".
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
	chain, spec := m[2], m[3]
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
		if r := s.lastRule.run; insert && len(r.rules) > mostInserts {
			s.noteChain(assumedOrder, table, s.at, chain, "rules that many commands insert; assuming the text's order")
			r.whole = false
		} else if insert {
			last := len(r.rules) - 1
			to := min(max(number-1, 0), last)
			rule := r.rules[last]
			r.rules = slices.Insert(r.rules[:last], to, rule)
			s.lastRule.index = to
		}
	}
	s.now = context{}
	s.noteChain(assumedRun, "", s.at, chain, "assuming its commands were run")
	return true
}

// mostInserts is how many rules a chain may have for others to be put before them.
const mostInserts = 2000

// lastMaker is the last command that made something.
type lastMaker struct {
	line, family int
	table        string
}
