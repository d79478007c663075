package nftables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// nat lowers snat, dnat, masquerade and redirect.
func (l *lowerer) nat(name string, n *Node) netfilter.Statement {
	t := packet.Translation{Source: name == "snat" || name == "masquerade"}
	if name == "masquerade" || name == "redirect" {
		t.Chosen = name
	}
	flags, typeFlags := n.Get("flags"), n.Get("type_flags")
	for _, f := range append(flags.list(), typeFlags.list()...) {
		switch f.Text {
		case "random":
			t.Random = true
		case "fully-random":
			t.FullyRandom = true
		case "persistent":
			t.Persistent = true
		case "netmap", "prefix":
			t.Netmap = true
		case "interval", "concat":
		default:
			return nil
		}
	}
	s := &netfilter.TranslateTo{Translation: t, EtherType: etherTypes[n.text("family")]}
	if a := n.Get("addr"); a != nil {
		if s.Address, s.WithPort = l.natAddress(n, a); s.Address == nil {
			return nil
		}
	}
	if p := n.Get("port"); p != nil {
		s.Port = l.operand(p, []string{"inet_service"})
	}
	return constantNAT(s)
}

// natAddress lowers the address of a translation, and reports whether it gives the port too.
func (l *lowerer) natAddress(n, a *Node) (netfilter.Expr, bool) {
	datatype := "ipv4_addr"
	if n.text("family") == "ip6" || l.table.family == "ip6" || a.Kind == String && strings.Contains(a.Text, ":") {
		datatype = "ipv6_addr"
	}
	name, inner, ok := a.singleMember()
	if !ok || name != "map" {
		return l.operand(a, []string{datatype}), false
	}
	types := []string{datatype}
	if data := inner.Get("data"); data != nil {
		if elements := data.Get("set"); elements == nil {
			types = l.dataTypes[l.set(data, nil, nil)]
		} else if givesPorts(elements) {
			types = append(types, "inet_service")
		}
	}
	m := l.mapped(inner, types)
	if m == nil {
		return nil, false
	}
	return m, len(types) == 2
}

// givesPorts reports whether the elements of a map give an address and a port.
func givesPorts(elements *Node) bool {
	for _, pair := range elements.list() {
		if pair.Kind == Array && len(pair.elements()) == 2 {
			return pair.elements()[1].Get("concat") != nil
		}
	}
	return false
}

// constantNAT makes the plain statement where nothing is computed.
func constantNAT(s *netfilter.TranslateTo) netfilter.Statement {
	t := s.Translation
	if s.Address != nil {
		k, ok := s.Address.(*netfilter.Constant)
		if !ok || len(k.Values) != 1 {
			return s
		}
		ipv6 := strings.Contains(k.Words, ":")
		t.Low, t.High = k.Values[0].Low.Address(ipv6), k.Values[0].High.Address(ipv6)
	}
	if s.Port != nil {
		k, ok := s.Port.(*netfilter.Constant)
		if !ok || len(k.Values) != 1 {
			return s
		}
		t.PortLow, t.PortHigh = uint16(k.Values[0].Low.Lo), uint16(k.Values[0].High.Lo)
	}
	return &netfilter.Translate{Translation: t}
}

// rejections are iptables' names of nft's codes, which Verdict.Detail has: for icmp, icmpv6, and both sides of icmpx.
var rejections = map[string]map[string]string{
	"icmp": {"net-unreachable": "icmp-net-unreachable", "host-unreachable": "icmp-host-unreachable",
		"prot-unreachable": "icmp-proto-unreachable",
		"port-unreachable": "icmp-port-unreachable", "net-prohibited": "icmp-net-prohibited", "host-prohibited": "icmp-host-prohibited",
		"admin-prohibited": "icmp-admin-prohibited"},
	"icmpv6": {"no-route": "icmp6-no-route", "admin-prohibited": "icmp6-adm-prohibited", "addr-unreachable": "icmp6-addr-unreachable",
		"port-unreachable": "icmp6-port-unreachable", "policy-fail": "icmp6-policy-fail", "reject-route": "icmp6-reject-route"},
}

// abstract are the codes of icmpx.
var abstract = map[string]netfilter.RejectWith{
	"port-unreachable": {IPv4: "icmp-port-unreachable", IPv6: "icmp6-port-unreachable"},
	"admin-prohibited": {IPv4: "icmp-admin-prohibited", IPv6: "icmp6-adm-prohibited"},
	"no-route":         {IPv4: "icmp-net-unreachable", IPv6: "icmp6-no-route"},
	"host-unreachable": {IPv4: "icmp-host-unreachable", IPv6: "icmp6-addr-unreachable"},
}

func (l *lowerer) reject(n *Node) netfilter.Statement {
	kind, code := n.text("type"), n.text("expr")
	if code == "" {
		code = "port-unreachable"
	}
	detail := ""
	switch kind {
	case "tcp reset":
		detail = "tcp-reset"
	case "icmp", "icmpv6":
		detail = rejections[kind][code]
	case "icmpx", "":
		if r, ok := abstract[code]; ok {
			return &r
		}
	}
	if detail == "" {
		return nil
	}
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Reject, Detail: detail}, Words: "reject with " + detail}
}
