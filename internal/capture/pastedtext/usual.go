package pastedtext

import (
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/syntax/iptables"
)

// usualRules is what one program writes on every machine.
type usualRules struct {
	writer string
	edits  []iptables.Edit // of each table: its chains that hold the same rules everywhere, and rules in others, which lead to its chains
	forms  []iptables.Edit // of each table: other forms of such chains
}

// knownRules is what is known of rules before a text is read.
type knownRules struct {
	book  *attribution.Book
	usual []usualRules
}

func newKnownRules(book *attribution.Book) *knownRules {
	k := &knownRules{book: book}
	for _, w := range book.Writers {
		if edits := parseEdits(w.Always); len(edits) > 0 {
			k.usual = append(k.usual, usualRules{w.Name, edits, parseEdits(w.Forms)})
		}
	}
	return k
}

// parseEdits reads input for iptables-restore --noflush, as [iptables.AppendRestore] writes it.
func parseEdits(text string) []iptables.Edit {
	var edits []iptables.Edit
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			edits = append(edits, iptables.Edit{Table: name})
			continue
		}
		e := &edits[len(edits)-1]
		if c, err := iptables.ParseChain(line); err == nil {
			e.Replace = append(e.Replace, c)
			continue
		}
		command, rest, _ := strings.Cut(line, " ")
		chain, spec, _ := strings.Cut(rest, " ")
		rule, ok := iptables.ParseSpec(spec)
		if !ok {
			rule = iptables.Rule{Unknown: spec}
		}
		own := slices.IndexFunc(e.Replace, func(c iptables.Chain) bool { return c.Name == chain })
		switch {
		case command == "-I":
			e.Insert = append(e.Insert, iptables.SharedRule{Chain: chain, Rule: rule})
		case command == "-A" && own >= 0:
			e.Replace[own].Rules = append(e.Replace[own].Rules, rule)
		case command == "-A":
			e.Append = append(e.Append, iptables.SharedRule{Chain: chain, Rule: rule})
		}
	}
	return edits
}

// fillIn adds chains that hold the same rules everywhere and that the text refers to and does not have, and the jumps into programs' chains
// that the text has and leads nowhere to.
func (b *builder) fillIn() {
	led := map[chainKey]bool{}
	for at, c := range b.chains {
		led[at] = true
		for i := range c.rules {
			led[chainKey{at.table, c.rules[i].rule.Target.Name}] = true
		}
	}
	for i := range b.known.usual {
		for j := range b.known.usual[i].edits {
			b.fillTable(b.known.usual[i].writer, &b.known.usual[i].edits[j], led)
		}
	}
	for i, u := range b.known.usual {
		for j := range u.edits {
			e := &u.edits[j]
			for _, p := range e.Append { // first: what they lead out of may need a jump to it
				b.addJump(e, p, nil, true)
			}
			for _, p := range e.Insert {
				b.addJump(e, p, b.known.usual[i+1:], false)
			}
		}
	}
}

// fillTable adds a program's chains to a table that has something of it: those that are jumped to, or would be.
func (b *builder) fillTable(writer string, e *iptables.Edit, led map[chainKey]bool) {
	there := func(chain string) bool { return iptables.IsUserChain(chain) && led[chainKey{e.Table, chain}] }
	jumps := slices.Concat(e.Insert, e.Append)
	if b.saved.names[e.Table] || !slices.ContainsFunc(jumps, func(p iptables.SharedRule) bool { return there(p.Rule.Target.Name) }) &&
		!slices.ContainsFunc(e.Replace, func(c iptables.Chain) bool {
			return there(c.Name) || slices.ContainsFunc(c.Rules, func(r iptables.Rule) bool { return there(r.Target.Name) })
		}) {
		return
	}
	for _, chain := range e.Replace {
		at := chainKey{e.Table, chain.Name}
		begins := slices.ContainsFunc(jumps, func(p iptables.SharedRule) bool { return p.Rule.Target.Name == chain.Name })
		if b.chains[at] != nil || !led[at] && !begins {
			continue
		}
		c := &partialChain{known: true}
		for _, r := range chain.Rules {
			c.rules = append(c.rules, newShown(0, r, false))
			led[chainKey{e.Table, r.Target.Name}] = true
		}
		b.add(at, c)
		b.noteChain(assumedContents, e.Table, 0, chain.Name, "not in the text; assuming their usual rules ("+writer+")")
	}
}

// addJump puts a program's jump into a chain, unless the text has nothing for it to lead to, shows the chain whole, or has it lead there
// already. At the head it stands behind those of the programs that come after its own.
func (b *builder) addJump(e *iptables.Edit, p iptables.SharedRule, later []usualRules, last bool) {
	table, to := e.Table, p.Rule.Target.Name
	at := chainKey{table, p.Chain}
	c := b.chains[at]
	begins := slices.ContainsFunc(e.Insert, func(o iptables.SharedRule) bool { return o.Rule.Target.Name == p.Chain })
	if b.saved.names[table] || b.chains[chainKey{table, to}] == nil || c == nil && !slices.Contains(iptables.BuiltIn(table), p.Chain) && !begins {
		return
	}
	if c == nil {
		c = &partialChain{}
		b.add(at, c)
	}
	if c.whole || slices.ContainsFunc(c.rules, func(s textRule) bool { return s.rule.Target.Name == to }) {
		return
	}
	n := len(c.rules)
	if !last {
		n = 0
		for n < len(c.rules) && slices.ContainsFunc(later, func(u usualRules) bool { return u.leads(table, p.Chain, c.rules[n].rule.Target.Name) }) {
			n++
		}
	}
	c.rules = slices.Insert(slices.Clone(c.rules), n, newShown(0, p.Rule, false))
	b.noteChain(assumedJump, table, 0, p.Chain, "the jump from there to "+to+" is not in the text; assuming it exists")
}

// leads reports whether a program keeps a jump at the head of a chain.
func (u *usualRules) leads(table, from, to string) bool {
	return slices.ContainsFunc(u.edits, func(e iptables.Edit) bool {
		return e.Table == table && slices.ContainsFunc(e.Insert,
			func(p iptables.SharedRule) bool { return p.Chain == from && p.Rule.Target.Name == to })
	})
}

// tableOfTarget are the targets that can stand in one table only (the kernel's xt_ and ipt_ modules).
var tableOfTarget = map[string]string{
	"DNAT": iptables.NAT, "SNAT": iptables.NAT, "MASQUERADE": iptables.NAT, "REDIRECT": iptables.NAT, "NETMAP": iptables.NAT,
	"REJECT": iptables.Filter, "CT": iptables.Raw, "NOTRACK": iptables.Raw,
	"TPROXY": iptables.Mangle, "TTL": iptables.Mangle, "HL": iptables.Mangle, "TOS": iptables.Mangle, "DSCP": iptables.Mangle,
}

// table tells the table of a run of rules, by their targets, by those who write such rules, by what they jump to, else as iptables itself
// takes one that names no table; "" where it cannot be that. why is "" where it can be no other.
func (k *knownRules) table(r *run, jumps chainTables) (table, why string) {
	if table = r.needs(); table != "" {
		return table, ""
	}
	if table = r.output.table(); table != "" {
		return table, "by the built-in chains around"
	}
	for i := range r.rules {
		if table, why = k.signed(r.chain, &r.rules[i].rule); table != "" {
			return table, why
		}
	}
	if c := k.book.Chain(attribution.IP, "", r.chain); c != nil && isTable(c.Table) && !iptables.IsBuiltIn(r.chain) && c.Name[0] != '{' {
		return c.Table, "by its name"
	}
	if table = jumps.table(r); table != "" {
		return table, "by the jumps between its rules and others of that table"
	}
	if tableAllows(r.chain, iptables.Filter) {
		return iptables.Filter, namesNone
	}
	return "", ""
}

// namesNone is why rules are taken for those of table filter.
const namesNone = "which iptables takes where none is named"

// signed returns the table of a rule that is a well-known jump, or for which a known writer has a reason.
func (k *knownRules) signed(chain string, r *iptables.Rule) (table, why string) {
	spec := r.Spec()
	for _, u := range k.usual {
		for _, e := range u.edits {
			if slices.ContainsFunc(e.Insert, func(p iptables.SharedRule) bool { return p.Chain == chain && p.Rule.Spec() == spec }) {
				return e.Table, "as they are everywhere (" + u.writer + ")"
			}
		}
	}
	for _, in := range k.book.Tables(&attribution.Rule{Chain: chain, To: r.Target.Name, Text: spec, Comment: r.Comment()}) {
		if isTable(in.Table) && tableAllows(chain, in.Table) {
			return in.Table, "by what there is in it (" + in.Writer + ")"
		}
	}
	return "", ""
}

// tableAllows reports whether a table can have a chain.
func tableAllows(chain, table string) bool {
	return !iptables.IsBuiltIn(chain) || slices.Contains(iptables.BuiltIn(table), chain)
}

// placeOf tells the chain of a listed rule that stands alone, as "iptables -L | grep" shows it: that of a rule that a program writes
// everywhere, or the built-in one that its target needs.
func (k *knownRules) placeOf(r *iptables.Rule) (chain, why string) {
	same := func(known *iptables.Rule) bool {
		return r.Comment() != "" && known.Comment() == r.Comment() && known.Target.Name == r.Target.Name
	}
	for _, u := range k.usual {
		for _, e := range u.edits {
			for _, c := range e.Replace {
				if slices.ContainsFunc(c.Rules, func(known iptables.Rule) bool { return same(&known) }) {
					return c.Name, "by its comment"
				}
			}
			for _, p := range slices.Concat(e.Insert, e.Append) {
				if same(&p.Rule) {
					return p.Chain, "by its comment"
				}
			}
		}
	}
	if r.Target.Name == "MASQUERADE" || r.Target.Name == "SNAT" {
		return "POSTROUTING", "by its target"
	}
	return "", ""
}
