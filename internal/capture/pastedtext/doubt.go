package pastedtext

import (
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/syntax/iptables"
)

// restore gives listed rules back the tests that their listing lost: old programs leave out those that they do not know. A chain is known
// by a form in which a program writes it, with the same targets.
func (b *builder) restore() {
	b.each(func(at chainKey, c *partialChain) {
		form := b.known.form(at, c.rules)
		for i := range c.rules {
			if form == nil || !c.rules[i].hidden || !isBare(&c.rules[i].rule) || isBare(&form.Rules[i]) {
				continue
			}
			c.rules[i] = newShown(c.rules[i].line, form.Rules[i], false)
			b.note(assumedContents, c.rules[i].line, "%s %d: listed without a test, which such rules have; assuming %s", at.chain, i+1,
				form.Rules[i].Spec())
		}
	})
}

// form finds a program's form of a chain by the targets of its rules; nil where there is none.
func (k *knownRules) form(at chainKey, rules []textRule) *iptables.Chain {
	for i := range k.usual {
		for _, e := range slices.Concat(k.usual[i].edits, k.usual[i].forms) {
			for l := range e.Replace {
				c := &e.Replace[l]
				if e.Table == at.table && c.Name == at.chain && slices.EqualFunc(c.Rules, rules, func(r iptables.Rule, s textRule) bool {
					return r.Target.Name == s.rule.Target.Name
				}) {
					return c
				}
			}
		}
	}
	return nil
}

// isBare tells of a rule without a test: only a comment.
func isBare(r *iptables.Rule) bool {
	tested := slices.ContainsFunc(r.Matches, func(m iptables.Match) bool { return m.Module != "comment" })
	return r.Unknown == "" && !tested && !r.Source.Prefix.IsValid() && !r.Destination.Prefix.IsValid() && r.In.Name == "" &&
		r.Out.Name == "" && r.Protocol.Name == "" && r.Fragment == iptables.AnyFragment
}

// doubtDead marks a listed rule as doubtful if it would make all rules below it dead. Its listing hides interfaces, so the rule is assumed
// to have some: users do not write dead rules.
func (b *builder) doubtDead() {
	b.each(func(_ chainKey, c *partialChain) {
		for i := range c.rules {
			if r := &c.rules[i]; r.hidden && i < len(c.rules)-1 && isBare(&r.rule) && iptables.Decides(r.rule.Target.Name) {
				r.rule.Doubt = "its listing, without -v, does not show its interfaces"
			}
		}
	})
}

// mostUnreached is how many chains of a table that nothing shown leads to the walk asks about: each may double its outcomes.
const mostUnreached = 3

// doubtUnreached adds jumps from built-in chains that are not shown whole to the chains that no shown rule leads to. Each jump carries a
// question. The kernel keeps no useless chain, and users list none.
func (b *builder) doubtUnreached() {
	led := map[chainKey]bool{}
	b.each(func(at chainKey, c *partialChain) {
		for i := range c.rules {
			led[chainKey{at.table, c.rules[i].rule.Target.Name}] = true
		}
	})
	unreached := map[string][]chainKey{}
	b.each(func(at chainKey, c *partialChain) {
		if b.saved.names[at.table] || led[at] || iptables.IsBuiltIn(at.chain) || len(c.rules) == 0 || c.unused {
			return
		}
		known := b.known.book.Chain(attribution.IP, at.table, at.chain)
		if known == nil || !strings.Contains(known.Name, "{") { // else it is one of many, to which no built-in chain leads
			unreached[at.table] = append(unreached[at.table], at)
		}
	})
	for table, chains := range unreached {
		if len(chains) > mostUnreached {
			b.notReached(table, chains)
			continue
		}
		for _, name := range iptables.BuiltIn(table) {
			in := chainKey{table, name}
			c := b.chains[in]
			if c != nil && c.whole {
				continue
			}
			for _, to := range chains {
				if !b.callable(to, name, map[chainKey]bool{}) {
					continue
				}
				if c == nil {
					c = &partialChain{}
					b.add(in, c)
				}
				jump := iptables.Rule{Target: iptables.Jump(to.chain), Doubt: "the text does not show whether there is such a rule",
					DoubtsRule: true}
				c.rules = append(slices.Clone(c.rules), newShown(0, jump, false))
			}
		}
	}
}

// notReached marks the rules of chains as not read, unless the text shows that no built-in chain leads to them.
func (b *builder) notReached(table string, chains []chainKey) {
	if !slices.ContainsFunc(iptables.BuiltIn(table), func(name string) bool { c := b.chains[chainKey{table, name}]; return c == nil || !c.whole }) {
		return
	}
	for _, at := range chains {
		for _, r := range b.chains[at].rules {
			b.account.NotRead(r.line, "nothing that is shown leads to its chain")
		}
	}
}

// hooksOf are the built-in chains from which a target of table nat can be reached (the kernel's xt_ modules: .hooks). The kernel refuses
// rules that let others reach it.
var hooksOf = map[string][]string{
	"MASQUERADE": {"POSTROUTING"}, "SNAT": {"POSTROUTING", "INPUT"}, "DNAT": {"PREROUTING", "OUTPUT"}, "REDIRECT": {"PREROUTING", "OUTPUT"},
}

// callable reports whether a built-in chain can lead to a chain.
func (b *builder) callable(at chainKey, hook string, seen map[chainKey]bool) bool {
	c := b.chains[at]
	if c == nil || seen[at] {
		return true
	}
	seen[at] = true
	return !slices.ContainsFunc(c.rules, func(r textRule) bool {
		name := r.rule.Target.Name
		if hooks := hooksOf[name]; hooks != nil && !slices.Contains(hooks, hook) {
			return true
		}
		return !b.callable(chainKey{at.table, name}, hook, seen)
	})
}
