package nftables

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// Ruleset is what "nft -j list ruleset" prints. Newer versions of nft may write things that nothing here knows; they are kept. Rules, of
// which there may be very many, stay text until they are lowered.
type Ruleset struct {
	text    string
	entries []Entry // but rules
	rules   []extent
}

// Entry is one object of the rule set: Kind is "metainfo", "table", "chain", "rule", "set", "map", "element", "flowtable", "counter", ….
type Entry struct {
	Kind string
	Body *Node
}

// Parse reads the output of "nft -j list ruleset", also that of "list table" and "list chain". Errors within rules are told by Lower.
func Parse(data []byte) (*Ruleset, error) {
	rs := &Ruleset{text: string(data)}
	d := decoder{text: rs.text, apart: "nftables"}
	root, err := d.value(0)
	err = d.ended(err)
	if list := root.Get(d.apart); err == nil && (list == nil || list.Kind != Array) {
		err = errors.New(`no "nftables" in it; it has to be the output of "nft -j list ruleset"`)
	}
	var others []extent
	for _, item := range d.items {
		if isRule(rs.text[item.from:item.to]) {
			rs.rules = append(rs.rules, item)
		} else {
			others = append(others, item)
		}
	}
	if err == nil {
		rs.entries, err = entries(rs.text, others)
	}
	if err != nil {
		return nil, fmt.Errorf("nft rule set: %w", err)
	}
	return rs, nil
}

// isRule reports whether an object is a rule, as far as its beginning says.
func isRule(object string) bool {
	rest, ok := strings.CutPrefix(strings.TrimLeft(object, " \t\r\n"), "{")
	rest, is := strings.CutPrefix(strings.TrimLeft(rest, " \t\r\n"), `"rule"`)
	return ok && is && strings.HasPrefix(strings.TrimLeft(rest, " \t\r\n"), ":")
}

// entries reads objects; what is no entry is left out.
func entries(text string, at []extent) ([]Entry, error) {
	all := make([]Entry, len(at))
	err := parallel(len(at), func(from, to int) error {
		var d decoder
		for i := from; i < to; i++ {
			var err error
			if all[i], err = d.entry(text, at[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return slices.DeleteFunc(all, func(e Entry) bool { return e.Body == nil }), err
}

// entry reads an object; one that is no entry has no body.
func (d *decoder) entry(text string, at extent) (e Entry, err error) {
	d.text, d.at, d.open = text[:at.to], at.from, d.open[:0]
	n, err := d.value(2)
	if err := d.ended(err); err != nil {
		return e, err
	}
	if kind, _, ok := n.singleMember(); ok {
		e = Entry{kind, &n.Items[0]}
	}
	return e, nil
}

// rule reads a rule, which is there until the next one is read.
func (d *decoder) rule(text string, at extent) (Entry, error) {
	d.room = d.room[:0]
	return d.entry(text, at)
}

// tableID names a table.
type tableID struct{ family, name string }

func (e Entry) table() tableID { return tableID{e.Body.text("family"), e.Body.text("table")} }

// chainID names a chain.
type chainID struct {
	tableID
	chain string
}

func (e Entry) chain() chainID { return chainID{e.table(), e.Body.text("chain")} }

var families = map[string]netfilter.Family{"ip": netfilter.IPv4, "ip6": netfilter.IPv6, "inet": netfilter.Inet, "bridge": netfilter.Bridge,
	"arp": netfilter.ARP, "netdev": netfilter.Netdev}

// xtables are the tables that iptables-nft, ip6tables-nft, ebtables-nft and arptables-nft make.
var xtables = map[string][]string{
	"ip":     {"raw", "mangle", "nat", "filter", "security"},
	"ip6":    {"raw", "mangle", "nat", "filter", "security"},
	"bridge": {"filter", "nat", "broute"},
	"arp":    {"filter"},
}

// builtIn are the names of the base chains of those tables.
var builtIn = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "BROUTING"}

// Foreign lists the tables that were made by iptables-nft and its kin. Their rules cannot be understood from JSON, which says of their
// extensions no more than the name; [Ruleset.Join] puts those of iptables-save and ebtables-save in their place. A table counts as such by
// its name, when every base chain has one of iptables' names, or when it has rules with such extensions.
func (rs *Ruleset) Foreign() []*netfilter.Table {
	type table struct {
		tableID
		base, others int
		extensions   bool
	}
	tables := map[tableID]*table{}
	var order []*table
	for _, e := range rs.entries {
		switch t := tables[e.table()]; {
		case e.Kind == "table":
			id := tableID{e.Body.text("family"), e.Body.text("name")}
			if slices.Contains(xtables[id.family], id.name) {
				tables[id] = &table{tableID: id}
				order = append(order, tables[id])
			}
		case t == nil:
		case e.Kind == "chain" && e.Body.text("hook") != "":
			if slices.Contains(builtIn, e.Body.text("name")) {
				t.base++
			} else {
				t.others++
			}
		}
	}
	var d decoder
	for _, at := range rs.rules {
		if len(tables) == 0 || !strings.Contains(rs.text[at.from:at.to], `"xt"`) {
			continue
		}
		if e, err := d.rule(rs.text, at); err == nil && e.Body != nil && tables[e.table()] != nil && hasExtension(e.Body) {
			tables[e.table()].extensions = true
		}
	}
	var foreign []*netfilter.Table
	for _, t := range order {
		if !t.extensions && (t.base == 0 || t.others > 0) {
			continue
		}
		dialect := netfilter.IPTablesNFT
		if t.family == "bridge" {
			dialect = netfilter.EBTables
		}
		foreign = append(foreign, &netfilter.Table{Family: families[t.family], Name: t.name, Dialect: dialect})
	}
	return foreign
}

func hasExtension(rule *Node) bool {
	expr := rule.Get("expr")
	if expr == nil {
		return false
	}
	return slices.ContainsFunc(expr.elements(), func(n Node) bool { return n.Get("xt") != nil })
}

// Join puts tables that were lowered from iptables-save, ip6tables-save and ebtables-save in the place of those of the same family and name
// among the lowered tables of the rule set, and gives their rules the handles of the rule set. Base chains that nft does not list are left
// out: the kernel does not have them. Tables that nft does not list (those of iptables-legacy) come behind. It works in place; missing are
// the tables of Foreign for which there is none, in words.
func (rs *Ruleset) Join(lowered, saved []*netfilter.Table) (joined []*netfilter.Table, missing []string) {
	foreign := rs.Foreign()
	used := map[*netfilter.Table]bool{}
	for _, t := range lowered {
		i := slices.IndexFunc(saved, func(s *netfilter.Table) bool {
			return s.Family == t.Family && s.Name == t.Name && s.Dialect != netfilter.IPTablesLegacy && !used[s]
		})
		isForeign := slices.ContainsFunc(foreign, func(f *netfilter.Table) bool { return f.Family == t.Family && f.Name == t.Name })
		switch {
		case !isForeign:
			joined = append(joined, t)
		case i < 0:
			joined = append(joined, t)
			missing = append(missing, t.Family.String()+" "+t.Name)
		default:
			used[saved[i]] = true
			joined = append(joined, joinTable(saved[i], t))
		}
	}
	for _, s := range saved {
		if !used[s] {
			joined = append(joined, s)
		}
	}
	return joined, missing
}

func joinTable(saved, listed *netfilter.Table) *netfilter.Table {
	saved.Chains = slices.DeleteFunc(saved.Chains, func(c *netfilter.Chain) bool {
		return c.Base != nil && len(c.Rules) == 0 && listed.Chain(c.Name) == nil
	})
	for _, c := range saved.Chains {
		l := listed.Chain(c.Name)
		if l == nil {
			continue
		}
		switch {
		case l.Base == nil: // of a dormant table
			c.Base, c.Policy = nil, netfilter.Return
		case c.Base != nil:
			c.Base.Priority = l.Base.Priority
		}
		for i := range min(len(c.Rules), len(l.Rules)) {
			c.Rules[i].Handle = l.Rules[i].Handle
		}
	}
	return saved
}

// typeNames splits the type of a set or map: "ipv4_addr", ["ifname", "ipv4_addr"], "ipv4_addr . inet_service", or what newer versions write
// for typeof.
func typeNames(n *Node) []string {
	switch {
	case n == nil:
		return nil
	case n.Kind == String:
		return strings.Split(n.Text, " . ")
	case n.Kind == Array:
		var all []string
		for i := range n.elements() {
			all = append(all, typeNames(&n.elements()[i])...)
		}
		return all
	}
	if of := n.Get("typeof"); of != nil {
		return typesOf(of)
	}
	return nil
}
