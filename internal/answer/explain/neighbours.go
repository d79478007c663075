package explain

import (
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/walk"
)

const (
	// mostBefore and mostAfter limit the neighbours of a rule.
	mostBefore = 3
	mostAfter  = 2
)

// neighbours collects the rules of chains that were evaluated and did not apply. It adds them to the next rule of the chain that did.
type neighbours map[*netfilter.Chain][]*netfilter.Visit

// hold reports whether a step shows only that a rule did not apply. Such a step becomes a neighbour.
func (n neighbours) hold(st *walk.Step) bool {
	v := st.Visit
	if v == nil || v.Rule == nil || v.Verdict.Kind != netfilter.Break || len(changesOf(st)) > 0 {
		return false
	}
	n[v.Chain] = append(n[v.Chain], v)
	return true
}

// add gives a rule its neighbours in the chain.
func (n neighbours) add(d *RuleDoc, v *netfilter.Visit) {
	before := n[v.Chain]
	delete(n, v.Chain)
	if d.Unmatched = len(before); d.Unmatched > mostBefore {
		before = before[d.Unmatched-mostBefore:]
	}
	for _, b := range before {
		d.Before = append(d.Before, *ruleDoc(b))
	}
	if v.Rule == nil || v.Chain.Partial {
		return
	}
	for i := range v.Chain.Rules {
		if r := &v.Chain.Rules[i]; r.Number > v.Rule.Number && len(d.After) < mostAfter {
			d.After = append(d.After, RuleDoc{Family: d.Family, Table: d.Table, Chain: d.Chain, Number: r.Number, Handle: r.Handle, Text: r.Text})
		}
	}
}
