package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Excerpt is what a text shows that is less than a machine's whole state: lines that somebody copied out of a terminal or an article.
type Excerpt struct {
	Tables  []Table // IPv4's
	IPv6    []Table // ip6tables'
	Assumed []Assumption
	Blocks  []Block // output of other programs, for their own parsers
	// Whole says that the text is a complete iptables-save: nothing was assumed.
	Whole bool
}

// Assumption is one thing that the text does not say and that was taken to be so.
type Assumption struct {
	Kind   AssumptionKind
	Line   int // of the text, from 1; 0 where it is about no line
	Table  string
	Chains []string
	Text   string // the whole of it, in words
}

// AssumptionKind is what was assumed.
type AssumptionKind string

// The kinds of assumptions.
const (
	AssumedTable     AssumptionKind = "table"             // which table a chain stands in
	AssumedPlace     AssumptionKind = "chain"             // which chain a listed rule stands in
	AssumedContents  AssumptionKind = "contents"          // a well-known chain's rules
	AssumedJump      AssumptionKind = "jump"              // the rule that leads to a well-known chain
	AssumedPolicy    AssumptionKind = "policy"            // of built-in chains
	MissingChain     AssumptionKind = "missing chain"     // what a chain does is not known
	MissingRules     AssumptionKind = "missing rules"     // chains that are not shown whole
	AssumedOrder     AssumptionKind = "order"             // of rules that are shown apart
	HiddenInterfaces AssumptionKind = "hidden interfaces" // iptables -L without -v
	Conflict         AssumptionKind = "conflict"          // a chain is shown twice, differently
	Mended           AssumptionKind = "mended line"       // wrapped lines and typographic quotes
	LeftOut          AssumptionKind = "left out"          // a line that could not be used
)

// Block is a part of the text that another program printed.
type Block struct {
	Kind BlockKind
	Line int    // of its first line, from 1
	Text []byte // its lines without the blanks and marks of quotation in front
	// Filtered says that the output went through another program: lines may be missing.
	Filtered bool
	from     origin
}

// BlockKind is the program and form of a block.
type BlockKind string

// The blocks that are recognised.
const (
	IPSetList BlockKind = "ipset list"
	IPSetSave BlockKind = "ipset save"
	IPRoute   BlockKind = "ip route"
	IPAddress BlockKind = "ip addr"
	IPRule    BlockKind = "ip rule"
	Conntrack BlockKind = "conntrack -L"
	Sysctl    BlockKind = "sysctl"
)

// ErrNothingFound is returned for a text without a line that any program is known to print.
var ErrNothingFound = errors.New("no rule, set, route or connection in the text; want output of iptables-save, iptables -S, iptables -L, ipset list, " +
	"ip route, ip addr or conntrack -L")

// ParseFragment reads a text in which the output of iptables-save, iptables -S and iptables -L stands, whole or in part, between shell
// prompts, command lines and prose. A rule line is one that begins with -A, or one of a listing; a line that is shown again, by another
// command, is the same rule. Output from elsewhere than most of the rules, by its prompt or command, is left out. What the text does not say and what kube-proxy, the ip-masq-agent and Calico are known to do is filled in;
// [Excerpt.Assumed] tells each time. Where the rules are shown at several times, those of the last one at which they name one of the addresses
// that it is about are taken, else the last. A complete iptables-save is read by [Parse] alone.
func ParseFragment(text []byte, about ...netip.Addr) (Excerpt, error) {
	v4, v6 := bytes.Contains(text, []byte("by iptables-save")), bytes.Contains(text, []byte("by ip6tables-save"))
	mixed := v4 && v6
	if tables, err := Parse(text); err == nil && len(tables) > 0 && !mixed {
		if v6 || !v4 && familyOfTables(tables) == 6 {
			return Excerpt{IPv6: tables, Whole: true}, nil
		}
		return Excerpt{Tables: tables, Whole: true}, nil
	}
	s := scanner{lines: strings.Split(string(text), "\n")}
	s.scan()
	s.leaveOut()
	s.chooseTime(about)
	f := Excerpt{Blocks: s.blocks}
	for _, family := range []int{4, 6} {
		runs := s.runs(family)
		if len(runs) == 0 {
			continue
		}
		b := builder{runs: runs}
		b.build()
		if family == 4 {
			f.Tables = b.tables
		} else {
			f.IPv6 = b.tables
			for i := range b.assumed {
				b.assumed[i].Text = "ip6tables: " + b.assumed[i].Text
			}
		}
		f.Assumed = append(f.Assumed, b.assumed...)
	}
	f.Assumed = append(f.Assumed, s.assumed...)
	slices.SortStableFunc(f.Assumed, func(a, b Assumption) int { return order(a.Kind) - order(b.Kind) })
	if len(f.Tables)+len(f.IPv6)+len(f.Blocks) == 0 {
		return Excerpt{}, ErrNothingFound
	}
	return f, nil
}

// kinds is the order in which assumptions are told: the text first, then what is beyond it.
var kinds = []AssumptionKind{LeftOut, Mended, AssumedTable, AssumedPlace, HiddenInterfaces, Conflict, AssumedOrder, MissingRules, AssumedContents, AssumedJump,
	AssumedPolicy, MissingChain}

func order(k AssumptionKind) int { return slices.Index(kinds, k) }

func familyOfTables(tables []Table) int {
	for i := range tables {
		for j := range tables[i].Chains {
			for k := range tables[i].Chains[j].Rules {
				if f := familyOfRule(&tables[i].Chains[j].Rules[k]); f != 0 {
					return f
				}
			}
		}
	}
	return 0
}

// familyOfRule tells by addresses, by ICMP's kind and by what a rule is translated to; 0 where nothing tells.
func familyOfRule(r *Rule) int {
	if f := familyOf(r.Source, r.Destination); f != 0 {
		return f
	}
	switch r.Protocol.Name {
	case "icmp":
		return 4
	case "ipv6-icmp":
		return 6
	}
	for _, name := range []string{"to-destination", "to-source"} {
		if o, ok := r.Target.Option(name); ok && len(o.Args) == 1 {
			if strings.Count(o.Args[0], ":") > 1 {
				return 6
			}
			return 4
		}
	}
	return 0
}

// lineage collects chains for one assumption about all of them.
type lineage struct {
	line   int
	chains []string
	has    map[string]bool
}

func (l *lineage) add(line int, chain string) {
	if !l.has[chain] {
		if l.has == nil {
			l.has = map[string]bool{}
		}
		l.has[chain] = true
		l.chains = append(l.chains, chain)
	}
	if l.line == 0 || line != 0 && line < l.line {
		l.line = line
	}
}

// assume gives the assumption "CHAINS: TEXT", or none where there are no chains.
func (l *lineage) assume(kind AssumptionKind, table, text string) []Assumption {
	if len(l.chains) == 0 {
		return nil
	}
	return []Assumption{{Kind: kind, Line: l.line, Table: table, Chains: l.chains, Text: some(l.chains) + ": " + text}}
}

// some names things, the first few where there are many.
func some(names []string) string {
	const most = 6
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most-1], ", "), len(names)-most+1)
	}
	return strings.Join(names, ", ")
}
