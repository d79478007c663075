package nftables

import (
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// statement lowers one statement of a rule.
func (l *lowerer) statement(n *Node) netfilter.Statement {
	name, inner, ok := n.singleMember()
	switch {
	case ok:
	case n.Kind == String && strings.HasPrefix(n.Text, "update @"):
		return &netfilter.Note{Words: n.Text, Remembers: true, Tracks: strings.Contains(n.Text, " ct ")} // of a map: nft 1.0.6 has no JSON for it
	default:
		return &netfilter.UnknownEffect{Text: n.String()}
	}
	if s := l.single(name, inner, n); s != nil {
		return s
	}
	return &netfilter.UnknownEffect{Text: statementText(n), Tracking: tracking(n)}
}

// implied returns the tests that nft makes for a statement, and leaves out again when it lists the rule: a reset answers TCP only, and an
// error of ICMP packets of its family only (nft's evaluate.c: stmt_evaluate_reject).
func (l *lowerer) implied(n *Node) []netfilter.Statement {
	name, inner, ok := n.singleMember()
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
	case "unread": // of a list that packetwalk made without nft
		return &netfilter.UnreadEffect{Why: n.text("why"), Tracks: n.Get("tracks") != nil}
	case "match":
		if s := l.match(n); s != nil {
			return s
		}
		return &netfilter.UnknownTest{Text: statementText(whole), Tracking: tracking(whole)}
	case "counter", "last":
		return counter
	case "limit", "quota", "ct count":
		text := statementText(whole)
		return &netfilter.MatchHistory{Text: text, Words: text, Connections: name == "ct count"}
	case "log", "ct helper", "ct timeout", "ct expectation", "dup", "secmark":
		return &netfilter.Note{Words: statementText(whole), Tracks: tracking(whole) == netfilter.Tracks}
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
		return netfilter.HandTo("the receiver of " + statementText(whole))
	case "flow", "tproxy":
		// Whether there is a flow to offload, or a socket, is not known; the rule does not apply where there is none.
		return &netfilter.UnknownTest{Text: statementText(whole), Tracking: tracking(whole)}
	case "xt":
		if n.text("type") == "match" {
			return &netfilter.UnknownTest{Text: statementText(whole), Tracking: tracking(whole)}
		}
	}
	return nil
}

// updates lowers a statement that changes a set: the walk does not see that, unless a statement inside limits how often.
func updates(n, whole *Node) netfilter.Statement {
	text := statementText(whole)
	statements := n.Get("stmt")
	for _, s := range statements.list() {
		switch name, _, _ := s.singleMember(); name {
		case "limit", "quota", "ct count":
			return &netfilter.MatchHistory{Text: text, Words: text, Connections: name == "ct count"}
		}
	}
	return &netfilter.Note{Words: text, Remembers: true, Tracks: tracking(whole) == netfilter.Tracks}
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
		return &netfilter.Note{Words: statementText(whole), Tracks: tracking(whole) == netfilter.Tracks}
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
	op, n, ok := v.singleMember()
	switch {
	case !ok:
		return nil
	case op == "meta" && n.text("key") == "mark":
		return &netfilter.SetMark{}
	case len(n.elements()) != 2:
		return nil
	}
	inner := setMark(&n.elements()[0])
	bits, ok := span(&n.elements()[1], "mark")
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

func queue(n *Node) netfilter.Statement {
	who := "the reader of queue 0"
	if num := n.Get("num"); num != nil {
		who = "the reader of queue " + exprText(num, "")
	}
	return netfilter.HandTo(who)
}
