package nftables

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// Ruleset is what "nft -j list ruleset" prints, to the letter. Newer versions of nft may write things that nothing here knows; they are
// kept.
type Ruleset struct {
	Root Node
}

// Entry is one object of the rule set: Kind is "metainfo", "table", "chain", "rule", "set", "map", "element", "flowtable", "counter", ….
type Entry struct {
	Kind string
	Body *Node
}

// Parse reads the output of "nft -j list ruleset", also that of "list table" and "list chain".
func Parse(data []byte) (*Ruleset, error) {
	root, err := parseNode(data)
	if err != nil {
		return nil, fmt.Errorf("nft rule set: %w", err)
	}
	list := root.Get("nftables")
	if list == nil || list.Kind != Array {
		return nil, errors.New(`nft rule set: no "nftables" in it; it has to be the output of "nft -j list ruleset"`)
	}
	return &Ruleset{root}, nil
}

// Entries lists the objects in their order.
func (rs *Ruleset) Entries() []Entry {
	list := rs.Root.Get("nftables")
	if list == nil {
		return nil
	}
	entries := make([]Entry, 0, len(list.Items))
	for i := range list.Items {
		if kind, body, ok := list.Items[i].only(); ok {
			entries = append(entries, Entry{kind, body})
		}
	}
	return entries
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

// Place is a rule's place in a rule set; Number counts from 1.
type Place struct {
	Family       netfilter.Family
	Table, Chain string
	Number       int
}

// Handles gives the handle of every rule: the kernel's traces name rules by them.
func (rs *Ruleset) Handles() map[Place]uint64 {
	handles := map[Place]uint64{}
	count := map[chainID]int{}
	for _, e := range rs.Entries() {
		family, ok := families[e.Body.text("family")]
		if e.Kind != "rule" || !ok {
			continue
		}
		id := e.chain()
		count[id]++
		handles[Place{family, id.name, id.chain, count[id]}] = e.Body.number("handle")
	}
	return handles
}

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
	for _, e := range rs.Entries() {
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
		case e.Kind == "rule":
			t.extensions = t.extensions || hasExtension(e.Body)
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
	return slices.ContainsFunc(expr.Items, func(n Node) bool { return n.Get("xt") != nil })
}

// Join puts tables that were lowered from iptables-save, ip6tables-save and ebtables-save in the place of those of the same family and name
// among the lowered tables of the rule set, and gives their rules the handles of the rule set. Base chains that nft does not list are left
// out: the kernel does not have them. Tables that nft does not list (those of iptables-legacy) come behind. It works in place; missing are
// the tables of Foreign for which there is none, in words.
func (rs *Ruleset) Join(lowered, saved []*netfilter.Table) (joined []*netfilter.Table, missing []string) {
	handles := rs.Handles()
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
			joined = append(joined, joinTable(saved[i], t, handles))
		}
	}
	for _, s := range saved {
		if !used[s] {
			joined = append(joined, s)
		}
	}
	return joined, missing
}

func joinTable(saved, listed *netfilter.Table, handles map[Place]uint64) *netfilter.Table {
	saved.Chains = slices.DeleteFunc(saved.Chains, func(c *netfilter.Chain) bool {
		return c.Base != nil && len(c.Rules) == 0 && listed.Chain(c.Name) == nil
	})
	for _, c := range saved.Chains {
		if c.Base != nil {
			if l := listed.Chain(c.Name); l != nil && l.Base != nil {
				c.Base.Priority = l.Base.Priority
			}
		}
		for i := range c.Rules {
			c.Rules[i].Handle = handles[Place{saved.Family, saved.Name, c.Name, i + 1}]
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
		for i := range n.Items {
			all = append(all, typeNames(&n.Items[i])...)
		}
		return all
	}
	if of := n.Get("typeof"); of != nil {
		return typesOf(of)
	}
	return nil
}
