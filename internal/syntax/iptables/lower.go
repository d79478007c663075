package iptables

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
)

// Lower gives tables their meaning: what their rules test and do, as the kernel understands them. Built-in chains are called at the
// kernel's hooks with its priorities. A jump to a chain that is not there stays, and is Undecided when it is met; what is not understood is
// Unknown. The error tells of chains that stand in a table twice.
func Lower(tables []Table, f netfilter.Family, d netfilter.Dialect) ([]*netfilter.Table, error) {
	l := lowerer{family: f}
	lowered := make([]*netfilter.Table, 0, len(tables))
	for i := range tables {
		t, err := l.table(&tables[i], d)
		if err != nil {
			return nil, err
		}
		lowered = append(lowered, t)
	}
	return lowered, nil
}

// priorities of the tables (include/uapi/linux/netfilter_ipv4.h). nat has two: for destinations, and for sources.
var priorities = map[string]int{
	Raw:        netfilter.PriorityRaw,
	Mangle:     netfilter.PriorityMangle,
	NAT:        netfilter.PriorityDNAT,
	Filter:     netfilter.PriorityFilter,
	"security": netfilter.PrioritySecurity,
}

// hooks of the built-in chains.
var hooks = map[string]netfilter.Hook{
	"PREROUTING":  netfilter.Prerouting,
	"INPUT":       netfilter.Input,
	"FORWARD":     netfilter.Forward,
	"OUTPUT":      netfilter.Output,
	"POSTROUTING": netfilter.Postrouting,
}

// builtIn are the chains that each table has from the start (kernel: valid_hooks in net/ipv4/netfilter/iptable_*.c).
var builtIn = map[string][]string{
	Raw:        {"PREROUTING", "OUTPUT"},
	Mangle:     {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	NAT:        {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	Filter:     {"INPUT", "FORWARD", "OUTPUT"},
	"security": {"INPUT", "FORWARD", "OUTPUT"},
}

// BuiltIn lists the chains that a table has from the start; nil for a table that there is none of.
func BuiltIn(table string) []string { return slices.Clone(builtIn[table]) }

// IsBuiltIn reports whether tables have a chain of that name from the start.
func IsBuiltIn(chain string) bool {
	_, ok := hooks[chain]
	return ok
}

// baseOf tells where the kernel calls a table's chain; nil for user's chains.
func baseOf(table, chain string) *netfilter.Base {
	if !slices.Contains(builtIn[table], chain) {
		return nil
	}
	b := &netfilter.Base{Type: "filter", Hook: hooks[chain], Priority: priorities[table]}
	switch {
	case table == NAT:
		b.Type = "nat"
		if b.Hook == netfilter.Input || b.Hook == netfilter.Postrouting {
			b.Priority = netfilter.PrioritySNAT
		}
	case table == Mangle && b.Hook == netfilter.Output:
		b.Type = "route" // the packet is routed again where a rule changed what routing looks at
	}
	return b
}

// NFTHook returns the line by which iptables-nft has the kernel call a built-in chain, in nft's syntax; "" for a user's chain.
func NFTHook(table, chain string) string {
	b := baseOf(table, chain)
	if b == nil {
		return ""
	}
	return fmt.Sprintf("type %s hook %s priority %d; policy accept;", b.Type, b.Hook, b.Priority)
}

// lowerer lowers one table after the other. Statements that many rules share are made once; the others come out of slabs.
type lowerer struct {
	family netfilter.Family
	chains map[string]*netfilter.Chain // of the table
	jumps  map[jump]*netfilter.JumpTo

	rule  *Rule                 // that is being lowered
	tests []netfilter.Statement // of the rule
	notes []netfilter.Statement // effects of the rule's matches

	statements slab[netfilter.Statement]
	addresses  slab[netfilter.MatchAddress]
	ports      slab[netfilter.MatchPort]
	ranges     slab[netfilter.PortRange]
	nats       slab[netfilter.Translate]
	interfaces map[nameKey]*netfilter.MatchInterface
}

type jump struct {
	name   string
	isGoto bool
}

func (l *lowerer) table(t *Table, d netfilter.Dialect) (*netfilter.Table, error) {
	n := &netfilter.Table{Family: l.family, Name: t.Name, Dialect: d, Chains: make([]*netfilter.Chain, len(t.Chains))}
	l.chains = make(map[string]*netfilter.Chain, len(t.Chains))
	l.jumps = map[jump]*netfilter.JumpTo{}
	chains := make([]netfilter.Chain, len(t.Chains))
	for i := range t.Chains {
		c := &t.Chains[i]
		if l.chains[c.Name] != nil {
			return nil, fmt.Errorf("table %s has chain %s twice", t.Name, c.Name)
		}
		chains[i] = netfilter.Chain{Table: n, Name: c.Name, Base: baseOf(t.Name, c.Name), Policy: netfilter.Return, Partial: c.Partial}
		if chains[i].Base != nil {
			chains[i].Policy = policies[c.Policy]
		}
		n.Chains[i], l.chains[c.Name] = &chains[i], &chains[i]
	}
	for i := range t.Chains {
		l.chain(&chains[i], t.Chains[i].Rules)
	}
	return n, nil
}

// policies of built-in chains. A part of a dump that does not tell the policy has the kernel's own, ACCEPT.
var policies = map[string]netfilter.VerdictKind{"": netfilter.Accept, "ACCEPT": netfilter.Accept, "DROP": netfilter.Drop}

func (l *lowerer) chain(c *netfilter.Chain, rules []Rule) {
	c.Rules = make([]netfilter.Rule, len(rules))
	for i := range rules {
		r := &rules[i]
		text := r.Text
		if text == "" {
			text = r.Spec()
		}
		statements := l.lower(r)
		c.Rules[i] = netfilter.Rule{Number: i + 1, Text: text, Comment: l.rule.Comment(), Statements: statements}
		if n := r.Counters; n != nil {
			c.Rules[i].Counters = &netfilter.Counters{Packets: n.Packets, Bytes: n.Bytes}
		}
	}
}

// lower makes a rule's statements: its tests, in the order in which the kernel makes them, then what it does. It sets l.rule to what is
// known of the rule.
func (l *lowerer) lower(r *Rule) []netfilter.Statement {
	l.tests, l.notes = l.tests[:0], l.notes[:0]
	var effect netfilter.Statement
	if r.Unknown != "" {
		known, unknown, target := splitUnknown(r.Unknown)
		l.conditions(&known)
		l.tests = append(l.tests, unknown...)
		if effect = target; effect == nil {
			effect = l.target(&known)
		}
	} else {
		l.conditions(r)
		effect = l.target(r)
	}
	if r.Doubt != "" {
		l.tests = append(l.tests, &netfilter.UnknownTest{Text: r.Doubt, Unshown: true, Existence: r.DoubtsRule})
	}
	l.tests = append(l.tests, l.notes...)
	if effect != nil {
		l.tests = append(l.tests, effect)
	}
	return l.statements.keep(l.tests)
}

// conditions lowers everything but the target.
func (l *lowerer) conditions(r *Rule) {
	l.rule = r
	l.address(true, r.Source)
	l.address(false, r.Destination)
	l.name(false, r.In)
	l.name(true, r.Out)
	if r.Protocol.Name != "" {
		l.protocol(r.Protocol)
	}
	if r.Fragment != AnyFragment {
		l.test(&netfilter.MatchFragment{Not: r.Fragment == FirstFragment})
	}
	for i := range r.Matches {
		l.match(&r.Matches[i])
	}
}

func (l *lowerer) test(s netfilter.Statement) { l.tests = append(l.tests, s) }

func (l *lowerer) note(format string, args ...any) {
	l.notes = append(l.notes, &netfilter.Note{Words: fmt.Sprintf(format, args...)})
}

func (l *lowerer) address(source bool, m AddressMatch) {
	if m.Prefix.IsValid() {
		l.test(l.addresses.add(netfilter.MatchAddress{Source: source, Not: m.Not, Prefix: m.Prefix}))
	}
}

func (l *lowerer) name(out bool, m NameMatch) {
	if m.Name == "" {
		return
	}
	key := nameKey{out, m}
	s := l.interfaces[key]
	if s == nil {
		s = netfilter.NewMatchInterface(out, m.Not, m.Name)
		if l.interfaces == nil {
			l.interfaces = map[nameKey]*netfilter.MatchInterface{}
		}
		l.interfaces[key] = s
	}
	l.test(s)
}

type nameKey struct {
	out bool
	NameMatch
}
