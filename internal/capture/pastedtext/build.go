package pastedtext

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// builder makes tables of the runs of one family.
type builder struct {
	notes
	known   *knownRules
	runs    []*run
	tables  []iptables.Table
	chains  map[chainKey]*partialChain
	saved   SavedTables
	byNFT   bool // iptables-save is that of nf_tables
	account Fates
}

// chainKey names a chain of a table.
type chainKey struct{ table, chain string }

// partialChain is a chain as far as the runs show it.
type partialChain struct {
	i, j    int // its table among the tables, its place in that
	line    int
	rules   []textRule
	whole   bool
	unused  bool           // nothing refers to it
	known   bool           // its Contents were filled in, all of them
	keys    map[string]int // how often each rule stands in it; nil until asked for
	last    int            // line that was read last
	parts   int            // how often more of it was shown
	assumed bool           // its table is assumed
}

// mostParts is how often a chain's rules are put in order with those of another place. What is shown more often is taken as it comes.
const mostParts = 100

func (b *builder) build() {
	b.chains, b.saved.names = map[chainKey]*partialChain{}, map[string]bool{}
	var left lineage
	jumps := tablesOfJumps(b.runs)
	around := map[*output]string{} // tables of outputs, by targets that stand in one table only
	for _, r := range b.runs {
		if table := r.needs(); r.output != nil && table != "" && r.output.allowed(table) {
			around[r.output] = table
		}
	}
	for _, r := range b.runs {
		if r.table == "" && around[r.output] != "" {
			r.table, r.why = around[r.output], "by the targets around"
		} else if r.table == "" {
			r.table, r.why = b.known.table(r, jumps)
		}
		if r.headless > 0 && r.why == namesNone {
			r.table, r.why = b.tableLeft(r)
		}
		switch {
		case r.table == "":
			left.add(r.line, r.chain)
			if r.policy != "" {
				b.account.NotRead(r.line, "nothing tells its table")
			}
			for i := range r.rules {
				b.account.NotRead(r.rules[i].line, "nothing tells its table")
			}
			continue
		case r.why != "":
			b.noteChain(assumedTable, r.table, r.line, r.chain, "assuming table "+r.table+", "+r.why)
		}
		b.merge(r)
		b.saved.names[r.table] = b.saved.names[r.table] || r.saved
		b.saved.selected = b.saved.selected || r.selected
	}
	b.saved.check(b.tables, b.byNFT)
	if len(left.chains) > 0 {
		b.note(leftOut, left.line, "%s: unknown table; its rules are left out", Some(left.chains))
	}
	b.fillIn()
	b.restore()
	b.doubtDead()
	b.doubtUnreached()
	b.addNotes()
	b.finish()
}

// tableLeft returns the table of a run whose table's heading is not in the text: the one that has all built-in chains up to the same COMMIT, and
// that the text does not show otherwise; "" where several can be.
func (b *builder) tableLeft(r *run) (table, why string) {
	shown := map[string]bool{}
	for _, o := range b.runs {
		if o.table != "" && o.why == "" {
			shown[o.table] = true
		}
	}
	left := slices.DeleteFunc([]string{iptables.Raw, iptables.Mangle, iptables.NAT, iptables.Filter}, func(table string) bool {
		return shown[table] || slices.ContainsFunc(b.runs, func(o *run) bool { return o.headless == r.headless && !tableAllows(o.chain, table) })
	})
	if len(left) != 1 {
		return "", ""
	}
	return left[0], "the only one that is left with these chains"
}

// chainTables are the tables of users' chains, as far as rules tell; "" for a name that chains of several tables have.
type chainTables map[string]string

// tablesOfJumps follows jumps from the rules of which the table is told, by their command or because their target can stand in that one
// only: chains that jump to each other are of one table.
func tablesOfJumps(runs []*run) chainTables {
	tables := chainTables{}
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.table == "" }) {
		return tables // the table of every run is known
	}
	naming := map[string][]*run{} // the runs that are of a chain, or jump to it
	for _, r := range runs {
		for name := range r.names() {
			naming[name] = append(naming[name], r)
		}
	}
	queue, queued := slices.Clone(runs), map[*run]bool{}
	for len(queue) > 0 {
		r := queue[0]
		queue, queued[r] = queue[1:], false
		table := cmp.Or(r.table, r.needs(), tables.table(r))
		if table == "" {
			continue
		}
		for name := range r.names() {
			if !tables.learn(name, table) {
				continue
			}
			for _, other := range naming[name] {
				if !queued[other] {
					queue, queued[other] = append(queue, other), true
				}
			}
		}
	}
	return tables
}

// names returns the run's chain, and those that its rules jump to.
func (r *run) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		more := yield(r.chain)
		for i := 0; i < len(r.rules) && more; i++ {
			more = yield(r.rules[i].rule.Target.Name)
		}
	}
}

// learn notes a chain's table; more says that it was not known.
func (t chainTables) learn(chain, table string) (more bool) {
	known, ok := t[chain]
	switch {
	case !iptables.IsUserChain(chain) || iptables.IsBuiltIn(chain) || ok && (known == table || known == ""):
		return false
	case ok:
		table = ""
	}
	t[chain] = table
	return true
}

// table returns a run's, by its chain, else by those that it jumps to.
func (t chainTables) table(r *run) string {
	table := t[r.chain]
	for i := 0; i < len(r.rules) && table == ""; i++ {
		table = t[r.rules[i].rule.Target.Name]
	}
	return table
}

// needs returns the table that the targets of its rules can stand in alone; "" where they can stand in several.
func (r *run) needs() string {
	for i := range r.rules {
		if table := tableOfTarget[r.rules[i].rule.Target.Name]; table != "" {
			return table
		}
	}
	return ""
}

// merge adds what a run shows to its chain. Of two that show it whole the later one counts; one that shows it whole counts more than one
// that does not. Rules that are there already are the same; new ones go where the run has them.
func (b *builder) merge(r *run) {
	at := chainKey{r.table, r.chain}
	c := b.chains[at]
	if c == nil {
		c = &partialChain{line: r.line, whole: r.whole, unused: r.unused, last: r.line, assumed: r.why != ""}
		if !r.made {
			c.rules = r.rules
		}
		chain := b.add(at, c)
		if chain.Policy, chain.Counters = r.policy, r.passed; !r.made {
			return
		}
	}
	if r.policy != "" {
		b.chain(c).Policy, b.chain(c).Counters = r.policy, r.passed
	}
	if r.made {
		b.run(at, c, r)
		return
	}
	shared, fresh := c.compare(r.rules)
	c.parts++
	switch {
	case r.whole && (fresh > 0 || shared < len(c.rules)):
		if c.whole || fresh > 0 && len(c.rules) > shared {
			b.note(conflict, r.line, "%s is shown from line %d and differently from line %d; using the later one", r.chain, c.last, r.line)
		}
		b.replaced(c, r)
		c.rules, c.last, c.keys = r.rules, r.line, nil
	case c.whole && fresh > 0 && r.command == 0: // prose between the lines of one output
		c.rules, c.whole = append(slices.Clone(c.rules), r.rules...), false
		c.count(r.rules)
	case c.whole && fresh > 0:
		c.whole = false
		b.note(conflict, r.line, "line %d shows rules of %s that are not in its listing from line %d; using the listing", r.line, r.chain, c.last)
		for i := range r.rules {
			if r.why != "" || r.line > c.last {
				b.account.NotRead(r.rules[i].line, "not in the chain's listing")
			}
		}
		c.whole = r.line < c.last
	case c.parts > mostParts && fresh == 0:
	case shared == 0, c.parts > mostParts:
		if len(c.rules) > 0 && fresh > 0 {
			b.noteChain(assumedOrder, at.table, r.line, r.chain, "shown in parts; assuming the text's order")
		}
		c.rules = append(c.rules, r.rules...)
		c.count(r.rules)
	default:
		c.rules, c.keys = mergeRules(c.rules, r.rules), nil
	}
	c.whole = c.whole || r.whole
}

// mostInserts is how many rules a chain may have for others to be put before them.
const mostInserts = 2000

// run adds the rules of commands to a chain, in the order of the commands. One that is at the end already is not added again.
func (b *builder) run(at chainKey, c *partialChain, r *run) {
	c.whole, c.rules = false, slices.Clone(c.rules)
	c.countAll()
	for _, rule := range r.rules {
		switch {
		case rule.insert > 0 && len(c.rules) > mostInserts:
			b.noteChain(assumedOrder, at.table, rule.line, at.chain, "rules that many commands insert; assuming the text's order")
			c.rules = append(c.rules, rule)
		case rule.insert > 0:
			c.rules = slices.Insert(c.rules, min(rule.insert-1, len(c.rules)), rule)
		case c.keys[rule.key] == 0 || c.keys[rule.key] > mostParts || !slices.ContainsFunc(c.rules, rule.same):
			c.rules = append(c.rules, rule)
		}
		c.keys[rule.key]++
	}
}

// replaced states the fate of a chain's rules that a later listing does not show. If the chain's table is assumed, the two may be of
// different tables.
func (b *builder) replaced(c *partialChain, by *run) {
	met := map[string]bool{}
	for i := range by.rules {
		met[by.rules[i].key] = true
	}
	for i := range c.rules {
		switch line := c.rules[i].line; {
		case met[c.rules[i].key]:
		case c.assumed || by.why != "":
			b.account.NotRead(line, "shown differently elsewhere, perhaps of another table")
		case line > 0 && b.account.Account != nil:
			b.account.NoEffect(line, "an earlier state")
		}
	}
	c.assumed = by.why != ""
}

func (c *partialChain) count(rules []textRule) {
	for i := range rules {
		c.keys[rules[i].key]++
	}
}

// countAll counts the chain's rules by their keys, unless that is done.
func (c *partialChain) countAll() {
	if c.keys == nil {
		c.keys = map[string]int{}
		c.count(c.rules)
	}
}

// compare tells how many of the rules are in the chain already, and how many are not.
func (c *partialChain) compare(rules []textRule) (shared, fresh int) {
	c.countAll()
	met := map[string]int{}
	for i := range rules {
		key := rules[i].key
		if met[key]++; met[key] <= c.keys[key] {
			shared++
		} else {
			fresh++
		}
	}
	return shared, fresh
}

// mergeRules makes one list of two that share rules and each show some of a chain's in their order: a new one goes behind the one that it
// follows. Interfaces that only one of them shows are its.
func mergeRules(a, more []textRule) []textRule {
	out := slices.Clone(a)
	met := make([]bool, len(out)) // those that a rule of more is the same as
	next := 0
	find := func(r textRule, from int) int {
		for i := from; i < len(out); i++ {
			if !met[i] && out[i].same(r) {
				return i
			}
		}
		return -1
	}
	for _, r := range more {
		i := find(r, next)
		if i < 0 {
			i = find(r, 0)
		}
		if i < 0 {
			out, met = slices.Insert(out, next, r), slices.Insert(met, next, true)
			next++
			continue
		}
		met[i], next = true, max(next, i+1)
		if out[i].hidden && !r.hidden {
			out[i] = r
		}
	}
	return out
}

// same compares what is shown of two rules.
func (s textRule) same(r textRule) bool {
	return s.key == r.key && (s.hidden || r.hidden || s.rule.In == r.rule.In && s.rule.Out == r.rule.Out)
}

// chain returns a chain in its table.
func (b *builder) chain(c *partialChain) *iptables.Chain { return &b.tables[c.i].Chains[c.j] }

// add makes a chain, and its table.
func (b *builder) add(at chainKey, c *partialChain) *iptables.Chain {
	c.i = slices.IndexFunc(b.tables, func(t iptables.Table) bool { return t.Name == at.table })
	if c.i < 0 {
		c.i = len(b.tables)
		b.tables = append(b.tables, iptables.Table{Name: at.table})
	}
	t := &b.tables[c.i]
	c.j = len(t.Chains)
	t.Chains = append(t.Chains, iptables.Chain{Name: at.chain})
	b.chains[at] = c
	return &t.Chains[c.j]
}

// each calls f for all chains in the order of the tables.
func (b *builder) each(f func(chainKey, *partialChain)) {
	for i := range b.tables {
		for j := range b.tables[i].Chains {
			at := chainKey{b.tables[i].Name, b.tables[i].Chains[j].Name}
			f(at, b.chains[at])
		}
	}
}

// addNotes notes missing interfaces, chains that the text shows in part, and missing chains that rules jump to.
func (b *builder) addNotes() {
	b.each(func(at chainKey, c *partialChain) {
		if slices.ContainsFunc(c.rules, func(s textRule) bool { return s.hidden }) {
			b.noteChain(hiddenInterfaces, at.table, c.line, at.chain, "listed without -v, which hides interfaces; assuming every interface matches")
		}
		if !c.whole && !c.known && c.line > 0 {
			b.noteChain(missingRules, "", c.line, at.chain, "assuming only the rules in the text")
		}
		for i := range c.rules {
			to := chainKey{at.table, c.rules[i].rule.Target.Name}
			if iptables.IsUserChain(to.chain) && b.chains[to] == nil {
				b.noteChain(missingChain, at.table, c.rules[i].line, to.chain, "not in the text, so what happens there is unknown")
			}
		}
	})
}

// finish puts the rules into the tables, in the tables' usual order, and gives built-in chains a policy.
func (b *builder) finish() {
	b.each(func(at chainKey, c *partialChain) {
		chain := b.chain(c)
		chain.Partial = !c.whole && !c.known
		for i := range c.rules {
			chain.Rules = append(chain.Rules, c.rules[i].rule)
			chain.Partial = chain.Partial || c.rules[i].hidden
		}
		if slices.Contains(iptables.BuiltIn(at.table), at.chain) && chain.Policy == "" {
			chain.Policy = "ACCEPT"
			b.noteChain(assumedPolicy, "", c.line, at.table+" "+at.chain,
				"the policy is not in the text; assuming ACCEPT, the kernel's default")
		}
	})
	names := []string{iptables.Raw, iptables.Mangle, iptables.NAT, iptables.Filter}
	slices.SortStableFunc(b.tables, func(x, y iptables.Table) int { return slices.Index(names, x.Name) - slices.Index(names, y.Name) })
	if absent := slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(b.tables, func(t iptables.Table) bool { return t.Name == name })
	}); len(absent) > 0 && !b.saved.all() {
		b.note(assumedPolicy, 0, "nothing of table %s is in the text; assuming it is empty", strings.Join(absent, ", "))
	}
}
