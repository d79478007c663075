package nftables

import (
	"fmt"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// Lower gives the tables their meaning. Rules have their handles, and the text that nft prints. What is not understood is Unknown. Tables
// of iptables-nft and its kin are lowered as far as JSON tells; see [Ruleset.Join].
//
// The error tells of objects without what every version of nft writes, of unknown families, and of chains of tables that are not there.
func Lower(rs *Ruleset) ([]*netfilter.Table, error) {
	l := lowerer{tables: map[tableID]*netfilter.Table{}, chains: map[chainID]*netfilter.Chain{}, dataTypes: map[*netfilter.Set][]string{},
		dormant: map[*netfilter.Table]bool{}, unsure: map[*netfilter.Table]*netfilter.UnknownTest{}}
	for _, step := range []func(Entry) error{l.frame, l.named} {
		for _, e := range rs.entries {
			if err := step(e); err != nil {
				return nil, fmt.Errorf("nft rule set: %w", err)
			}
		}
	}
	if err := l.rules(rs); err != nil {
		return nil, fmt.Errorf("nft rule set: %w", err)
	}
	return l.order, nil
}

// lowerer goes through a rule set: first tables, chains and empty sets, then the sets' elements, then rules.
type lowerer struct {
	tables map[tableID]*netfilter.Table
	order  []*netfilter.Table
	chains map[chainID]*netfilter.Chain
	// dataTypes are the datatypes of what maps that have a name give.
	dataTypes map[*netfilter.Set][]string
	dormant   map[*netfilter.Table]bool                   // whose chains the kernel does not call
	unsure    map[*netfilter.Table]*netfilter.UnknownTest // which may be dormant

	table tableID // that is being lowered
}

// frame makes tables, chains, and sets without elements.
func (l *lowerer) frame(e Entry) error {
	switch e.Kind {
	case "table":
		family, ok := families[e.Body.text("family")]
		if !ok {
			return fmt.Errorf("unknown family %q of table %q", e.Body.text("family"), e.Body.text("name"))
		}
		t := &netfilter.Table{Family: family, Name: e.Body.text("name"), Dialect: netfilter.NFTables, Sets: map[string]*netfilter.Set{}}
		l.tables[tableID{e.Body.text("family"), t.Name}] = t
		l.order = append(l.order, t)
		l.flags(t, e.Body.Get("flags"))
	case "chain":
		return l.chain(e)
	case "set", "map":
		t := l.tables[e.table()]
		if t == nil {
			return noTable(e)
		}
		s := &netfilter.Set{Name: e.Body.text("name"), Fields: typeNames(e.Body.Get("type"))}
		t.Sets[s.Name] = s
		l.dataTypes[s] = typeNames(e.Body.Get("map"))
		statements := e.Body.Get("stmt")
		t.Tracks = t.Tracks || statements != nil && tracking(statements) == netfilter.Tracks
	case "ct helper", "ct timeout", "ct expectation", "synproxy":
		t := l.tables[e.table()]
		if t == nil {
			return noTable(e)
		}
		t.Tracks = true
	}
	return nil
}

// flags notes whether a table is dormant. nft 1.0.6 prints the flags of tables from memory that it has freed.
func (l *lowerer) flags(t *netfilter.Table, flags *Node) {
	for _, flag := range flags.list() {
		switch flag.Text {
		case "dormant":
			l.dormant[t] = true
		case "owner", "persist":
		default:
			l.unsure[t] = &netfilter.UnknownTest{Unshown: true, Existence: true,
				Text: fmt.Sprintf("table %s may be dormant: nft shows unknown flags of it (%q)", t.Name, flag.Text)}
		}
	}
}

func noTable(e Entry) error {
	id := e.table()
	return fmt.Errorf("%s %q is in table %s %q, which does not exist", e.Kind, e.Body.text("name"), id.family, id.name)
}

var hooks = map[string]netfilter.Hook{"prerouting": netfilter.Prerouting, "input": netfilter.Input, "forward": netfilter.Forward,
	"output": netfilter.Output, "postrouting": netfilter.Postrouting, "ingress": netfilter.Ingress, "egress": netfilter.Egress}

func (l *lowerer) chain(e Entry) error {
	t := l.tables[e.table()]
	if t == nil {
		return noTable(e)
	}
	c := &netfilter.Chain{Table: t, Name: e.Body.text("name"), Policy: netfilter.Return}
	if name := e.Body.text("hook"); name != "" && !l.dormant[t] {
		hook, ok := hooks[name]
		if !ok {
			return fmt.Errorf("unknown hook %q of chain %q", name, c.Name)
		}
		priority, err := strconv.Atoi(e.Body.text("prio"))
		if err != nil {
			return fmt.Errorf("priority of chain %q is no number: %q", c.Name, e.Body.text("prio"))
		}
		c.Base = &netfilter.Base{Type: e.Body.text("type"), Hook: hook, Priority: priority, Devices: devices(e.Body.Get("dev"))}
		c.Policy = netfilter.Accept
		if e.Body.text("policy") == "drop" {
			c.Policy = netfilter.Drop
			if l.unsure[t] != nil {
				c.Policy = netfilter.Undecided
			}
		}
	}
	t.Chains = append(t.Chains, c)
	l.chains[chainID{e.table(), c.Name}] = c
	return nil
}

// devices returns the interfaces of a chain: one or a list; nil where nft does not say (1.0.6 and older leave them out of their JSON).
func devices(n *Node) []string {
	switch {
	case n == nil:
		return nil
	case n.Kind == String:
		return []string{n.Text}
	}
	var all []string
	for _, d := range n.list() {
		all = append(all, d.Text)
	}
	return all
}

// named fills the sets and maps that have a name.
func (l *lowerer) named(e Entry) error {
	if e.Kind != "set" && e.Kind != "map" && e.Kind != "element" {
		return nil
	}
	l.table = e.table()
	t := l.tables[l.table]
	if t == nil {
		return noTable(e)
	}
	s := t.Sets[e.Body.text("name")]
	if s == nil {
		return fmt.Errorf("elements of set %q, which does not exist", e.Body.text("name"))
	}
	l.fill(s, e.Body.Get("elem"), l.dataTypes[s])
	return nil
}

// fill adds elements to a set, which give data of these types. One that is not understood may hold any key.
func (l *lowerer) fill(s *netfilter.Set, elements *Node, data []string) {
	items := elements.list()
	if s.Elements == nil && len(items) > 0 {
		s.Elements = make([]netfilter.Element, 0, len(items))
	}
	for i := range items {
		s.Elements = append(s.Elements, l.element(s, &items[i], data))
	}
}

func (l *lowerer) element(s *netfilter.Set, n *Node, dataTypes []string) netfilter.Element {
	key, data := n, (*Node)(nil)
	if n.Kind == Array && len(n.elements()) == 2 {
		key, data = &n.elements()[0], &n.elements()[1]
	}
	var e netfilter.Element
	if inner := key.Get("elem"); inner != nil {
		e.Comment = inner.text("comment")
		if v := inner.Get("val"); v != nil {
			key = v
		}
	}
	known := key.Kind == String && key.Text == "*"
	if !known {
		e.Key, known = spans(key, s.Fields)
	}
	if !known {
		e.Unsure = true
		e.Key = make([]netfilter.Span, len(s.Fields))
		for i := range e.Key {
			e.Key[i] = netfilter.Span{High: netfilter.AllOnes}
		}
	}
	if data != nil {
		e.Data = l.data(data, dataTypes)
	}
	return e
}

// data lowers what a map gives.
func (l *lowerer) data(n *Node, types []string) netfilter.Data {
	d := netfilter.Data{Words: strings.TrimSpace(dataText(n, types))}
	if name, inner, ok := n.singleMember(); ok {
		if v, ok := l.verdict(name, inner); ok {
			d.Verdict = &v
			return d
		}
	}
	if values, ok := spans(n, types); ok {
		d.Values = values
	}
	return d
}

var verdicts = map[string]netfilter.VerdictKind{"accept": netfilter.Accept, "drop": netfilter.Drop, "return": netfilter.Return,
	"continue": netfilter.Continue, "jump": netfilter.Jump, "goto": netfilter.Goto}

// verdict lowers {"accept": null}, {"jump": {"target": "chain"}} and their like.
func (l *lowerer) verdict(name string, n *Node) (netfilter.Verdict, bool) {
	kind, ok := verdicts[name]
	if !ok {
		return netfilter.Verdict{}, false
	}
	v := netfilter.Verdict{Kind: kind}
	if kind == netfilter.Jump || kind == netfilter.Goto {
		target := n.text("target")
		if v.Chain = l.chains[chainID{l.table, target}]; v.Chain == nil {
			v = netfilter.Verdict{Kind: netfilter.Undecided, Detail: "chain " + target + " does not exist"}
		}
	}
	return v, true
}

// set gives the set that an expression names ("@name") or holds ({"set": [...]}); nil where it is not there or not understood.
func (l *lowerer) set(n *Node, key, data []string) *netfilter.Set {
	if n.Kind == String && strings.HasPrefix(n.Text, "@") {
		t := l.tables[l.table]
		if t == nil {
			return nil
		}
		return t.Sets[n.Text[1:]]
	}
	elements := n.Get("set")
	if elements == nil || len(key) == 0 {
		return nil
	}
	s := &netfilter.Set{Fields: key}
	l.fill(s, elements, data)
	return s
}

// rules reads and lowers all rules, several at once: none changes what another needs.
func (l *lowerer) rules(rs *Ruleset) error {
	rules, chains := make([]netfilter.Rule, len(rs.rules)), make([]*netfilter.Chain, len(rs.rules))
	err := parallel(len(rules), func(from, to int) error {
		own := *l
		var d decoder
		for i := from; i < to; i++ {
			e, err := d.rule(rs.text, rs.rules[i])
			if err != nil {
				return err
			}
			if e.Body == nil {
				continue
			}
			rules[i] = own.rule(e)
			if chains[i] = l.chains[e.chain()]; chains[i] == nil {
				return fmt.Errorf("rule %d is in chain %q, which does not exist", rules[i].Handle, e.Body.text("chain"))
			}
		}
		return nil
	})
	for from, to := 0, 0; from < len(rules); from = to {
		c := chains[from]
		for to < len(rules) && chains[to] == c { // nft lists those of a chain together
			to++
		}
		if c != nil {
			c.Rules = append(c.Rules, rules[from:to]...)
		}
	}
	for _, c := range l.chains {
		for i := range c.Rules {
			c.Rules[i].Number = i + 1
		}
	}
	return err
}

// rule lowers one rule, but for its number.
func (l *lowerer) rule(e Entry) netfilter.Rule {
	l.table = e.table()
	r := netfilter.Rule{Handle: e.Body.number("handle"), Text: ruleText(e.Body), Comment: e.Body.text("comment")}
	statements := e.Body.Get("expr").list()
	r.Statements = make([]netfilter.Statement, 0, len(statements))
	if unsure := l.unsure[l.tables[l.table]]; unsure != nil {
		r.Statements = append(r.Statements, unsure)
	}
	for i := range statements {
		r.Statements = append(r.Statements, l.implied(&statements[i])...)
		r.Statements = append(r.Statements, l.statement(&statements[i]))
	}
	return r
}
