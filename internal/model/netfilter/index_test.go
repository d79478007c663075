package netfilter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"packetwalk.dev/internal/model/packet"
)

// scriptedChooser answers from a seed, and notes what it was asked.
type scriptedChooser struct {
	random *rand.Rand
	asked  []string
}

func newScripted(seed uint64) *scriptedChooser {
	return &scriptedChooser{random: rand.New(rand.NewPCG(seed, 7))}
}

func (s *scriptedChooser) Choose(c Choice) int {
	var weights uint64
	for _, o := range c.Options {
		weights += o.Weight
	}
	s.asked = append(s.asked, fmt.Sprintf("%s %s %s /%d", c.Kind, c.Chain.Ref(c.Rule), c.What, weights))
	return s.random.IntN(len(c.Options))
}

// world answers what rules ask of the machine: for some things unknown.
type world struct{}

func (world) Recent(string) (RecentList, bool) { return nil, false }
func (world) IPSet(name string) (*Set, bool)   { return nil, false }
func (world) AddressType(a netip.Addr, _ string) (AddressType, bool) {
	last := a.As4()[3]
	return AddressType(1 + last%2), last%3 != 0
}
func (world) Route(RouteQuery) (RouteAnswer, bool) { return RouteAnswer{}, false }
func (world) Link(string) (Link, bool)             { return Link{}, false }

// maker makes random rulesets and packets out of few values, so that they meet.
type maker struct {
	*rand.Rand
	table *Table
}

func (m *maker) address() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(m.IntN(2)), byte(m.IntN(6))})
}
func (m *maker) not() bool    { return m.IntN(6) == 0 }
func (m *maker) port() uint16 { return uint16(80 + m.IntN(6)) }

func (m *maker) test() Statement {
	switch m.IntN(14) {
	case 0, 1, 2:
		return &MatchAddress{Source: m.IntN(3) == 0, Not: m.not(),
			Prefix: netip.PrefixFrom(m.address(), []int{32, 32, 32, 24, 8, 0}[m.IntN(6)]).Masked()}
	case 3, 4:
		r := PortRange{m.port(), 0}
		r.High = r.Low + uint16(m.IntN(2)*m.IntN(3))
		return &MatchPort{Side: PortSide(m.IntN(3)), Not: m.not(), Protocol: []packet.Protocol{0, packet.TCP}[m.IntN(2)],
			Ranges: []PortRange{r, {m.port(), 90}}[:1+m.IntN(2)]}
	case 5:
		return NewMatchInterface(m.IntN(2) == 0, m.not(), []string{"eth0", "eth1", "veth+", "+", "eth+"}[m.IntN(5)])
	case 6, 7:
		return &MatchMark{Connection: m.IntN(4) == 0, Not: m.not(), Value: uint32(m.IntN(4)), Mask: []uint32{3, 1, ^uint32(0)}[m.IntN(3)]}
	case 8, 9:
		return &MatchProtocol{Not: m.not(), Protocol: []packet.Protocol{packet.TCP, packet.UDP}[m.IntN(2)]}
	case 10:
		return &MatchRandom{Not: m.not(), Probability: uint32(m.IntN(3)) << 30}
	case 11:
		return &UnknownTest{Text: "-m odd"}
	case 12:
		return &MatchAddressType{Not: m.not(), Types: []AddressType{LocalAddress}}
	}
	return &MatchRange{Low: m.address(), High: m.address(), Not: m.not()}
}

func (m *maker) effect() Statement {
	switch m.IntN(16) {
	case 0, 1, 2:
		return &SetMark{Connection: m.IntN(3) == 0, Value: uint32(m.IntN(4)), Mask: uint32(m.IntN(4))}
	case 3, 4, 5, 6, 7:
		j := &JumpTo{Name: "missing", Goto: m.IntN(4) == 0}
		if m.IntN(12) > 0 {
			j.Chain = m.table.Chains[m.IntN(len(m.table.Chains))]
			j.Name = j.Chain.Name
		}
		return j
	case 8:
		return &Decision{Verdict: Verdict{Kind: Return}}
	case 9:
		return &Decision{Verdict: Verdict{Kind: []VerdictKind{Accept, Drop}[m.IntN(2)]}}
	case 10:
		return &Translate{packet.Translation{Low: m.address()}}
	case 11:
		return &CopyMark{Restore: m.IntN(2) == 0, Packet: 3, Flow: 3}
	}
	return &Note{Words: "log"}
}

func (m *maker) rule() Rule {
	var r Rule
	for range m.IntN(4) {
		r.Statements = append(r.Statements, m.test())
	}
	if m.IntN(10) > 0 {
		r.Statements = append(r.Statements, m.effect())
	}
	if m.IntN(8) == 0 { // as nft can have them: a test behind an effect
		r.Statements = append(r.Statements, m.test(), m.effect())
	}
	return r
}

func (m *maker) ruleset() *Ruleset {
	m.table = &Table{Name: "t", Dialect: []Dialect{NFTables, IPTablesLegacy}[m.IntN(2)]}
	for i := range 2 + m.IntN(4) {
		m.table.Chains = append(m.table.Chains, &Chain{Table: m.table, Name: fmt.Sprint("c", i), Policy: Return})
	}
	base := m.table.Chains[0]
	base.Base, base.Policy = &Base{Type: "nat", Hook: Prerouting}, []VerdictKind{Accept, Drop}[m.IntN(2)]
	for _, c := range m.table.Chains {
		n := m.IntN(12)
		if m.IntN(2) == 0 {
			n = m.IntN(60)
		}
		for i := range n {
			r := m.rule()
			r.Number = i + 1
			c.Rules = append(c.Rules, r)
		}
	}
	rs := &Ruleset{Tables: []*Table{m.table}}
	rs.Index()
	return rs
}

func (m *maker) packet() packet.Packet {
	p := packet.Packet{Tuple: packet.Tuple{
		Protocol: []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP}[m.IntN(3)], Source: m.address(), Destination: m.address(),
		SourcePort: packet.Exactly(m.port()), DestinationPort: packet.Exactly(m.port()),
	}}
	if m.IntN(4) == 0 {
		p.SourcePort = packet.OneOf(70, 82, 75)
	}
	if m.IntN(8) == 0 {
		p.DestinationPort = packet.OneOf(82, 100, 85)
	}
	if m.IntN(10) == 0 {
		p.Offset = 8
	}
	p.In, p.Mark = []string{"", "eth0", "veth1"}[m.IntN(3)], uint32(m.IntN(4))
	if m.IntN(2) == 0 {
		p.Track.Flow = &packet.Flow{Mark: uint32(m.IntN(4))}
	}
	return p
}

// evaluationResult is all that an evaluation gives.
type evaluationResult struct {
	Verdict Verdict
	Err     string
	Visits  []Visit
	Packet  packet.Packet
	Flow    packet.Flow
	Asked   []string
}

func evaluate(base *Chain, p packet.Packet, seed uint64, every bool, run func(*Chain, *Context) (Verdict, error)) evaluationResult {
	if p.Track.Flow != nil {
		flow := *p.Track.Flow
		p.Track.Flow = &flow
	}
	chooser := newScripted(seed)
	c := &Context{Packet: &p, Hook: base.Base.Hook, Host: world{}, Chooser: chooser, EveryRule: every}
	c.Translate = func(t packet.Translation) Verdict {
		p.Destination = t.Low
		return Verdict{Kind: Accept}
	}
	v, err := run(base, c)
	o := evaluationResult{Verdict: v, Visits: c.Visits, Packet: p, Asked: chooser.asked}
	if err != nil {
		o.Err = err.Error()
	}
	if p.Track.Flow != nil {
		o.Flow, o.Packet.Track.Flow = *p.Track.Flow, nil
	}
	return o
}

// TestIndexedIsLinear holds the two evaluations together: equal verdicts, trails, questions, changes and errors.
func TestIndexedIsLinear(t *testing.T) {
	defer func(before int) { maxJumps = before }(maxJumps)
	maxJumps = 200
	indexed, runaways, applied := 0, 0, 0
	for seed := range uint64(1500) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 1))}
		base := m.ruleset().Tables[0].Chains[0]
		for _, c := range m.table.Chains {
			if c.index.root != nil {
				indexed++
			}
		}
		for range 4 {
			p := m.packet()
			answers := m.Uint64()
			fast := evaluate(base, p, answers, false, (*Chain).Run)
			slow := evaluate(base, p, answers, false, (*Chain).RunLinear)
			if !reflect.DeepEqual(fast, slow) {
				t.Fatalf("seed %d, packet %v:\nindexed %s\nlinear  %s", seed, p.Tuple, show(fast), show(slow))
			}
			every := evaluate(base, p, answers, true, (*Chain).Run)
			var kept []Visit
			for _, v := range every.Visits {
				if v.Verdict.Kind != Break || len(v.Changes) > 0 {
					kept = append(kept, v)
				}
			}
			if every.Visits = kept; !reflect.DeepEqual(every, slow) {
				t.Fatalf("seed %d, packet %v:\nevery rule %s\nlinear     %s", seed, p.Tuple, show(every), show(slow))
			}
			if fast.Err != "" {
				runaways++
			}
			applied += len(fast.Visits)
		}
	}
	if indexed < 1000 || runaways < 10 || applied < 10000 {
		t.Errorf("too little was tried: %d indexed chains, %d runaways, %d visits", indexed, runaways, applied)
	}
}

func show(o evaluationResult) string {
	text := fmt.Sprint(o.Verdict.Kind, " ", o.Verdict.Detail, " ", o.Err)
	for _, v := range o.Visits {
		text += fmt.Sprint("\n  ", v.Chain.Ref(v.Rule), " ", v.Verdict.Kind, " ", v.Changes, " ", v.Choices)
	}
	for _, q := range o.Asked {
		text += "\n  asked " + q
	}
	return text
}

// chainsOf makes a ruleset out of rules by chain; the first is the base chain.
func chainsOf(d Dialect, names []string, rules func(chain func(string) *Chain) map[string][]Rule) (*Ruleset, *Chain) {
	table := &Table{Name: "t", Dialect: d}
	for _, name := range names {
		table.Chains = append(table.Chains, &Chain{Table: table, Name: name, Policy: Return})
	}
	table.Chains[0].Base, table.Chains[0].Policy = &Base{Type: "filter", Hook: Input}, Drop
	for name, list := range rules(table.Chain) {
		for i := range list {
			list[i].Number = i + 1
		}
		table.Chain(name).Rules = list
	}
	rs := &Ruleset{Tables: []*Table{table}}
	rs.Index()
	return rs, table.Chains[0]
}

func rule(s ...Statement) Rule { return Rule{Statements: s} }

func decide(k VerdictKind) Statement { return &Decision{Verdict: Verdict{Kind: k}} }

// refs returns the rules of visits.
func refs(visits []Visit) []string {
	var names []string
	for _, v := range visits {
		names = append(names, v.Chain.Ref(v.Rule))
	}
	return names
}

func TestJumpsGotosAndReturns(t *testing.T) {
	none := &MatchProtocol{Protocol: packet.SCTP}
	for _, test := range []struct {
		name    string
		rules   func(chain func(string) *Chain) map[string][]Rule
		want    []string
		verdict VerdictKind
	}{
		{"the end of a chain returns", func(c func(string) *Chain) map[string][]Rule {
			return map[string][]Rule{"A": {rule(&JumpTo{Chain: c("B")}), rule(decide(Accept))}, "B": {rule(none, decide(Drop))}}
		}, []string{"t A 1", "t A 2"}, Accept},
		{"a return at the top is the policy", func(c func(string) *Chain) map[string][]Rule {
			return map[string][]Rule{"A": {rule(decide(Return)), rule(decide(Accept))}}
		}, []string{"t A 1", "t A policy"}, Drop},
		{"a goto returns to the caller of its chain", func(c func(string) *Chain) map[string][]Rule {
			return map[string][]Rule{"A": {rule(&JumpTo{Chain: c("B")}), rule(decide(Accept))},
				"B": {rule(&JumpTo{Chain: c("C"), Goto: true}), rule(decide(Drop))}, "C": {rule(decide(Return))}}
		}, []string{"t A 1", "t B 1", "t C 1", "t A 2"}, Accept},
		{"a goto from the top ends in the policy", func(c func(string) *Chain) map[string][]Rule {
			return map[string][]Rule{"A": {rule(&JumpTo{Chain: c("B"), Goto: true}), rule(decide(Accept))}}
		}, []string{"t A 1", "t A policy"}, Drop},
		{"a verdict in a chain ends all", func(c func(string) *Chain) map[string][]Rule {
			return map[string][]Rule{"A": {rule(&JumpTo{Chain: c("B")}), rule(decide(Drop))}, "B": {rule(decide(Accept))}}
		}, []string{"t A 1", "t B 1"}, Accept},
	} {
		_, base := chainsOf(NFTables, []string{"A", "B", "C"}, test.rules)
		c := &Context{Packet: &packet.Packet{}, Hook: Input}
		v, err := base.Run(c)
		if got := refs(c.Visits); err != nil || v.Kind != test.verdict || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %s %v %v, want %s %v", test.name, v.Kind, got, err, test.verdict, test.want)
		}
	}
}

// answer is a Chooser that always takes the same option.
type answer int

func (a answer) Choose(Choice) int { return int(a) }

// TestJumpToUnknownChain: a chain whose rules are not known returns or decides. A goto returns to the caller.
func TestJumpToUnknownChain(t *testing.T) {
	for _, test := range []struct {
		name   string
		isGoto bool
		answer answer
		want   VerdictKind
		at     []string
	}{
		{"a jump returns", false, 0, Drop, []string{"t A 1", "t A 2"}},
		{"a jump decides", false, 1, Undecided, []string{"t A 1"}},
		{"a goto returns", true, 0, Accept, []string{"t A 1", "t A policy"}},
		{"a goto decides", true, 1, Undecided, []string{"t A 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, base := chainsOf(NFTables, []string{"A"}, func(func(string) *Chain) map[string][]Rule {
				return map[string][]Rule{"A": {rule(&JumpTo{Name: "X", Goto: test.isGoto}), rule(decide(Drop))}}
			})
			base.Policy = Accept
			c := &Context{Packet: &packet.Packet{}, Hook: Input, Chooser: test.answer}
			v, err := base.Run(c)
			if got := refs(c.Visits); err != nil || v.Kind != test.want || !reflect.DeepEqual(got, test.at) {
				t.Errorf("%s %v %v, want %s %v", v.Kind, got, err, test.want, test.at)
			}
		})
	}
}

func TestRunawayJumpsEnd(t *testing.T) {
	for name, isGoto := range map[string]bool{"jump": false, "goto": true} {
		_, base := chainsOf(NFTables, []string{"A", "B"}, func(c func(string) *Chain) map[string][]Rule {
			return map[string][]Rule{"A": {rule(&JumpTo{Chain: c("B"), Goto: isGoto})}, "B": {rule(&JumpTo{Chain: c("B"), Goto: isGoto})}}
		})
		c := &Context{Packet: &packet.Packet{}, Hook: Input}
		if _, err := base.Run(c); !errors.Is(err, ErrRunaway) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Sixteen jumps are nf_tables' limit; legacy tables have room for each of their chains.
	for _, test := range []struct {
		dialect Dialect
		deep    int
		ok      bool
	}{{NFTables, 16, true}, {NFTables, 17, false}, {IPTablesNFT, 17, false}, {IPTablesLegacy, 40, true}} {
		var names []string
		for i := range test.deep + 1 {
			names = append(names, fmt.Sprint("c", i))
		}
		_, base := chainsOf(test.dialect, names, func(c func(string) *Chain) map[string][]Rule {
			rules := map[string][]Rule{}
			for i := range test.deep {
				rules[names[i]] = []Rule{rule(&JumpTo{Chain: c(names[i+1])})}
			}
			return rules
		})
		c := &Context{Packet: &packet.Packet{}, Hook: Input}
		if _, err := base.Run(c); (err == nil) != test.ok {
			t.Errorf("%s, %d jumps: %v", test.dialect, test.deep, err)
		}
	}
}

// countingChooser counts questions and gives always the same answer.
type countingChooser struct {
	answer int
	asked  []Choice
}

func (c *countingChooser) Choose(q Choice) int {
	c.asked = append(c.asked, q)
	return c.answer
}

func TestOnlyWhatMattersIsAsked(t *testing.T) {
	unknown := &UnknownTest{Text: "-m odd"}
	miss, hit := &MatchProtocol{Protocol: packet.SCTP}, &MatchProtocol{}
	half := &MatchRandom{Probability: 1 << 30}
	for _, test := range []struct {
		name   string
		rule   Rule
		answer int
		asked  int
		want   VerdictKind
	}{
		{"what certainly fails asks nothing", rule(unknown, miss, decide(Accept)), 0, 0, Drop},
		{"what may hold asks", rule(unknown, hit, decide(Accept)), 0, 1, Accept},
		{"the answer can be no", rule(unknown, hit, decide(Accept)), 1, 1, Drop},
		{"two questions", rule(unknown, half, decide(Accept)), 0, 2, Accept},
		{"a miss ends the questions", rule(unknown, half, decide(Accept)), 1, 1, Drop},
		{"a log is not worth a question", rule(unknown, &Note{}), 0, 0, Drop},
		{"nor is a rule that does nothing", rule(half), 0, 0, Drop},
	} {
		_, base := chainsOf(NFTables, []string{"A"}, func(func(string) *Chain) map[string][]Rule { return map[string][]Rule{"A": {test.rule}} })
		chooser := &countingChooser{answer: test.answer}
		c := &Context{Packet: &packet.Packet{}, Hook: Input, Chooser: chooser}
		v, err := base.Run(c)
		if err != nil || v.Kind != test.want || len(chooser.asked) != test.asked {
			t.Errorf("%s: %s, %d questions, %v", test.name, v.Kind, len(chooser.asked), err)
		}
		if test.want == Accept && c.Visits[0].Choices != test.asked {
			t.Errorf("%s: %d choices noted", test.name, c.Visits[0].Choices)
		}
	}
}

func TestEveryRule(t *testing.T) {
	miss := &MatchProtocol{Protocol: packet.SCTP}
	_, base := chainsOf(NFTables, []string{"A"}, func(func(string) *Chain) map[string][]Rule {
		return map[string][]Rule{"A": {rule(miss, decide(Accept)), rule(&SetMark{Value: 1, Mask: 1}), rule(&UnknownTest{}, &Note{})}}
	})
	c := &Context{Packet: &packet.Packet{}, Hook: Input, EveryRule: true}
	if _, err := base.Run(c); err != nil {
		t.Fatal(err)
	}
	if len(c.Visits) != 4 || c.Visits[0].Failed != Statement(miss) || c.Visits[2].Verdict.Kind != Break || c.Visits[2].Failed != nil {
		t.Errorf("visits %+v", c.Visits)
	}
	want := []packet.Change{{Field: "mark", From: "0x0", To: "0x1"}}
	if !reflect.DeepEqual(c.Visits[1].Changes, want) {
		t.Errorf("changes %v", c.Visits[1].Changes)
	}
}

func TestHooksAreInTheKernelsOrder(t *testing.T) {
	table := func(f Family, name string, priorities ...int) *Table {
		t := &Table{Family: f, Name: name}
		for i, p := range priorities {
			t.Chains = append(t.Chains, &Chain{Table: t, Name: fmt.Sprint(name, i), Base: &Base{Hook: Output, Priority: p}})
		}
		return t
	}
	rs := &Ruleset{Tables: []*Table{table(IPv4, "a", 5, -1), table(Inet, "m", 5), table(IPv4, "b", 5), table(IPv6, "s", 0)}}
	rs.Index()
	for family, want := range map[Family]string{IPv4: "[a1 b0 m0 a0]", IPv6: "[s0 m0]", Bridge: "[]"} {
		names := []string{}
		for _, c := range rs.Hook(family, Output) {
			names = append(names, c.Name)
		}
		if fmt.Sprint(names) != want {
			t.Errorf("%s: %v, want %s", family, names, want)
		}
	}
	if rs.Table(Inet, "m") == nil || rs.Table(IPv4, "m") != nil || rs.Tables[0].Chain("a1") == nil || rs.Tables[0].Chain("x") != nil {
		t.Error("tables and chains are not found by their names")
	}
}
