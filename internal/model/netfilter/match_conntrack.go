package netfilter

import (
	"fmt"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// MatchConntrack tests what conntrack knows of the packet's connection (-m conntrack, -m state; xt_conntrack.c). Parts that are nil are not
// tested. Kernel: a packet without a connection matches where the state is tested and right, whatever else stands there, and never
// otherwise.
type MatchConntrack struct {
	States    *MatchStates
	Direction *MatchDirection
	Protocol  *MatchProtocol
	Addresses []MatchFlowAddress
	Ports     []MatchFlowPort
	Status    *MatchStatus
	Expires   string // a range of seconds, which a walk does not know; "" where not tested
}

// MatchStates holds where the packet's state is one of States, or its connection is translated.
type MatchStates struct {
	Not        bool
	States     packet.TrackState // bits
	SNAT, DNAT bool
}

// MatchDirection tests the direction with respect to the connection's first packet.
type MatchDirection struct {
	Not, Reply bool
}

// FlowEnd is one of the four ends of a connection's two tuples.
type FlowEnd uint8

// The ends.
const (
	OriginalSource FlowEnd = iota
	OriginalDestination
	ReplySource
	ReplyDestination
)

func (e FlowEnd) String() string {
	return [...]string{"original source", "original destination", "reply source", "reply destination"}[e]
}

func (e FlowEnd) of(f *packet.Flow) (netip.Addr, packet.Port) {
	switch e {
	case OriginalSource:
		return f.Original.Source, f.Original.SourcePort
	case OriginalDestination:
		return f.Original.Destination, f.Original.DestinationPort
	case ReplySource:
		return f.Reply.Source, f.Reply.SourcePort
	}
	return f.Reply.Destination, f.Reply.DestinationPort
}

// MatchFlowAddress tests an address of the connection's tuples.
type MatchFlowAddress struct {
	End    FlowEnd
	Not    bool
	Prefix netip.Prefix
}

// MatchFlowPort tests a port of the connection's tuples.
type MatchFlowPort struct {
	End  FlowEnd
	Not  bool
	Port PortRange
}

// MatchStatus holds where one of the bits is set.
type MatchStatus struct {
	Not    bool
	Status packet.Status
}

// Eval looks at the packet's connection.
func (m *MatchConntrack) Eval(c *Context) Verdict {
	flow := c.connection()
	if m.States != nil && !m.States.match(c.Packet.TrackState(), flow) {
		return Verdict{Kind: Break}
	}
	if flow == nil {
		return c.hold(truthOf(m.States != nil), m)
	}
	holds := yes
	if d := m.Direction; d != nil {
		holds = holds.and(truthOf(c.Packet.Track.Reply == d.Reply).xor(d.Not))
	}
	if p := m.Protocol; p != nil {
		holds = holds.and(truthOf(flow.Original.Protocol == p.Protocol).xor(p.Not))
	}
	for _, a := range m.Addresses {
		addr, _ := a.End.of(flow)
		holds = holds.and(truthOf(a.Prefix.Contains(addr)).xor(a.Not))
	}
	for _, p := range m.Ports {
		_, port := p.End.of(flow)
		holds = holds.and(inRanges(port, []PortRange{p.Port}).xor(p.Not))
	}
	if s := m.Status; s != nil {
		holds = holds.and(truthOf(flow.Status&s.Status != 0).xor(s.Not))
	}
	if m.Expires != "" {
		holds = holds.and(maybe)
	}
	return c.hold(holds, m)
}

func (m *MatchStates) match(state packet.TrackState, flow *packet.Flow) bool {
	holds := state&m.States != 0
	if flow != nil {
		holds = holds || m.SNAT && flow.Status&packet.SNAT != 0 || m.DNAT && flow.Status&packet.DNAT != 0
	}
	return holds != m.Not
}

func (m *MatchConntrack) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if s := m.States; s != nil {
		add("connection state %s%s", negated(s.Not, "", "not "), s.names())
	}
	if d := m.Direction; d != nil {
		add("direction %s%s", negated(d.Not, "", "not "), negated(d.Reply, "original", "reply"))
	}
	if p := m.Protocol; p != nil {
		add("connection's %s", p)
	}
	for _, a := range m.Addresses {
		add("connection's %s %s %s", a.End, negated(a.Not, "in", "not in"), a.Prefix)
	}
	for _, p := range m.Ports {
		port := MatchPort{Not: p.Not, Ranges: []PortRange{p.Port}}
		add("connection's %s %s", p.End, strings.TrimPrefix(port.String(), "source "))
	}
	if s := m.Status; s != nil {
		add("connection status %s%#x", negated(s.Not, "", "not "), uint32(s.Status))
	}
	if m.Expires != "" {
		add("connection expires in %s s", m.Expires)
	}
	return strings.Join(parts, ", ")
}

func (m *MatchStates) names() string {
	var names []string
	for s := packet.Invalid; s <= packet.Untracked; s <<= 1 {
		if m.States&s != 0 {
			names = append(names, s.String())
		}
	}
	if m.SNAT {
		names = append(names, "SNAT")
	}
	if m.DNAT {
		names = append(names, "DNAT")
	}
	return strings.Join(names, ",")
}

// MatchHelper tests whether a helper expected the connection (xt_helper.c).
type MatchHelper struct {
	Not  bool
	Name string // "" for any
}

// Eval looks at the connection: only expected ones have a master with a helper; which it was is not known.
func (m *MatchHelper) Eval(c *Context) Verdict {
	flow := c.Packet.Track.Flow
	if flow == nil || flow.Status&packet.Expected == 0 {
		return c.hold(no.xor(m.Not), m)
	}
	return c.hold(maybe, m)
}

func (m *MatchHelper) String() string {
	return negated(m.Not, "connection was", "connection was not") + " expected by helper " + negated(m.Name == "", m.Name, "(any)")
}
