package netfilter

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// MatchPort tests ports (xt_tcpudp.c, xt_sctp.c, xt_dccp.c, xt_multiport.c): whether one lies in one of the ranges. Packets without ports
// and fragments without their header never match, negated or not.
type MatchPort struct {
	Side     PortSide
	Not      bool
	Protocol packet.Protocol // 0 for every protocol that has ports
	Ranges   []PortRange
}

// PortSide is the port that a test looks at.
type PortSide uint8

// The sides.
const (
	SourcePort PortSide = iota
	DestinationPort
	EitherPort
)

// PortRange is [Low, High].
type PortRange struct{ Low, High uint16 }

// Eval compares the port.
func (m *MatchPort) Eval(c *Context) Verdict {
	p := c.Packet
	if p.Offset > 0 || m.Protocol != 0 && p.Protocol != m.Protocol || !p.Protocol.HasPorts() {
		return Verdict{Kind: Break}
	}
	holds := no
	if m.Side != DestinationPort {
		holds = inRanges(p.SourcePort, m.Ranges)
	}
	if m.Side != SourcePort {
		holds = holds.or(inRanges(p.DestinationPort, m.Ranges))
	}
	holds = holds.xor(m.Not)
	if holds == maybe {
		return c.askTest(Unknown, portQuestion{m, p.SourcePort, p.DestinationPort}, 0, 0)
	}
	return c.hold(holds, m)
}

// inRanges reports whether a port is in one of several ranges.
func inRanges(p packet.Port, ranges []PortRange) truth {
	low, high := p.Span()
	if low == high {
		return truthOf(covered(low, ranges) > 0)
	}
	holds := no
	for _, r := range ranges {
		holds = holds.or(compare(low, high, r.Low, r.High))
	}
	if holds != maybe {
		return holds
	}
	next := int(low)
	for next <= int(high) { // ranges beside each other can hold it all
		n := covered(uint16(next), ranges)
		if n == 0 {
			return maybe
		}
		next += n
	}
	return yes
}

// covered returns how many ports from one on lie in one range: of the range that reaches furthest.
func covered(port uint16, ranges []PortRange) int {
	n := 0
	for _, r := range ranges {
		if r.Low <= port && port <= r.High {
			n = max(n, int(r.High)-int(port)+1)
		}
	}
	return n
}

// portQuestion is a test with the ports that it is asked about.
type portQuestion struct {
	test                *MatchPort
	source, destination packet.Port
}

func (q portQuestion) String() string {
	ports := map[PortSide]string{
		SourcePort:      "source port out of " + q.source.String(),
		DestinationPort: "destination port out of " + q.destination.String(),
		EitherPort:      "ports out of " + q.source.String() + " and " + q.destination.String(),
	}
	return q.test.String() + " (" + ports[q.test.Side] + ")"
}

// maxKeyPorts bounds the ports that a test is found by.
const maxKeyPorts = 16

// Key returns the port, where the ranges hold few.
func (m *MatchPort) Key() (Key, []Value, bool) {
	if m.Not || m.Side == EitherPort {
		return Key{}, nil, false
	}
	var values []Value
	for _, r := range m.Ranges {
		if r.Low > r.High {
			continue // holds nothing
		}
		if len(values)+int(r.High-r.Low) >= maxKeyPorts {
			return Key{}, nil, false
		}
		for port := int(r.Low); port <= int(r.High); port++ {
			values = append(values, Value{Lo: uint64(port)})
		}
	}
	field := KeySourcePort
	if m.Side == DestinationPort {
		field = KeyDestinationPort
	}
	return Key{field, AllOnes}, values, true
}

func (m *MatchPort) String() string {
	var b strings.Builder
	b.WriteString([...]string{"source port ", "destination port ", "source or destination port "}[m.Side])
	b.WriteString(negated(m.Not, "", "not "))
	for i, r := range m.Ranges {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(r.Low)))
		if r.Low != r.High {
			b.WriteString("-" + strconv.Itoa(int(r.High)))
		}
	}
	return b.String()
}

// MatchTCPFlags tests the flags in Mask: those in Set are set and the others are not.
type MatchTCPFlags struct {
	Not       bool
	Mask, Set packet.TCPFlags
}

// Eval compares the flags.
func (m *MatchTCPFlags) Eval(c *Context) Verdict {
	p := c.Packet
	if p.Protocol != packet.TCP || p.Offset > 0 {
		return Verdict{Kind: Break}
	}
	return c.hold(truthOf(p.TCPFlags&m.Mask == m.Set).xor(m.Not), m)
}

func (m *MatchTCPFlags) String() string {
	if m.Mask == packet.FIN|packet.SYN|packet.RST|packet.ACK && m.Set == packet.SYN {
		return negated(m.Not, "opens a TCP connection (SYN)", "does not open a TCP connection (SYN)")
	}
	return "TCP flags " + flagNames(m.Set) + " of " + flagNames(m.Mask) + negated(m.Not, " set", " not set")
}

func flagNames(f packet.TCPFlags) string {
	var names []string
	for i, name := range [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "NONE"
	}
	return strings.Join(names, ",")
}

// MatchICMP tests the type and code of ICMP or ICMPv6 (icmp_match in net/netfilter/xt_tcpudp.c).
type MatchICMP struct {
	Not               bool
	Protocol          packet.Protocol
	Any               bool // every type and code, of ICMP
	Type              uint8
	CodeLow, CodeHigh uint8
	Name              string // as the rule has it; "" for the numbers
}

// Eval compares type and code.
func (m *MatchICMP) Eval(c *Context) Verdict {
	p := c.Packet
	if p.Protocol != m.Protocol || p.Offset > 0 {
		return Verdict{Kind: Break}
	}
	return c.hold(truthOf(m.Any || p.Type == m.Type && m.CodeLow <= p.Code && p.Code <= m.CodeHigh).xor(m.Not), m)
}

func (m *MatchICMP) String() string {
	text := m.Protocol.String() + " type " + negated(m.Not, "", "not ")
	switch {
	case m.Name != "":
		return text + m.Name
	case m.Any:
		return text + "any"
	case m.CodeLow == m.CodeHigh:
		return text + strconv.Itoa(int(m.Type)) + " code " + strconv.Itoa(int(m.CodeLow))
	}
	return text + strconv.Itoa(int(m.Type))
}
