package armview

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// table is the fabric's table as it is written. Its chains have the names that vnet's plan gives them, and its rules their comments: by
// both they are signed ([vnet.Signed]).
type table struct {
	*netfilter.Table
	byName map[string]*netfilter.Chain
}

func newTable() table {
	return table{&netfilter.Table{Family: netfilter.IPv4, Name: "azure", Dialect: netfilter.NFTables}, map[string]*netfilter.Chain{}}
}

// chain gives the chain of a name, and whether it is a new one.
func (t *table) chain(name string) (*netfilter.Chain, bool) {
	if c := t.byName[name]; c != nil {
		return c, false
	}
	c := &netfilter.Chain{Table: t.Table, Name: name, Policy: netfilter.Return}
	t.byName[name] = c
	t.Chains = append(t.Chains, c)
	return c, true
}

// base makes a base chain.
func (t *table) base(name, typ string, hook netfilter.Hook, priority int, policy netfilter.VerdictKind) *netfilter.Chain {
	c, _ := t.chain(name)
	c.Base, c.Policy = &netfilter.Base{Type: typ, Hook: hook, Priority: priority}, policy
	return c
}

// add puts a rule at the end of a chain; why is its comment.
func add(c *netfilter.Chain, why string, statements ...netfilter.Statement) {
	var words []string
	for _, s := range statements {
		words = append(words, s.String())
	}
	c.Rules = append(c.Rules, netfilter.Rule{
		Number: len(c.Rules) + 1, Statements: statements, Comment: why, Text: fmt.Sprintf("%s comment %q", strings.Join(words, "; "), why),
	})
}

// with adds tests in front of a rule's other statements.
func with(tests []netfilter.Statement, more ...netfilter.Statement) []netfilter.Statement {
	return slices.Concat(tests, more)
}

func in(link string) netfilter.Statement  { return netfilter.NewMatchInterface(false, false, link) }
func out(link string) netfilter.Statement { return netfilter.NewMatchInterface(true, false, link) }
func notOut(link string) netfilter.Statement {
	return netfilter.NewMatchInterface(true, true, link)
}

// hopTable has the rule of a lab's fabric that gives back the hop that forwarding takes off the TTL: Azure's network takes none.
func hopTable() *netfilter.Table {
	t := newTable()
	t.Name = "mangle"
	add(t.base("PREROUTING", "filter", netfilter.Prerouting, netfilter.PriorityMangle-1, netfilter.Accept), vnet.NoHop,
		&netfilter.SetTTL{Delta: 1})
	return t.Table
}

// decide returns a verdict.
func decide(k netfilter.VerdictKind) netfilter.Statement {
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: k}}
}

// unknown returns a statement that ends the walk as undecided, and says why.
func unknown(why string, values ...any) netfilter.Statement {
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Undecided, Detail: fmt.Sprintf(why, values...)}}
}

// maybe returns a test whose result is unknown, so that the walk goes both ways.
func maybe(what string, values ...any) netfilter.Statement {
	return &netfilter.UnknownTest{Text: fmt.Sprintf(what, values...)}
}

// to goes to a chain, or jumps there and comes back.
func to(c *netfilter.Chain, back bool) netfilter.Statement {
	return &netfilter.JumpTo{Name: c.Name, Chain: c, Goto: !back}
}

func setMark(n int, connection bool) netfilter.Statement {
	return &netfilter.SetMark{Connection: connection, Value: uint32(n), Mask: ^uint32(0)}
}

func protocol(p packet.Protocol) netfilter.Statement { return &netfilter.MatchProtocol{Protocol: p} }

func ports(source bool, ranges ...netfilter.PortRange) netfilter.Statement {
	side := netfilter.DestinationPort
	if source {
		side = netfilter.SourcePort
	}
	return &netfilter.MatchPort{Side: side, Ranges: ranges}
}

// addresses tests whether the source or destination is in one of the prefixes, or not.
func addresses(source, not bool, prefixes ...netip.Prefix) netfilter.Statement {
	prefixes = widest(prefixes)
	if len(prefixes) == 1 {
		return &netfilter.MatchAddress{Source: source, Not: not, Prefix: prefixes[0]}
	}
	name := "daddr"
	if source {
		name = "saddr"
	}
	field, _ := netfilter.Payload("ip", name)
	set := &netfilter.Set{Fields: []string{"ipv4_addr"}}
	var words []string
	for _, p := range prefixes {
		low := netfilter.AddressValue(p.Addr())
		set.Elements = append(set.Elements, netfilter.Element{Key: []netfilter.Span{{Low: low, High: netfilter.AddressValue(vnet.LastOf(p))}}})
		words = append(words, p.String())
	}
	return &netfilter.InSet{Value: field, Not: not, Set: set, Words: "{ " + strings.Join(words, ", ") + " }"}
}

// widest sorts prefixes and leaves out those that another one holds.
func widest(prefixes []netip.Prefix) []netip.Prefix {
	prefixes = slices.Clone(prefixes)
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if d := a.Addr().Compare(b.Addr()); d != 0 {
			return d
		}
		return a.Bits() - b.Bits()
	})
	var all []netip.Prefix
	for _, p := range prefixes {
		if k := len(all) - 1; k < 0 || !all[k].Contains(p.Addr()) {
			all = append(all, p)
		}
	}
	return all
}

// choose goes to one of several chains, which Azure picks by the flow in a way that is its own.
func choose(words string, chains []*netfilter.Chain) netfilter.Statement {
	if len(chains) == 1 {
		return to(chains[0], false)
	}
	set := &netfilter.Set{Fields: []string{"integer"}}
	for i, c := range chains {
		v := netfilter.Verdict{Kind: netfilter.Goto, Chain: c}
		set.Elements = append(set.Elements, netfilter.Element{
			Key: []netfilter.Span{netfilter.Number(uint64(i))}, Data: netfilter.Data{Verdict: &v, Words: "goto " + c.Name},
		})
	}
	g := &netfilter.GeneratedNumber{Kind: netfilter.Hash, Mod: uint32(len(chains)), Words: words}
	return &netfilter.VerdictMap{Key: g, Set: set, Words: "{ … }"}
}

// states tests what conntrack says of the packet.
func states(s packet.TrackState) netfilter.Statement {
	return &netfilter.MatchConntrack{States: &netfilter.MatchStates{States: s}}
}

// transport tests for TCP or UDP, or for neither.
func notTransport() []netfilter.Statement {
	return []netfilter.Statement{
		&netfilter.MatchProtocol{Not: true, Protocol: packet.TCP}, &netfilter.MatchProtocol{Not: true, Protocol: packet.UDP},
	}
}
