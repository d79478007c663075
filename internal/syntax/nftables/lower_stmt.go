package nftables

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// statement lowers one statement of a rule.
func (l *lowerer) statement(n *Node) []netfilter.Statement {
	name, inner, ok := n.only()
	if !ok {
		return []netfilter.Statement{&netfilter.UnknownEffect{Text: n.String()}}
	}
	if s := l.single(name, inner, n); s != nil {
		return []netfilter.Statement{s}
	}
	return []netfilter.Statement{&netfilter.UnknownEffect{Text: statementText(n)}}
}

// implied are the tests that nft makes for a statement, and leaves out again when it lists the rule: a reset answers TCP only, and an error
// of ICMP packets of its family only (nft's evaluate.c: stmt_evaluate_reject).
func (l *lowerer) implied(n *Node) []netfilter.Statement {
	name, inner, ok := n.only()
	if !ok {
		return nil
	}
	switch kind := inner.text("type"); {
	case name == "reject" && kind == "tcp reset":
		return []netfilter.Statement{&netfilter.MatchProtocol{Protocol: packet.TCP}}
	case name == "reject" && !l.ofFamily():
		return ofType(map[string]packet.EtherType{"icmp": packet.EtherIPv4, "icmpv6": packet.EtherIPv6}[kind], kind)
	}
	return nil
}

// ofType tests the type of frame; with 0 there is none to test.
func ofType(t packet.EtherType, words string) []netfilter.Statement {
	e, ok := netfilter.Meta("protocol")
	if t == 0 || !ok {
		return nil
	}
	return []netfilter.Statement{&netfilter.Compare{Left: e, Op: netfilter.Equal, Right: []netfilter.Span{netfilter.Number(uint64(t))},
		Words: words}}
}

// counter is the statement that counts, which a walk does not see.
var counter = &netfilter.Note{Words: "count"}

// single lowers a statement; nil where it is not understood.
func (l *lowerer) single(name string, n, whole *Node) netfilter.Statement {
	if v, ok := l.verdict(name, n); ok {
		switch name {
		case "jump", "goto":
			return &netfilter.JumpTo{Name: n.text("target"), Chain: v.Chain, Goto: name == "goto"}
		}
		return &netfilter.Decision{Verdict: v}
	}
	switch name {
	case "match":
		if s := l.match(n); s != nil {
			return s
		}
		return &netfilter.UnknownTest{Text: statementText(whole)}
	case "counter", "last":
		return counter
	case "limit", "quota", "ct count":
		text := statementText(whole)
		return &netfilter.MatchHistory{Text: text, Words: text}
	case "log", "ct helper", "ct timeout", "ct expectation", "dup", "secmark":
		return &netfilter.Note{Words: statementText(whole)}
	case "set", "map":
		return updates(n, whole)
	case "vmap":
		return l.vmap(n)
	case "mangle":
		return l.mangle(n, whole)
	case "notrack":
		return netfilter.Untrack{}
	case "snat", "dnat", "masquerade", "redirect":
		return l.nat(name, n)
	case "reject":
		return l.reject(n)
	case "queue":
		return queue(n)
	case "fwd":
		return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Stolen, Detail: statementText(whole)}}
	case "flow", "tproxy":
		// Whether there is a flow to offload, or a socket, is not known; the rule does not apply where there is none.
		return &netfilter.UnknownTest{Text: statementText(whole)}
	case "xt":
		if n.text("type") == "match" {
			return &netfilter.UnknownTest{Text: statementText(whole)}
		}
	}
	return nil
}

// updates lowers a statement that changes a set: the walk does not see that, unless a statement inside limits how often.
func updates(n, whole *Node) netfilter.Statement {
	text := statementText(whole)
	statements := n.Get("stmt")
	for _, s := range statements.list() {
		switch name, _, _ := s.only(); name {
		case "limit", "quota", "ct count":
			return &netfilter.MatchHistory{Text: text, Words: text}
		}
	}
	return &netfilter.Note{Words: text}
}

func (l *lowerer) vmap(n *Node) netfilter.Statement {
	key, data := n.Get("key"), n.Get("data")
	if key == nil || data == nil {
		return nil
	}
	set := l.set(data, typesOf(key), nil)
	if set == nil {
		return nil
	}
	return &netfilter.VerdictMap{Key: l.expr(key), Set: set, Words: setText(data, typesOf(key), nil)}
}

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
	name, n, _ := left.only()
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

// prefixOf is the prefix that a span of addresses is.
func prefixOf(v netfilter.Span, ipv6 bool) (netip.Prefix, bool) {
	low, high := v.Low.Address(ipv6), v.High.Address(ipv6)
	bits := 0
	a, b := low.AsSlice(), high.AsSlice()
	for bits < len(a)*8 && (a[bits/8]^b[bits/8])&(0x80>>(bits%8)) == 0 {
		bits++
	}
	p := netip.PrefixFrom(low, bits)
	return p, p.Masked().Addr() == low && lastOf(p) == high
}

// lastOf is the highest address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
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

// nameOf is the name of an interface in iptables' way, with "+" for any rest.
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
	if len(n.Items) != 2 || !v.Certain() {
		return nil
	}
	types := typesOf(&n.Items[0])
	mask, ok := spans(&n.Items[1], types)
	if !ok || len(mask) != 1 || !mask[0].Certain() {
		return nil
	}
	name, inner, _ := n.Items[0].only()
	bits := mask[0].Low.Lo
	switch key := inner.text("key"); {
	case (name == "meta" || name == "ct") && key == "mark":
		return &netfilter.MatchMark{Connection: name == "ct", Not: not, Value: uint32(v.Low.Lo), Mask: uint32(bits)}
	case name == "payload" && inner.text("protocol") == "tcp" && inner.text("field") == "flags":
		return &netfilter.MatchTCPFlags{Not: not, Mask: packet.TCPFlags(bits), Set: packet.TCPFlags(v.Low.Lo)}
	}
	return nil
}

// targets are what mangle can set, by what its key is.
var targets = map[string]netfilter.Target{
	"meta mark": netfilter.TargetMark, "meta priority": netfilter.TargetPriority, "meta pkttype": netfilter.TargetPacketType,
	"ct mark": netfilter.TargetConnmark, "ct zone": netfilter.TargetZone, "ct original zone": netfilter.TargetZoneOriginal,
	"ct reply zone": netfilter.TargetZoneReply,
	"ip saddr":      netfilter.TargetSource, "ip daddr": netfilter.TargetDestination, "ip ttl": netfilter.TargetTTL,
	"ip dscp": netfilter.TargetDSCP, "ip ecn": netfilter.TargetECN, "ip6 saddr": netfilter.TargetSource,
	"ip6 daddr":    netfilter.TargetDestination,
	"ip6 hoplimit": netfilter.TargetTTL, "ip6 dscp": netfilter.TargetDSCP, "ip6 ecn": netfilter.TargetECN,
	"tcp sport": netfilter.TargetSourcePort, "tcp dport": netfilter.TargetDestinationPort, "udp sport": netfilter.TargetSourcePort,
	"udp dport": netfilter.TargetDestinationPort, "th sport": netfilter.TargetSourcePort, "th dport": netfilter.TargetDestinationPort,
	"ether saddr": netfilter.TargetEtherSource, "ether daddr": netfilter.TargetEtherDestination,
}

// etherTypes are the protocols of fields that only their packets have.
var etherTypes = map[string]packet.EtherType{"ip": packet.EtherIPv4, "ip6": packet.EtherIPv6}

// unseen are settable things that a walk does not see.
var unseen = []string{"meta nftrace", "meta secmark", "ct secmark", "ct label", "ct event", "tcp option maxseg size", "ip checksum",
	"ip id",
	"ip6 flowlabel"}

func (l *lowerer) mangle(n, whole *Node) netfilter.Statement {
	key, v := n.Get("key"), n.Get("value")
	if key == nil || v == nil {
		return nil
	}
	what := exprText(key, "")
	target, ok := targets[what]
	switch {
	case slices.Contains(unseen, what):
		return &netfilter.Note{Words: statementText(whole)}
	case !ok:
		return nil
	}
	if what == "meta mark" {
		if s := setMark(v); s != nil {
			return s
		}
	}
	protocol, _, _ := strings.Cut(what, " ")
	return &netfilter.Assign{
		Target: target, Value: l.operand(v, typesOf(key)), EtherType: etherTypes[protocol],
		Transport: map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP}[protocol],
	}
}

// setMark lowers marks that are set to a number, or whose bits are: the bits of Mask are cleared, then Value is xored in.
func setMark(v *Node) *netfilter.SetMark {
	if s, ok := span(v, "mark"); ok && s.Certain() {
		return &netfilter.SetMark{Value: uint32(s.Low.Lo), Mask: ^uint32(0)}
	}
	op, n, ok := v.only()
	switch {
	case !ok:
		return nil
	case op == "meta" && n.text("key") == "mark":
		return &netfilter.SetMark{}
	case len(n.Items) != 2:
		return nil
	}
	inner := setMark(&n.Items[0])
	bits, ok := span(&n.Items[1], "mark")
	if inner == nil || !ok || !bits.Certain() || inner.Mask == ^uint32(0) {
		return nil
	}
	b := uint32(bits.Low.Lo)
	switch op {
	case "&":
		return &netfilter.SetMark{Value: inner.Value & b, Mask: inner.Mask | ^b}
	case "|":
		return &netfilter.SetMark{Value: inner.Value | b, Mask: inner.Mask | b}
	case "^":
		return &netfilter.SetMark{Value: inner.Value ^ b, Mask: inner.Mask}
	}
	return nil
}

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

// natAddress lowers the address of a translation, and tells whether it gives the port too.
func (l *lowerer) natAddress(n, a *Node) (netfilter.Expr, bool) {
	datatype := "ipv4_addr"
	if n.text("family") == "ip6" || l.table.family == "ip6" || a.Kind == String && strings.Contains(a.Text, ":") {
		datatype = "ipv6_addr"
	}
	name, inner, ok := a.only()
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

// givesPorts tells whether the elements of a map give an address and a port.
func givesPorts(elements *Node) bool {
	for _, pair := range elements.list() {
		if pair.Kind == Array && len(pair.Items) == 2 {
			return pair.Items[1].Get("concat") != nil
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

func queue(n *Node) netfilter.Statement {
	who := "the reader of queue 0"
	if num := n.Get("num"); num != nil {
		who = "the reader of queue " + exprText(num, "")
	}
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Stolen, Detail: who}, Words: "hand to " + who}
}
