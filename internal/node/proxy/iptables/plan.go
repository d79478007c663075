package iptables

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// chainDump is a dump by chain: the lines of each, and whether it is there at all.
type chainDump map[chainKey]string

// readDump sorts the lines of an iptables-save dump without counters by chain. It does not interpret them: comparing needs the text.
func readDump(dumps ...[]byte) chainDump {
	d := chainDump{}
	for _, dump := range dumps {
		text, table := string(dump), ""
		var last chainKey // whose rules begin at start, and went before if there were others in between
		start, before := 0, ""
		for i, next := 0, 0; i < len(text); i = next {
			line, _, _ := strings.Cut(text[i:], "\n")
			next = min(i+len(line)+1, len(text))
			if rule, ok := strings.CutPrefix(line, "-A "); ok {
				name, _, _ := strings.Cut(rule, " ")
				if at := (chainKey{table, name}); at != last {
					last, start, before = at, i, d[at]
				}
				d[last] = before + text[start:next]
				continue
			}
			last = chainKey{}
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			} else if name, ok := strings.CutPrefix(line, ":"); ok {
				name, _, _ = strings.Cut(name, " ")
				d[chainKey{table, name}] = ""
			}
		}
	}
	return d
}

// findUnused returns the KUBE-MARK-MASQ and canary chains that no foreign rule jumps to.
func (d chainDump) findUnused() (found []chainKey) {
	for _, table := range tables {
		for _, name := range []string{chainMarkMasq, chainCanary} {
			_, there := d[chainKey{table, name}]
			for at, rules := range d {
				foreign := at.table == table && !isServiceChain(at.chain) && !isTopChain(at.chain)
				there = there && (!foreign || !strings.Contains(rules, " -j "+name+"\n") && !strings.Contains(rules, " -g "+name+"\n"))
			}
			if there {
				found = append(found, chainKey{table, name})
			}
		}
	}
	return found
}

// edit is a change of one table, as text for iptables-restore --noflush: one transaction. Its steps happen in the order of the fields.
type edit struct {
	table string
	// flush makes chains, or empties them; lines are the commands that follow.
	flush  []string
	lines  bytes.Buffer
	delete []string // chains
	rules  int      // that lines add
}

func (e *edit) isZero() bool { return len(e.flush)+e.lines.Len()+len(e.delete) == 0 }

func (e *edit) replace(c chainText) {
	e.flush = append(e.flush, c.chain)
	e.add(c)
}

// add appends rules to a chain.
func (e *edit) add(c chainText) {
	e.lines.WriteString(c.rules)
	e.rules += lines(c.rules)
}

// remove removes rules, each the first that is equal to it.
func (e *edit) remove(rules string) {
	for rule := range strings.Lines(rules) {
		e.lines.WriteString("-D " + strings.TrimPrefix(rule, "-A "))
	}
}

// insert puts rules into a chain, the first of them at a place counted from 1.
func (e *edit) insert(chain string, at int, rules string) {
	for rule := range strings.Lines(rules) {
		fmt.Fprintf(&e.lines, "-I %s %d%s", chain, at, strings.TrimPrefix(rule, "-A "+chain))
		e.rules++
		at++
	}
}

// input appends the edit as iptables-restore's input.
func (e *edit) input(b []byte) []byte {
	b = append(b, '*')
	b = append(b, e.table...)
	b = append(b, '\n')
	for _, chains := range [][]string{e.flush, e.delete} {
		for _, name := range chains {
			b = append(b, ":"+name+" - [0:0]\n"...)
		}
	}
	b = append(b, e.lines.Bytes()...)
	for _, name := range e.delete {
		b = append(b, "-X "+name+"\n"...)
	}
	return append(b, "COMMIT\n"...)
}

// tables are those that the service proxy writes to, in the order in which it does.
var tables = []string{iptables.Filter, iptables.Mangle, iptables.NAT}

// plan is a change: steps, each of which is made whole and leaves the kernel with rules that forward rightly, and then chains that nothing
// leads to any more.
type plan struct {
	steps   [][]*edit
	cleanup []*edit
	rules   map[string]int // written, by table
	touched []chainKey     // chains that are written to
}

func (p *plan) isZero() bool { return len(p.steps)+len(p.cleanup) == 0 }

// add adds a step of those edits that change something.
func (p *plan) add(edits ...*edit) {
	edits = slices.DeleteFunc(edits, (*edit).isZero)
	for _, e := range edits {
		p.rules[e.table] += e.rules
	}
	if len(edits) > 0 {
		p.steps = append(p.steps, edits)
	}
}

// drop adds chains of a table to what is cleaned up, in edits of at most so many: first those that lead to others.
func (p *plan) drop(table string, chains []string, most int) {
	slices.SortFunc(chains, func(a, b string) int {
		return cmp.Or(cmp.Compare(uint(rank(b)), uint(rank(a))), strings.Compare(a, b)) // no chain of ours leads to a chain without a rank
	})
	for batch := range slices.Chunk(chains, most) {
		p.cleanup = append(p.cleanup, &edit{table: table, delete: batch})
	}
}

func newPlan() plan { return plan{rules: map[string]int{}} }

// compare makes the kernel's rules those of the state: it writes what differs in a dump, puts missing jumps in, and removes what an earlier
// run or another version left. readsAs gives the text that a chain has been seen to read as after it was written, where that is not what was
// written. A step has at most so much.
func compare(s *state, now chainDump, readsAs map[chainKey]string, most int) plan {
	p := newPlan()
	wanted := map[chainKey]bool{}
	var differing []chainText
	size := 0
	s.each(func(c chainText) {
		wanted[c.chainKey] = true
		got, there := now[c.chainKey]
		alias, aliased := readsAs[c.chainKey]
		if there && (got == c.rules || aliased && got == alias) {
			return
		}
		differing = append(differing, c)
		p.touched = append(p.touched, c.chainKey)
		size += 1 + lines(c.rules)
	})
	last := map[string]*edit{}
	for _, table := range tables {
		last[table] = &edit{table: table}
	}
	var many []chainText
	for _, c := range differing {
		inUse := slices.Contains(shared[:], c.chainKey) && now[c.chainKey] != ""
		if size > most && c.table == iptables.NAT && !inUse {
			many = append(many, c)
		} else {
			last[c.table].replace(c)
		}
	}
	p.inSteps(many, most)
	for _, table := range tables {
		p.jump(s, last[table], now)
	}
	p.add(last[iptables.Filter], last[iptables.Mangle], last[iptables.NAT])
	for _, table := range tables {
		p.drop(table, staleChains(table, wanted, now), most)
	}
	return p
}

// inSteps writes chains of table nat in steps of at most so much. Only shared chains are parted, and none that was in use.
func (p *plan) inSteps(chains []chainText, most int) {
	step, size := &edit{table: iptables.NAT}, 0
	room := func(more int) {
		if size += more; size > most {
			p.add(step)
			step, size = &edit{table: iptables.NAT}, more
		}
	}
	for _, c := range chains {
		if !slices.Contains(shared[:], c.chainKey) {
			room(1 + lines(c.rules))
			step.replace(c)
			continue
		}
		room(1)
		step.flush = append(step.flush, c.chain)
		for rule := range strings.Lines(c.rules) {
			room(1)
			step.add(chainText{c.chainKey, rule})
		}
	}
	p.add(step)
}

// jump puts missing jumps in, in the order in which each is put before those that stand earlier, and takes those of other versions out.
func (p *plan) jump(s *state, e *edit, now chainDump) {
	for _, j := range strayJumps(s.jumps, e.table, now) {
		e.remove(jumpLine(&j))
	}
	for _, j := range s.jumps {
		if line := jumpLine(&j); j.Table == e.table && !hasLine(now[chainKey{e.table, j.Chain}], line) {
			p.touched = append(p.touched, chainKey{e.table, j.Chain})
			e.insert(j.Chain, 1, line)
		}
	}
}

// difference brings the kernel from one state to another of the same rule set: chains that are not the same, and in shared chains the rules
// of service ports that are not. It is one step, unless it has more than so much.
func difference(from, to *state, most int) plan {
	p := newPlan()
	edits := map[string]*edit{}
	for _, table := range tables {
		edits[table] = &edit{table: table}
	}
	before := map[chainKey]string{}
	for _, c := range from.frame {
		before[c.chainKey] = c.rules
	}
	var rewrite [len(shared)]bool
	for _, c := range to.frame {
		i := slices.Index(shared[:], c.chainKey)
		switch rules, there := before[c.chainKey]; {
		case there && rules == c.rules:
		case i >= 0:
			rewrite[i] = true
		default:
			edits[c.table].replace(c)
			p.touched = append(p.touched, c.chainKey)
		}
	}
	changes := changedParts(from, to)
	own, gone := ownChains(changes)
	size := len(gone)
	for _, c := range own {
		p.touched = append(p.touched, c.chainKey)
		size += 1 + lines(c.rules)
	}
	if nat := edits[iptables.NAT]; size > most {
		p.inSteps(own, most)
		p.drop(iptables.NAT, gone, most)
	} else {
		nat.delete = gone
		for _, c := range own {
			nat.replace(c)
		}
	}
	for i := range shared {
		p.sharedChain(i, to, changes, edits[shared[i].table], rewrite[i])
	}
	p.add(edits[iptables.Filter], edits[iptables.Mangle], edits[iptables.NAT])
	return p
}

// partChange is a service port's part before and after; one of them may be nil. at is its place among the parts afterwards.
type partChange struct {
	from, to *part
	at       int
}

func changedParts(from, to *state) (changes []partChange) {
	for i, p := range to.parts {
		if old := from.byKey[p.key()]; old != p {
			changes = append(changes, partChange{old, p, i})
		}
	}
	for _, p := range from.parts {
		if to.byKey[p.key()] == nil {
			changes = append(changes, partChange{from: p})
		}
	}
	return changes
}

// ownChains returns the chains of parts that are new or other than before, those that others lead to first, and the names of those that are
// gone, sorted. All are of table nat.
func ownChains(changes []partChange) (own []chainText, gone []string) {
	for _, c := range changes {
		before := map[string]string{}
		if c.from != nil {
			for _, chain := range c.from.chains {
				before[chain.chain] = chain.rules
			}
		}
		if c.to != nil {
			for _, chain := range c.to.chains {
				if rules, there := before[chain.chain]; !there || rules != chain.rules {
					own = append(own, chain)
				}
				delete(before, chain.chain)
			}
		}
		gone = slices.AppendSeq(gone, maps.Keys(before))
	}
	slices.SortStableFunc(own, func(a, b chainText) int { return cmp.Compare(rank(a.chain), rank(b.chain)) })
	slices.Sort(gone)
	return own, gone
}

// sharedChain takes the old rules of changed parts out of a shared chain and puts the new ones in their places; where that is a large part
// of the chain, or the frame's rules have changed, it writes the chain whole.
func (p *plan) sharedChain(i int, to *state, changes []partChange, e *edit, whole bool) {
	at := shared[i]
	var removed strings.Builder
	insert := map[int]string{} // by the part's place
	n := 0
	for _, c := range changes {
		var old, now string
		if c.from != nil {
			old = c.from.shared[i]
		}
		if c.to != nil {
			now = c.to.shared[i]
		}
		if old == now {
			continue
		}
		removed.WriteString(old)
		n += lines(old) + lines(now)
		if now != "" {
			insert[c.at] = now
		}
	}
	if n == 0 && !whole {
		return
	}
	p.touched = append(p.touched, at)
	total := 0
	for _, part := range to.parts {
		total += lines(part.shared[i])
	}
	if whole || n > max(fewEdits, total/4) {
		rules := to.sharedRules(i)
		for _, c := range to.frame {
			if c.chainKey == at {
				rules += c.rules
			}
		}
		e.replace(chainText{at, rules})
		return
	}
	e.remove(removed.String())
	line := 1
	for k, part := range to.parts {
		e.insert(at.chain, line, insert[k])
		line += lines(part.shared[i])
	}
}

// fewEdits is how many rules may be taken out of a chain and put into it, each by itself, however short it is.
const fewEdits = 16

// strayJumps returns the jumps of other rule set versions that the dump has. It returns exactly those rules, so that another writer's jump
// stays.
func strayJumps(jumps []Jump, table string, now chainDump) []Jump {
	wanted := map[string]bool{}
	for i := range jumps {
		wanted[jumps[i].Table+" "+jumpLine(&jumps[i])] = true
	}
	var stray []Jump
	for _, name := range RuleSetVersions() {
		for _, j := range versions[name].jumps {
			rule := j.rule()
			line := jumpLine(&rule)
			if j.table != table || j.to == chainFirewall || wanted[table+" "+line] || !hasLine(now[chainKey{table, j.from}], line) {
				continue
			}
			wanted[table+" "+line] = true // once
			stray = append(stray, rule)
		}
	}
	return stray
}

func jumpLine(j *Jump) string { return string(iptables.AppendRule(nil, j.Chain, &j.Rule)) + "\n" }

// hasLine reports whether rules have one, with the end of its line.
func hasLine(rules, line string) bool {
	return strings.HasPrefix(rules, line) || strings.Contains(rules, "\n"+line)
}

// staleChains returns own chains of the dump that are not wanted.
func staleChains(table string, wanted map[chainKey]bool, now chainDump) (names []string) {
	for at := range now {
		if at.table == table && !wanted[at] && (isServiceChain(at.chain) || isTopChain(at.chain)) {
			names = append(names, at.chain)
		}
	}
	return names
}
