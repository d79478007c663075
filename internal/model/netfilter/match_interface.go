package netfilter

import (
	"strings"
)

// MatchInterface tests the interface that the packet came in by or goes out of (-i, -o). Make it with NewMatchInterface.
type MatchInterface struct {
	Out, Not bool
	Name     string // a trailing "+" stands for any rest
	name     interfaceName
}

// NewMatchInterface makes the test for a name.
func NewMatchInterface(out, not bool, name string) *MatchInterface {
	return &MatchInterface{Out: out, Not: not, Name: name, name: newInterfaceName(name)}
}

// interfaceName is a name to compare with as the kernel does: the bytes under a mask (iptables libxtables/xtables.c,
// xtables_parse_interface; kernel: ifname_compare_aligned).
type interfaceName struct{ value, mask Value }

func newInterfaceName(name string) interfaceName {
	prefix, some := strings.CutSuffix(name, "+")
	if !some {
		return interfaceName{NameValue(name), AllOnes}
	}
	return interfaceName{NameValue(prefix), NameValue(strings.Repeat("\xff", len(prefix)))}
}

func (n interfaceName) matches(name string) bool { return NameValue(name).and(n.mask) == n.value }

// Eval compares the name. Where there is no such interface at the hook, the name is empty, as in the kernel.
func (m *MatchInterface) Eval(c *Context) Verdict {
	name, unknown := c.Packet.In, c.inUnknown()
	if m.Out {
		name, unknown = c.Packet.Out, c.outUnknown()
	}
	if unknown && m.name.mask != (Value{}) {
		return m.ask(c)
	}
	return c.hold(truthOf(m.name.matches(name)).xor(m.Not), m)
}

// ask puts the question to the Chooser.
func (m *MatchInterface) ask(c *Context) Verdict {
	if c.probing {
		c.uncertain = true
		return Verdict{Kind: Continue}
	}
	q := Choice{Kind: Unknown, About: m, What: m.String(), Options: []Option{{Label: "matches"}, {Label: "does not match"}}, Interface: m}
	return c.hold(truthOf(c.put(q) == 0), m)
}

// Key returns the name's bytes.
func (m *MatchInterface) Key() (Key, []Value, bool) {
	if m.Not || m.name.mask == (Value{}) {
		return Key{}, nil, false
	}
	field := KeyIn
	if m.Out {
		field = KeyOut
	}
	return Key{field, m.name.mask}, []Value{m.name.value}, true
}

func (m *MatchInterface) String() string {
	if m.Out {
		return negated(m.Not, "goes out of ", "does not go out of ") + m.Name
	}
	return negated(m.Not, "came in by ", "did not come in by ") + m.Name
}

// MatchBridgePort tests the ports of a bridge that the packet came in by and goes out of (xt_physdev.c).
type MatchBridgePort struct {
	Kind BridgePortTest
	Not  bool
	Name string // BridgePortIn and BridgePortOut
	name interfaceName
}

// BridgePortTest is what MatchBridgePort asks.
type BridgePortTest uint8

// The questions.
const (
	BridgePortIn  BridgePortTest = iota // came in by port Name
	BridgePortOut                       // goes out of port Name
	HasBridgeIn                         // came in by a bridge port
	HasBridgeOut                        // goes out of a bridge port
	IsBridged                           // goes from port to port, not routed
)

// NewMatchBridgePort makes the test.
func NewMatchBridgePort(kind BridgePortTest, not bool, name string) *MatchBridgePort {
	return &MatchBridgePort{Kind: kind, Not: not, Name: name, name: newInterfaceName(name)}
}

// Eval looks at the ports. Packets that no bridge has seen have none.
func (m *MatchBridgePort) Eval(c *Context) Verdict {
	in, out := c.Packet.BridgeIn, c.Packet.BridgeOut
	var holds bool
	switch m.Kind {
	case BridgePortIn:
		holds = (in != "" || out != "") && m.name.matches(in)
	case BridgePortOut:
		holds = (in != "" || out != "") && m.name.matches(out)
	case HasBridgeIn:
		holds = in != ""
	case HasBridgeOut, IsBridged:
		holds = out != ""
	}
	return c.hold(truthOf(holds).xor(m.Not), m)
}

func (m *MatchBridgePort) String() string {
	switch m.Kind {
	case BridgePortIn:
		return negated(m.Not, "came in by bridge port ", "did not come in by bridge port ") + m.Name
	case BridgePortOut:
		return negated(m.Not, "goes out of bridge port ", "does not go out of bridge port ") + m.Name
	case HasBridgeIn:
		return negated(m.Not, "came in by a bridge port", "did not come in by a bridge port")
	case HasBridgeOut:
		return negated(m.Not, "goes out of a bridge port", "does not go out of a bridge port")
	}
	return negated(m.Not, "is bridged", "is not bridged")
}

// MatchLinkGroup tests the group of an interface (xt_devgroup.c).
type MatchLinkGroup struct {
	Out, Not    bool
	Group, Mask uint32
}

// Eval asks the host for the interface.
func (m *MatchLinkGroup) Eval(c *Context) Verdict {
	name := c.Packet.In
	if m.Out {
		name = c.Packet.Out
	}
	link, ok := c.link(name)
	if !ok {
		return c.hold(maybe, m)
	}
	return c.hold(truthOf(uint32(link.Group)&m.Mask == m.Group&m.Mask).xor(m.Not), m)
}

func (m *MatchLinkGroup) String() string {
	return negated(m.Out, "incoming", "outgoing") + " interface " + negated(m.Not, "in", "not in") + " group " + masked(m.Group, m.Mask)
}
