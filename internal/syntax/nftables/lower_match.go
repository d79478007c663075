package nftables

import (
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

var relations = map[string]netfilter.Relation{"==": netfilter.Equal, "!=": netfilter.NotEqual, "<": netfilter.Less, ">": netfilter.Greater,
	"<=": netfilter.AtMost, ">=": netfilter.AtLeast}

// match lowers a test; nil where it is not understood.
func (l *lowerer) match(n *Node) netfilter.Statement {
	left, right, op := n.Get("left"), n.Get("right"), n.text("op")
	if left == nil || right == nil {
		return nil
	}
	types := typesOf(left)
	if right.Get("set") != nil || right.Kind == String && strings.HasPrefix(right.Text, "@") {
		set := l.set(right, types, nil)
		if set == nil || op != "==" && op != "!=" && op != "in" {
			return nil
		}
		return &netfilter.InSet{Value: l.expr(left), Not: op == "!=", Set: set, Words: setText(right, types, nil)}
	}
	values, ok := spans(right, types)
	if !ok {
		return nil
	}
	words := elementText(right, types)
	e := l.known(left)
	if e == nil {
		return nil
	}
	if op == "in" || op == "!" {
		return flagTest(e, types, values, op, words)
	}
	relation, ok := relations[op]
	if !ok {
		return nil
	}
	if fib, is := e.(*netfilter.FIB); is && right.Kind == Bool {
		fib.Presence = true
	}
	if s := l.typed(left, values, op); s != nil {
		return s
	}
	return &netfilter.Compare{Left: e, Op: relation, Right: values, Words: words}
}

// flagTest tests whether one of several flags is set ("in"), or none is ("!").
func flagTest(e netfilter.Expr, types []string, values []netfilter.Span, op, words string) netfilter.Statement {
	if len(values) != 1 || !values[0].Certain() {
		return nil
	}
	not := op == "!"
	bits := values[0].Low.Lo
	switch types[0] {
	case "ct_state":
		return &netfilter.MatchConntrack{States: &netfilter.MatchStates{Not: not, States: packet.TrackState(bits)}}
	case "ct_status":
		return &netfilter.MatchConntrack{Status: &netfilter.MatchStatus{Not: not, Status: packet.Status(bits)}}
	}
	relation := netfilter.NotEqual
	if not {
		relation = netfilter.Equal
	}
	masked := &netfilter.Bitwise{Op: netfilter.BitAnd, Left: e, Right: &netfilter.Constant{Values: values, Words: words}}
	return &netfilter.Compare{Left: masked, Op: relation, Right: []netfilter.Span{netfilter.Number(0)}, Words: "0"}
}

// typed lowers tests for which iptables has the same, so that they look the same and are found by the same index; nil for the others.
func (l *lowerer) typed(left *Node, values []netfilter.Span, op string) netfilter.Statement {
	if len(values) != 1 || op != "==" && op != "!=" {
		return nil
	}
	not, v := op == "!=", values[0]
	name, n, _ := left.singleMember()
	switch name {
	case "payload":
		return l.typedPayload(n, v, not)
	case "meta":
		return l.typedMeta(n.text("key"), v, not)
	case "ct":
		return typedConntrack(n, v, not)
	case "&":
		return typedMasked(n, v, not)
	}
	return nil
}

// ofFamily tells that the table sees packets of one family only.
func (l *lowerer) ofFamily() bool { return l.table.family == "ip" || l.table.family == "ip6" }

func (l *lowerer) typedPayload(n *Node, v netfilter.Span, not bool) netfilter.Statement {
	protocol, field := n.text("protocol"), n.text("field")
	switch protocol {
	case "ip", "ip6":
		switch {
		case not && !l.ofFamily(): // packets of another family do not match
		case field == "saddr" || field == "daddr":
			if prefix, ok := prefixOf(v, protocol == "ip6"); ok {
				return &netfilter.MatchAddress{Source: field == "saddr", Not: not, Prefix: prefix}
			}
		case (field == "protocol" || field == "nexthdr") && v.Certain() && l.ofFamily():
			return &netfilter.MatchProtocol{Not: not, Protocol: packet.Protocol(v.Low.Lo)}
		}
	case "tcp", "udp", "sctp", "dccp", "udplite":
		p, err := packet.ParseProtocol(protocol)
		if err != nil || field != "sport" && field != "dport" || v.High.Lo > 65535 {
			return nil
		}
		m := &netfilter.MatchPort{Side: netfilter.SourcePort, Not: not, Protocol: p,
			Ranges: []netfilter.PortRange{{Low: uint16(v.Low.Lo), High: uint16(v.High.Lo)}}}
		if field == "dport" {
			m.Side = netfilter.DestinationPort
		}
		return m
	case "icmp", "icmpv6":
		if field != "type" || !v.Certain() {
			return nil
		}
		p := packet.ICMP
		if protocol == "icmpv6" {
			p = packet.ICMPv6
		}
		return &netfilter.MatchICMP{Not: not, Protocol: p, Type: uint8(v.Low.Lo), CodeHigh: 255}
	}
	return nil
}

// prefixOf returns the prefix that a span of addresses is.
func prefixOf(v netfilter.Span, ipv6 bool) (netip.Prefix, bool) {
	low, high := v.Low.Address(ipv6), v.High.Address(ipv6)
	bits := 0
	a, b := low.AsSlice(), high.AsSlice()
	for bits < len(a)*8 && (a[bits/8]^b[bits/8])&(0x80>>(bits%8)) == 0 {
		bits++
	}
	p := netip.PrefixFrom(low, bits)
	return p, p.Masked().Addr() == low && packet.LastOf(p) == high
}

func (l *lowerer) typedMeta(key string, v netfilter.Span, not bool) netfilter.Statement {
	switch key {
	case "mark":
		if v.Certain() {
			return &netfilter.MatchMark{Not: not, Value: uint32(v.Low.Lo), Mask: ^uint32(0)}
		}
	case "l4proto":
		if v.Certain() && (l.ofFamily() || l.table.family == "inet") {
			return &netfilter.MatchProtocol{Not: not, Protocol: packet.Protocol(v.Low.Lo)}
		}
	case "iifname", "oifname", "iif", "oif":
		if name, ok := nameOf(v); ok {
			return netfilter.NewMatchInterface(strings.HasPrefix(key, "oif"), not, name)
		}
	}
	return nil
}

// nameOf returns the name of an interface in iptables' way, with "+" for any rest.
func nameOf(v netfilter.Span) (string, bool) {
	name := strings.TrimRight(string(bytesOf(v.Low)), "\x00")
	if name == "" || strings.HasSuffix(name, "+") || strings.Contains(name, "\x00") {
		return "", false
	}
	if v.Certain() {
		return name, true
	}
	return name + "+", netfilter.Wildcard(v.Low, netfilter.NameValue(strings.Repeat("\xff", len(name)))) == v
}

func bytesOf(v netfilter.Value) []byte {
	b := v.Address(true).As16()
	return b[:]
}

func typedConntrack(n *Node, v netfilter.Span, not bool) netfilter.Statement {
	if !v.Certain() {
		return nil
	}
	switch n.text("key") {
	case "mark":
		return &netfilter.MatchMark{Connection: true, Not: not, Value: uint32(v.Low.Lo), Mask: ^uint32(0)}
	case "state":
		// A packet has one state: equality is membership.
		if state := packet.TrackState(v.Low.Lo); state.String() != "" {
			return &netfilter.MatchConntrack{States: &netfilter.MatchStates{Not: not, States: state}}
		}
	case "direction":
		return &netfilter.MatchConntrack{Direction: &netfilter.MatchDirection{Not: not, Reply: v.Low.Lo == 1}}
	}
	return nil
}

// typedMasked lowers tests of bits of a mark, and of flags of TCP.
func typedMasked(n *Node, v netfilter.Span, not bool) netfilter.Statement {
	if len(n.elements()) != 2 || !v.Certain() {
		return nil
	}
	types := typesOf(&n.elements()[0])
	mask, ok := spans(&n.elements()[1], types)
	if !ok || len(mask) != 1 || !mask[0].Certain() {
		return nil
	}
	name, inner, _ := n.elements()[0].singleMember()
	bits := mask[0].Low.Lo
	switch key := inner.text("key"); {
	case (name == "meta" || name == "ct") && key == "mark":
		return &netfilter.MatchMark{Connection: name == "ct", Not: not, Value: uint32(v.Low.Lo), Mask: uint32(bits)}
	case name == "payload" && inner.text("protocol") == "tcp" && inner.text("field") == "flags":
		return &netfilter.MatchTCPFlags{Not: not, Mask: packet.TCPFlags(bits), Set: packet.TCPFlags(v.Low.Lo)}
	}
	return nil
}
