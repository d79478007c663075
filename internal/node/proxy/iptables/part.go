package iptables

import (
	"reflect"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// chainKey names a chain of a table.
type chainKey struct{ table, chain string }

// shared are the chains that hold rules of many service ports, and after them rules of their own; those that others lead to come first.
// The order of the ports in them is the order of the ports' names.
var shared = [...]chainKey{
	{iptables.Filter, chainServices}, {iptables.Filter, chainExternal}, {iptables.Filter, chainNodePorts}, {iptables.Filter, chainProxyFW},
	{iptables.NAT, chainNodePorts}, {iptables.NAT, chainServices},
}

// chainText is a chain with its rules as iptables-save prints them, each on a line.
type chainText struct {
	chainKey
	rules string
}

// part is what one service port needs of the rule set.
type part struct {
	port   service.Port
	chains []chainText // that are the port's alone
	shared [len(shared)]string
	rules  map[string]int // by table
	// Without endpoints on this node, where the policy is Local.
	noLocalInternal, noLocalExternal bool
}

// portKey names a service port among those of its family.
type portKey struct {
	service.Name
	service.Protocol
}

func (p *part) key() portKey { return portKey{p.port.Name, p.port.Protocol} }

// state is a rule set as text, in parts, so that a change costs what it changes.
type state struct {
	config proxy.Config
	large  bool
	frame  []chainText // what is there without any service port
	jumps  []Jump
	parts  []*part // sorted as the ports are
	byKey  map[portKey]*part
}

// newState makes the state for service ports, with the parts of the one before, which may be nil, where they are the same.
func newState(c proxy.Config, ports []service.Port, before *state) (*state, error) {
	a, err := versionOf(c.Rules)
	if err != nil {
		return nil, err
	}
	s := &state{config: c, large: isLarge(ports), parts: make([]*part, 0, len(ports)), byKey: make(map[portKey]*part, len(ports))}
	set, err := Generate(c, nil)
	if err != nil {
		return nil, err
	}
	s.frame, s.jumps = render(set), set.Jumps
	usable := before != nil && before.large == s.large && reflect.DeepEqual(before.config, c)
	for i := range ports {
		var p *part
		if usable {
			p = before.byKey[portKey{ports[i].Name, ports[i].Protocol}]
		}
		if p == nil || !service.SameRules(&p.port, &ports[i]) {
			p = newPart(newBuilder(c, a, s.large), &ports[i])
		}
		s.parts = append(s.parts, p)
		s.byKey[p.key()] = p
	}
	return s, nil
}

func newPart(b *builder, port *service.Port) *part {
	b.port(port)
	p := &part{port: *port, rules: map[string]int{}, noLocalInternal: b.set.NoLocalInternal > 0, noLocalExternal: b.set.NoLocalExternal > 0}
	for _, c := range render(&RuleSet{Tables: []iptables.Table{b.filter.Table, b.nat.Table}}) {
		p.rules[c.table] += lines(c.rules)
		if i := slices.Index(shared[:], c.chainKey); i >= 0 {
			p.shared[i] = c.rules
		} else {
			p.chains = append(p.chains, c)
		}
	}
	slices.SortStableFunc(p.chains, func(a, b chainText) int { return rank(a.chain) - rank(b.chain) })
	return p
}

// rank orders chains so that those that others lead to come first; -1 is for those that were not made for a service port or an endpoint.
func rank(chain string) int {
	return slices.IndexFunc([]string{prefixEndpoint, prefixCluster, prefixLocal, prefixXLB, prefixExternal, prefixFirewall},
		func(prefix string) bool { return strings.HasPrefix(chain, prefix) })
}

func render(set *RuleSet) (chains []chainText) {
	var b []byte
	for i := range set.Tables {
		t := &set.Tables[i]
		for j := range t.Chains {
			b = iptables.AppendRules(b[:0], &t.Chains[j])
			chains = append(chains, chainText{chainKey{t.Name, t.Chains[j].Name}, string(b)})
		}
	}
	return chains
}

// sharedRules returns all rules of a shared chain, by its index, but for those of the frame.
func (s *state) sharedRules(i int) string {
	var b strings.Builder
	for _, p := range s.parts {
		b.WriteString(p.shared[i])
	}
	return b.String()
}

// each calls f for every chain, those that others lead to first.
func (s *state) each(f func(chainText)) {
	for _, c := range s.frame {
		if !slices.Contains(shared[:], c.chainKey) {
			f(c)
		}
	}
	for r := range rank(prefixFirewall) + 1 {
		for _, p := range s.parts {
			for _, c := range p.chains {
				if rank(c.chain) == r {
					f(c)
				}
			}
		}
	}
	for i, at := range shared {
		if frame := slices.IndexFunc(s.frame, func(c chainText) bool { return c.chainKey == at }); frame >= 0 {
			f(chainText{at, s.sharedRules(i) + s.frame[frame].rules})
		}
	}
}

// count counts rules, by table.
func (s *state) count() map[string]int {
	n := map[string]int{}
	for _, c := range s.frame {
		n[c.table] += lines(c.rules)
	}
	for _, p := range s.parts {
		for table, rules := range p.rules {
			n[table] += rules
		}
	}
	return n
}

func lines(text string) int { return strings.Count(text, "\n") }
