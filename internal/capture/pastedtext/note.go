package pastedtext

import (
	"fmt"
	"slices"
	"strings"
)

// notes are what the text does not say and what was taken to be so.
type notes struct {
	all   []assumption
	about map[[3]string]*lineage // chains of which one assumption is made, by its kind, table and text
	order [][3]string
}

// assumption is one of them.
type assumption struct {
	Kind assumptionKind
	Line int    // of the text, from 1; 0 where it is about no line
	Text string // the whole of it, in words
}

// assumptionKind is what was assumed.
type assumptionKind string

// The kinds of assumptions.
const (
	assumedTable     assumptionKind = "table"             // which table a chain stands in
	assumedChain     assumptionKind = "chain"             // which chain a listed rule stands in
	assumedRun       assumptionKind = "run"               // commands that make rules
	assumedContents  assumptionKind = "contents"          // a well-known chain's rules
	assumedJump      assumptionKind = "jump"              // the rule that leads to a well-known chain
	assumedPolicy    assumptionKind = "policy"            // of built-in chains
	missingChain     assumptionKind = "missing chain"     // what a chain does is not known
	missingRules     assumptionKind = "missing rules"     // chains that are not shown whole
	assumedOrder     assumptionKind = "order"             // of rules that are shown apart
	hiddenInterfaces assumptionKind = "hidden interfaces" // iptables -L without -v
	conflict         assumptionKind = "conflict"          // a chain is shown twice, differently
	leftOut          assumptionKind = "left out"          // a line that could not be used
)

// kinds is the order in which assumptions are told: the text first, then what is beyond it.
var kinds = []assumptionKind{leftOut, assumedRun, assumedTable, assumedChain, hiddenInterfaces, conflict, assumedOrder, missingRules,
	assumedContents, assumedJump, assumedPolicy, missingChain}

func (n *notes) note(kind assumptionKind, line int, format string, args ...any) {
	n.all = append(n.all, assumption{kind, line, shortened(fmt.Sprintf(format, args...))})
}

// Bounds of what is told about lines: a text may have many, and long ones. The account has all of them.
const (
	longestNote = 1000
	mostLeftOut = 100
)

func shortened(text string) string {
	if len(text) <= longestNote {
		return text
	}
	return strings.ToValidUTF8(text[:longestNote], "") + "…"
}

// withoutMost drops all but the first notes about lines that are left out.
func withoutMost(all []assumption) []assumption {
	first := slices.IndexFunc(all, func(a assumption) bool { return a.Kind == leftOut })
	count := 0
	for first >= 0 && first+count < len(all) && all[first+count].Kind == leftOut {
		count++
	}
	if count <= mostLeftOut {
		return all
	}
	rest := assumption{leftOut, 0, fmt.Sprintf("%d more lines are left out", count-mostLeftOut)}
	return slices.Replace(all, first+mostLeftOut, first+count, rest)
}

// noteChain notes something about a chain; those of one table of which the same is said are told together, as "CHAINS: TEXT".
func (n *notes) noteChain(kind assumptionKind, table string, line int, chain, text string) {
	key := [3]string{string(kind), table, text}
	if n.about == nil {
		n.about = map[[3]string]*lineage{}
	}
	if n.about[key] == nil {
		n.about[key] = &lineage{}
		n.order = append(n.order, key)
	}
	n.about[key].add(line, chain)
}

// told returns all notes.
func (n *notes) told() []assumption {
	all := n.all
	for _, key := range n.order {
		l := n.about[key]
		all = append(all, assumption{assumptionKind(key[0]), l.line, Some(l.chains) + ": " + key[2]})
	}
	slices.SortStableFunc(all, func(a, b assumption) int { return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind) })
	return withoutMost(all)
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

// Some names things, the first few where there are many.
func Some(names []string) string {
	const most = 6
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most-1], ", "), len(names)-most+1)
	}
	return strings.Join(names, ", ")
}
