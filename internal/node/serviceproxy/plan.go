package serviceproxy

import (
	"bytes"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// place names a chain of a table.
type place struct{ table, chain string }

// image is the rule set as text: each own chain's rules, by place. Comparing two images, or an image with a dump, tells what to write.
type image map[place]string

func render(set *RuleSet) image {
	im := image{}
	var b []byte
	for i := range set.Tables {
		t := &set.Tables[i]
		for j := range t.Chains {
			b = iptables.AppendRules(b[:0], &t.Chains[j])
			im[place{t.Name, t.Chains[j].Name}] = string(b)
		}
	}
	return im
}

// dumped is a dump by chain: the lines of each, and whether it is there at all.
type dumped map[place]string

// readDump sorts the lines of an iptables-save dump without counters by chain. It does not interpret them: comparing needs the text.
func readDump(dumps ...[]byte) dumped {
	d := dumped{}
	lines := map[place]*strings.Builder{}
	for _, dump := range dumps {
		table := ""
		for line := range bytes.Lines(dump) {
			text := strings.TrimRight(string(line), "\n")
			switch {
			case strings.HasPrefix(text, "*"):
				table = text[1:]
			case strings.HasPrefix(text, ":"):
				name, _, _ := strings.Cut(text[1:], " ")
				d[place{table, name}] = ""
			case strings.HasPrefix(text, "-A "):
				name, _, _ := strings.Cut(text[3:], " ")
				at := place{table, name}
				if lines[at] == nil {
					lines[at] = &strings.Builder{}
				}
				lines[at].Write(line)
			}
		}
	}
	for at, b := range lines {
		d[at] = b.String()
	}
	return d
}

// plan is a change: edits to make, and then chains that nothing refers to any more.
type plan struct {
	edits, cleanup []iptables.Edit
	rules          map[string]int // rules written, by table
}

// isZero tells that there is nothing to do.
func (p *plan) isZero() bool {
	for _, edits := range [][]iptables.Edit{p.edits, p.cleanup} {
		for i := range edits {
			if !edits[i].IsZero() {
				return false
			}
		}
	}
	return true
}

// planFull writes every own chain, puts missing jumps in, and removes what an earlier run or another age left.
func planFull(set *RuleSet, now dumped) plan {
	return makePlan(set, now, func(place) bool { return true })
}

// planRepair writes only what a dump shows to be missing or different. readsAs gives the text that a chain has been seen to read as after
// it was written, where that is not what was written.
func planRepair(set *RuleSet, want, readsAs image, now dumped) plan {
	return makePlan(set, now, func(at place) bool {
		got, there := now[at]
		if !there {
			return true
		}
		alias, ok := readsAs[at]
		return got != want[at] && (!ok || got != alias)
	})
}

func makePlan(set *RuleSet, now dumped, write func(place) bool) plan {
	p := plan{rules: map[string]int{}}
	for i := range set.Tables {
		t := &set.Tables[i]
		edit := iptables.Edit{Table: t.Name}
		for j := range t.Chains {
			if write(place{t.Name, t.Chains[j].Name}) {
				edit.Replace = append(edit.Replace, t.Chains[j])
			}
		}
		edit.Insert = missingJumps(set, t.Name, now)
		edit.Remove = strayJumps(set, t.Name, now)
		p.add(edit)
		p.cleanup = append(p.cleanup, iptables.Edit{Table: t.Name, Delete: staleChains(t, now)})
	}
	return p
}

func (p *plan) add(edit iptables.Edit) {
	p.edits = append(p.edits, edit)
	p.rules[edit.Table] = edit.Rules()
}

// planPartial writes the chains whose text has changed and deletes those that are gone.
func planPartial(set *RuleSet, want, before image) plan {
	p := plan{rules: map[string]int{}}
	for i := range set.Tables {
		t := &set.Tables[i]
		edit := iptables.Edit{Table: t.Name}
		for j := range t.Chains {
			at := place{t.Name, t.Chains[j].Name}
			if old, ok := before[at]; !ok || old != want[at] {
				edit.Replace = append(edit.Replace, t.Chains[j])
			}
		}
		p.add(edit)
		gone := iptables.Edit{Table: t.Name}
		for at := range before {
			if _, ok := want[at]; !ok && at.table == t.Name {
				gone.Delete = append(gone.Delete, at.chain)
			}
		}
		slices.Sort(gone.Delete)
		p.cleanup = append(p.cleanup, gone)
	}
	return p
}

// missingJumps are the jumps that the dump does not have, anywhere in their chain: where others put theirs is not our business.
func missingJumps(set *RuleSet, table string, now dumped) []iptables.Placed {
	var missing []iptables.Placed
	for _, j := range set.Jumps {
		if j.Table == table && !hasLine(now[place{table, j.Chain}], jumpLine(&j)) {
			missing = append(missing, j.Placed)
		}
	}
	return missing
}

func jumpLine(j *Jump) string { return string(iptables.AppendRule(nil, j.Chain, &j.Rule)) }

func hasLine(lines, line string) bool {
	for got := range strings.Lines(lines) {
		if strings.TrimRight(got, "\n") == line {
			return true
		}
	}
	return false
}

// strayJumps are the jumps of other ages that the dump has: exactly those rules, so that a jump of somebody else's making stays.
func strayJumps(set *RuleSet, table string, now dumped) []iptables.Placed {
	wanted := map[string]bool{}
	for i := range set.Jumps {
		wanted[set.Jumps[i].Table+" "+jumpLine(&set.Jumps[i])] = true
	}
	var stray []iptables.Placed
	for _, name := range Ages() {
		for _, j := range ages[name].jumps {
			rule := j.rule()
			line := jumpLine(&rule)
			if j.table != table || j.to == chainFirewall || wanted[table+" "+line] || !hasLine(now[place{table, j.from}], line) {
				continue
			}
			wanted[table+" "+line] = true // once
			stray = append(stray, rule.Placed)
		}
	}
	return stray
}

// staleChains are own chains of the dump that the rule set does not have.
func staleChains(t *iptables.Table, now dumped) []string {
	want := map[string]bool{}
	for i := range t.Chains {
		want[t.Chains[i].Name] = true
	}
	var stale []string
	for at := range now {
		if at.table == t.Name && !want[at.chain] && (isServiceChain(at.chain) || isTopChain(at.chain)) {
			stale = append(stale, at.chain)
		}
	}
	slices.Sort(stale)
	return stale
}
