package excerpt

import (
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// builder makes tables of the runs of one family.
type builder struct {
	runs    []*run
	tables  []iptables.Table
	chains  map[place]*built
	saved   map[string]bool   // tables that are shown whole
	parts   map[string][]*run // by table: those whose place among their chain's rules is not shown
	assumed []assumption
}

// place is a chain of a table.
type place struct{ table, chain string }

// built is a chain as far as the runs show it.
type built struct {
	i, j  int // its table among the tables, its place in that
	line  int
	rules []shown
	whole bool
	known bool            // its contents were filled in
	keys  map[string]bool // of its rules, see shares
	last  int             // line that was read last
}

func (b *builder) build() {
	b.chooseTables()
	b.chains, b.saved, b.parts = map[place]*built{}, map[string]bool{}, map[string][]*run{}
	for _, r := range b.runs {
		b.merge(r)
		b.saved[r.table] = b.saved[r.table] || r.saved
	}
	b.tellHidden()
	b.fillIn()
	b.tellMissing()
	b.finish()
}

// chooseTables gives each run a table: by what stood around it, by its rules' targets or its chain's name, by the chains that it is
// linked with, and at last by habit.
func (b *builder) chooseTables() {
	by := map[[2]string]*lineage{}
	choose := func(r *run, table, why string) {
		r.table, r.why = table, why
		k := [2]string{table, why}
		if by[k] == nil {
			by[k] = &lineage{}
		}
		by[k].add(r.line, r.chain)
	}
	for _, r := range b.runs {
		if r.table != "" {
			if strings.Contains(r.why, "names no table") {
				choose(r, r.table, r.why)
			}
			continue
		}
		table, why := tableOfTargets(r)
		if table == "" {
			table, why = r.output.table(), "by the built-in chains around"
		}
		if table == "" {
			table, why = guessTable(r)
		}
		if table != "" {
			choose(r, table, why)
		}
	}
	for changed := true; changed; {
		changed = false
		known := b.linked()
		for _, r := range b.runs {
			if r.table != "" {
				continue
			}
			if table := linkedTable(r, known); table != "" {
				choose(r, table, "by the chains around")
				changed = true
			}
		}
	}
	for _, r := range b.runs {
		if r.table == "" {
			table := iptables.Filter
			switch {
			case r.output.hasAll(iptables.Raw):
				table = iptables.Raw
			case r.chain == "PREROUTING" || r.chain == "POSTROUTING":
				table = iptables.NAT
			}
			choose(r, table, "where such chains usually stand")
		}
	}
	for k, l := range by {
		b.assumed = append(b.assumed, l.assume(assumedTable, k[0], fmt.Sprintf("taken as table %s's, %s", k[0], k[1]))...)
	}
	slices.SortFunc(b.assumed, func(x, y assumption) int {
		if x.Line != y.Line {
			return x.Line - y.Line
		}
		return strings.Compare(x.Text, y.Text)
	})
}

// linked tells the tables of chains, and of those that are jumped to from runs whose table is known; "" for more than one.
func (b *builder) linked() map[string]string {
	known := map[string]string{}
	note := func(chain, table string) {
		if iptables.IsBuiltIn(chain) || table == "" {
			return
		}
		if was, ok := known[chain]; ok && was != table {
			table = ""
		}
		known[chain] = table
	}
	for _, r := range b.runs {
		note(r.chain, r.table)
		for i := range r.rules {
			if t := r.rules[i].rule.Target.Name; iptables.IsUserChain(t) {
				note(t, r.table)
			}
		}
	}
	return known
}

func linkedTable(r *run, known map[string]string) string {
	if table := linked(r, known); canStand(r.chain, table) {
		return table
	}
	return ""
}

// canStand tells whether a table can have a chain.
func canStand(chain, table string) bool {
	return !iptables.IsBuiltIn(chain) || slices.Contains(iptables.BuiltIn(table), chain)
}

func linked(r *run, known map[string]string) string {
	if table := known[r.chain]; table != "" {
		return table
	}
	for i := range r.rules {
		target := r.rules[i].rule.Target.Name
		if table := known[target]; table != "" {
			return table
		}
		if table, _ := tableOfChain(target); table != "" && iptables.IsUserChain(target) {
			return table
		}
	}
	return ""
}

// tableOfTarget are the targets that can stand in one table only, or that nobody uses in another.
var tableOfTarget = map[string]string{
	"DNAT": iptables.NAT, "SNAT": iptables.NAT, "MASQUERADE": iptables.NAT, "REDIRECT": iptables.NAT, "NETMAP": iptables.NAT,
	"REJECT": iptables.Filter,
	"CT":     iptables.Raw, "NOTRACK": iptables.Raw, "TRACE": iptables.Raw,
	"TPROXY": iptables.Mangle, "TTL": iptables.Mangle, "HL": iptables.Mangle, "TOS": iptables.Mangle, "DSCP": iptables.Mangle,
	"CLASSIFY": iptables.Mangle, "CHECKSUM": iptables.Mangle,
}

// chainTables are the tables of well-known chains, by prefixes of their names; the longest decides.
var chainTables = []struct{ prefix, table, whose string }{
	{"KUBE-SVC-", iptables.NAT, "kube-proxy's"}, {"KUBE-SVL-", iptables.NAT, "kube-proxy's"}, {"KUBE-SEP-", iptables.NAT, "kube-proxy's"},
	{"KUBE-FW-", iptables.NAT, "kube-proxy's"},
	{"KUBE-XLB-", iptables.NAT, "kube-proxy's"}, {"KUBE-EXT-", iptables.NAT, "kube-proxy's"}, {"KUBE-SERVICES", iptables.NAT, "kube-proxy's"},
	{"KUBE-NODEPORTS", iptables.NAT, "kube-proxy's"}, {"KUBE-MARK-", iptables.NAT, "kube-proxy's"},
	{"KUBE-POSTROUTING", iptables.NAT, "kube-proxy's"},
	{"KUBE-HOSTPORTS", iptables.NAT, "kubenet's"}, {"KUBE-HP-", iptables.NAT, "kubenet's"},
	{"KUBE-FORWARD", iptables.Filter, "kube-proxy's"}, {"KUBE-EXTERNAL-SERVICES", iptables.Filter, "kube-proxy's"},
	{"KUBE-PROXY-FIREWALL", iptables.Filter, "kube-proxy's"},
	{"KUBE-FIREWALL", iptables.Filter, "the kubelet's"},
	{"IP-MASQ-AGENT", iptables.NAT, "the ip-masq-agent's"},
	{"cali-nat-outgoing", iptables.NAT, "Calico's"}, {"cali-fip-", iptables.NAT, "Calico's"}, {"cali-POSTROUTING", iptables.NAT, "Calico's"},
	{"cali-PREROUTING", iptables.NAT, "Calico's"},
	{"cali-", iptables.Filter, "Calico's"},
	{"DOCKER-", iptables.Filter, "Docker's"}, {"CNI-FORWARD", iptables.Filter, "a CNI plugin's"},
	{"CNI-ADMIN", iptables.Filter, "a CNI plugin's"}, {"CNI-", iptables.NAT, "a CNI plugin's"},
	{"FLANNEL-POSTRTG", iptables.NAT, "flannel's"}, {"FLANNEL-FWD", iptables.Filter, "flannel's"}, {"SWIFT", iptables.NAT, "Azure CNI's"},
	{"AZURE-NPM", iptables.Filter, "Azure NPM's"},
	{"ufw", iptables.Filter, "ufw's"},
}

func tableOfChain(chain string) (table, whose string) {
	longest := 0
	for _, c := range chainTables {
		if strings.HasPrefix(chain, c.prefix) && len(c.prefix) > longest {
			table, whose, longest = c.table, c.whose, len(c.prefix)
		}
	}
	return table, whose
}

// tableOfTargets tells a run's table by its rules' targets, where its chain's name does not say the same.
func tableOfTargets(r *run) (table, why string) {
	named, _ := tableOfChain(r.chain)
	for i := range r.rules {
		target := r.rules[i].rule.Target.Name
		if table = tableOfTarget[target]; table != "" && table != named {
			return table, "by target " + target
		}
	}
	return "", ""
}

// guessTable tells a run's table by its rules' verdicts, else by its chain's name.
func guessTable(r *run) (table, why string) {
	named, whose := tableOfChain(r.chain)
	verdicts := len(r.rules) > 0
	for i := range r.rules {
		rule := &r.rules[i].rule
		if iptables.IsBuiltIn(r.chain) && rule.Target.Name == "KUBE-SERVICES" && hasMatch(rule, "conntrack") {
			return iptables.Filter, "as kube-proxy asks for new connections there only"
		}
		verdicts = verdicts && (rule.Target.Name == "ACCEPT" || rule.Target.Name == "DROP")
	}
	switch {
	case verdicts && (r.chain == "KUBE-SERVICES" || r.chain == "KUBE-NODEPORTS" || r.chain == "DOCKER"):
		return iptables.Filter, "by targets ACCEPT and DROP"
	case named != "":
		return named, "by name (" + whose + ")"
	}
	return "", ""
}

func hasMatch(r *iptables.Rule, module string) bool {
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool { return m.Module == module })
}

// merge adds what a run shows to its chain. Rules that are there already are the same; new ones go where the run has them.
func (b *builder) merge(r *run) {
	at := place{r.table, r.chain}
	c := b.chains[at]
	if c == nil {
		chain := b.add(at, &built{line: r.line, rules: r.rules, whole: r.whole, last: r.line})
		chain.Policy, chain.Counters = r.policy, r.passed
		return
	}
	if r.policy != "" {
		b.chain(c).Policy, b.chain(c).Counters = r.policy, r.passed
	}
	if !c.whole && !r.whole && len(c.rules)+len(r.rules) > 0 && !c.shares(r.rules) {
		if len(c.rules) > 0 && len(r.rules) > 0 {
			b.parts[r.table] = append(b.parts[r.table], r)
		}
		c.rules = append(c.rules, r.rules...)
		return
	}
	union := mergeRules(c.rules, r.rules)
	switch {
	case r.whole && len(union) != len(r.rules):
		b.assumed = append(b.assumed, assumption{Kind: conflict, Line: r.line, Table: r.table, Chains: []string{r.chain},
			Text: fmt.Sprintf("%s is shown from line %d and, otherwise, from line %d: the later one is taken", r.chain, c.last, r.line)})
		c.rules, c.last, c.keys = r.rules, r.line, nil
	case !r.whole && c.whole && len(union) != len(c.rules):
		b.assumed = append(b.assumed, assumption{Kind: conflict, Line: r.line, Table: r.table, Chains: []string{r.chain},
			Text: fmt.Sprintf("line %d shows rules of %s that are not in its listing from line %d: both are taken", r.line, r.chain, c.last)})
		c.rules = union
	default:
		c.rules = union
	}
	c.whole = c.whole || r.whole
}

// shares tells whether some of the rules are in the chain already. The chain's keys then have all of them.
func (c *built) shares(rules []shown) bool {
	if c.keys == nil {
		c.keys = map[string]bool{}
		for i := range c.rules {
			c.keys[c.rules[i].key()] = true
		}
	}
	shared := false
	for i := range rules {
		shared = shared || c.keys[rules[i].key()]
	}
	for i := range rules {
		c.keys[rules[i].key()] = true
	}
	return shared
}

// key is what is shown of a rule in every kind of output.
func (s shown) key() string {
	s.rule.In, s.rule.Out = iptables.NameMatch{}, iptables.NameMatch{}
	return s.rule.Spec()
}

// mergeRules makes one list of two that each show some of a chain's rules in their order. New rules go in front of the known one that they
// are followed by, else behind the last known one. Where the two have no rule in common the order is not known: the second goes behind the
// first.
func mergeRules(a, more []shown) []shown {
	out := slices.Clone(a)
	met := make([]bool, len(out)) // those that a rule of more is the same as
	var fresh []shown
	next, common := 0, false
	put := func(at int) {
		out, met = slices.Insert(out, at, fresh...), slices.Insert(met, at, make([]bool, len(fresh))...)
		for i := range fresh {
			met[at+i] = true
		}
		fresh = nil
	}
	for _, r := range more {
		i := unmet(out, met, next, r)
		if i < 0 {
			i = unmet(out, met, 0, r)
		}
		if i < 0 {
			fresh = append(fresh, r)
			continue
		}
		common = true
		n := len(fresh)
		put(i)
		i += n
		met[i] = true
		if out[i].hidden && !r.hidden {
			out[i].rule, out[i].hidden = r.rule, false
		}
		next = max(next+n, i+1)
	}
	if !common {
		next = len(out)
	}
	put(next)
	return out
}

// unmet finds a rule from a place on that no other was found to be the same as; -1 for none.
func unmet(rules []shown, met []bool, from int, r shown) int {
	for i := from; i < len(rules); i++ {
		if !met[i] && sameRule(rules[i], r) {
			return i
		}
	}
	return -1
}

// sameRule compares what is shown of two rules.
func sameRule(a, b shown) bool {
	if a.hidden || b.hidden {
		a.rule.In, a.rule.Out, b.rule.In, b.rule.Out = iptables.NameMatch{}, iptables.NameMatch{}, iptables.NameMatch{}, iptables.NameMatch{}
	}
	return a.rule.Spec() == b.rule.Spec()
}

// chain is a chain in its table.
func (b *builder) chain(c *built) *iptables.Chain { return &b.tables[c.i].Chains[c.j] }

// add makes a chain, and its table.
func (b *builder) add(at place, c *built) *iptables.Chain {
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
func (b *builder) each(f func(place, *built)) {
	for i := range b.tables {
		for j := range b.tables[i].Chains {
			at := place{b.tables[i].Name, b.tables[i].Chains[j].Name}
			f(at, b.chains[at])
		}
	}
}

// tellHidden says whose interfaces and whose order the text does not show.
func (b *builder) tellHidden() {
	by := map[string]*lineage{}
	for i := range b.tables {
		by[b.tables[i].Name] = &lineage{}
	}
	b.each(func(at place, c *built) {
		if slices.ContainsFunc(c.rules, func(s shown) bool { return s.hidden }) {
			by[at.table].add(c.line, at.chain)
		}
	})
	for i := range b.tables {
		name := b.tables[i].Name
		b.assumed = append(b.assumed, by[name].assume(hiddenInterfaces, name,
			"listed without -v, which hides interfaces: taken to hold for every interface")...)
		var apart lineage
		for _, r := range b.parts[name] {
			apart.add(r.line, r.chain)
		}
		b.assumed = append(b.assumed, apart.assume(assumedOrder, name, "shown in parts, whose order is taken as in the text")...)
	}
}

// tellMissing says which chains are not shown whole, and which are jumped to and are not there.
func (b *builder) tellMissing() {
	var part lineage
	absent := map[string]*lineage{} // by table
	b.each(func(at place, c *built) {
		if !c.whole && !c.known {
			part.add(c.line, at.chain)
		}
		for i := range c.rules {
			to := place{at.table, c.rules[i].rule.Target.Name}
			if !iptables.IsUserChain(to.chain) || b.chains[to] != nil {
				continue
			}
			if absent[to.table] == nil {
				absent[to.table] = &lineage{}
			}
			absent[to.table].add(c.rules[i].line, to.chain)
		}
	})
	b.assumed = append(b.assumed, part.assume(missingRules, "", "taken to have no rules but those in the text")...)
	for i := range b.tables {
		if l := absent[b.tables[i].Name]; l != nil {
			b.assumed = append(b.assumed, l.assume(missingChain, b.tables[i].Name, "not in the text, so it is not known what happens there")...)
		}
	}
}

// finish puts the rules into the tables, in the tables' usual order, and gives built-in chains a policy.
func (b *builder) finish() {
	var open lineage
	b.each(func(at place, c *built) {
		chain := b.chain(c)
		for i := range c.rules {
			chain.Rules = append(chain.Rules, c.rules[i].rule)
		}
		if slices.Contains(iptables.BuiltIn(at.table), at.chain) && chain.Policy == "" {
			chain.Policy = "ACCEPT"
			open.add(c.line, at.table+" "+at.chain)
		}
	})
	b.assumed = append(b.assumed, open.assume(assumedPolicy, "",
		"the policy is not in the text: taken as ACCEPT, as the kernel starts with")...)
	names := []string{iptables.Raw, iptables.Mangle, iptables.NAT, iptables.Filter}
	slices.SortStableFunc(b.tables, func(x, y iptables.Table) int { return slices.Index(names, x.Name) - slices.Index(names, y.Name) })
	var absent []string
	for _, name := range names {
		if !slices.ContainsFunc(b.tables, func(t iptables.Table) bool { return t.Name == name }) {
			absent = append(absent, name)
		}
	}
	if len(absent) > 0 {
		b.assumed = append(b.assumed, assumption{Kind: assumedPolicy,
			Text: "nothing of table " + strings.Join(absent, ", ") + " is in the text: taken as empty"})
	}
}
