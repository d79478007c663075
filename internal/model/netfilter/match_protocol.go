package netfilter

import (
	"fmt"
	"math"

	"packetwalk.dev/internal/model/packet"
)

// MatchProtocol tests the protocol above IP (-p).
type MatchProtocol struct {
	Not      bool
	Protocol packet.Protocol
}

// Eval compares the number.
func (m *MatchProtocol) Eval(c *Context) Verdict {
	return c.hold(truthOf(c.Packet.Protocol == m.Protocol).xor(m.Not), m)
}

// Key returns the number.
func (m *MatchProtocol) Key() (Key, []Value, bool) {
	return Key{KeyProtocol, AllOnes}, []Value{{Lo: uint64(m.Protocol)}}, !m.Not
}

func (m *MatchProtocol) String() string {
	return negated(m.Not, "protocol ", "protocol is not ") + m.Protocol.String()
}

// MatchFragment tests for second and further fragments (-f).
type MatchFragment struct {
	Not bool
}

// Eval looks at the fragment's offset.
func (m *MatchFragment) Eval(c *Context) Verdict {
	return c.hold(truthOf(c.Packet.Offset > 0).xor(m.Not), m)
}

func (m *MatchFragment) String() string {
	return negated(m.Not, "is a further fragment", "is whole or a first fragment")
}

// MatchLength tests the length of the IP packet in bytes (xt_length.c).
type MatchLength struct {
	Not       bool
	Low, High int
}

// Eval compares the length.
func (m *MatchLength) Eval(c *Context) Verdict {
	if c.Packet.Length == 0 {
		return c.hold(maybe, m)
	}
	return c.hold(compare(c.Packet.Length, c.Packet.Length, m.Low, m.High).xor(m.Not), m)
}

func (m *MatchLength) String() string {
	return fmt.Sprintf("length %s%d-%d bytes", negated(m.Not, "", "not "), m.Low, m.High)
}

// MatchTTL tests the TTL or hop limit (xt_hl.c): whether it lies in [Low, High].
type MatchTTL struct {
	Not       bool
	Low, High uint8
}

// Eval compares the TTL.
func (m *MatchTTL) Eval(c *Context) Verdict {
	low, high := c.Packet.TTL, c.Packet.TTL
	if c.Packet.SomeTTL {
		low, high = 0, math.MaxUint8
	}
	return c.hold(compare(low, high, m.Low, m.High).xor(m.Not), m)
}

func (m *MatchTTL) String() string {
	if m.Low == m.High {
		return fmt.Sprintf("TTL %s%d", negated(m.Not, "", "not "), m.Low)
	}
	return fmt.Sprintf("TTL %s%d-%d", negated(m.Not, "", "not "), m.Low, m.High)
}

// MatchTOS tests bits of the type of service (xt_dscp.c, which has tos as well).
type MatchTOS struct {
	Not         bool
	Value, Mask uint8
}

// Eval compares the bits.
func (m *MatchTOS) Eval(c *Context) Verdict {
	return c.hold(truthOf(c.Packet.TOS&m.Mask == m.Value).xor(m.Not), m)
}

func (m *MatchTOS) String() string {
	if m.Mask == 0xfc {
		return fmt.Sprintf("DSCP %s%#02x", negated(m.Not, "", "not "), m.Value>>2)
	}
	return fmt.Sprintf("TOS %s%#02x/%#02x", negated(m.Not, "", "not "), m.Value, m.Mask)
}

// MatchCast tests the cast of the frame: unicast, broadcast, multicast or another host's (xt_pkttype.c).
type MatchCast struct {
	Not  bool
	Cast packet.Cast
}

// Eval compares the kind.
func (m *MatchCast) Eval(c *Context) Verdict {
	return c.hold(truthOf(c.Packet.Cast == m.Cast).xor(m.Not), m)
}

func (m *MatchCast) String() string {
	names := map[packet.Cast]string{packet.Unicast: "for this machine", packet.BroadcastFrame: "broadcast", packet.MulticastFrame: "multicast",
		packet.OtherHost: "for another machine"}
	return "frame is " + negated(m.Not, "", "not ") + names[m.Cast]
}

// MatchMAC tests the source of the frame (xt_mac.c).
type MatchMAC struct {
	Not bool
	MAC packet.MAC
}

// Eval compares the address. Frames of the loopback interface are no Ethernet, and never match.
func (m *MatchMAC) Eval(c *Context) Verdict {
	switch {
	case c.Packet.In == "lo", c.Packet.In == "" && !c.inUnknown():
		return Verdict{Kind: Break}
	case c.Packet.Frame.Source.IsZero():
		return c.hold(maybe, m)
	}
	return c.hold(truthOf(c.Packet.Frame.Source == m.MAC).xor(m.Not), m)
}

func (m *MatchMAC) String() string {
	return "frame's source " + negated(m.Not, "is ", "is not ") + m.MAC.String()
}
