package ebtables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/nftables"
)

// Lower gives tables of ebtables their meaning. A user's chain with a policy other than RETURN ends with a rule of its own, as in
// the kernel's nf_tables. Chains that rules name need not be there; errors tell of chains that are there twice.
func Lower(e *Tables) ([]*netfilter.Table, error) {
	var tables []*netfilter.Table
	for i := range e.Tables {
		l := lowerer{legacy: e.Legacy, chains: map[string]*netfilter.Chain{}}
		t, err := l.table(&e.Tables[i])
		if err != nil {
			return nil, fmt.Errorf("ebtables: %w", err)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

type lowerer struct {
	legacy bool
	broute bool
	chains map[string]*netfilter.Chain
}

// baseOf tells where the kernel calls a chain (include/linux/netfilter_bridge.h; legacy has another priority for filter's OUTPUT:
// net/bridge/netfilter/ebtable_filter.c).
func (l *lowerer) baseOf(table, chain string) *netfilter.Base {
	base := func(hook netfilter.Hook, priority int) *netfilter.Base {
		return &netfilter.Base{Type: "filter", Hook: hook, Priority: priority}
	}
	switch table + " " + chain {
	case "filter INPUT":
		return base(netfilter.Input, -200)
	case "filter FORWARD":
		return base(netfilter.Forward, -200)
	case "filter OUTPUT":
		if l.legacy {
			return base(netfilter.Output, 200)
		}
		return base(netfilter.Output, -200)
	case "nat PREROUTING":
		return base(netfilter.Prerouting, -300)
	case "nat OUTPUT":
		return base(netfilter.Output, 100)
	case "nat POSTROUTING":
		return base(netfilter.Postrouting, 300)
	case "broute BROUTING":
		return base(netfilter.Prerouting, math.MinInt32)
	}
	return nil
}

var policies = map[string]netfilter.VerdictKind{"ACCEPT": netfilter.Accept, "DROP": netfilter.Drop, "RETURN": netfilter.Return,
	"CONTINUE": netfilter.Continue}

func (l *lowerer) table(t *Table) (*netfilter.Table, error) {
	lowered := &netfilter.Table{Family: netfilter.Bridge, Name: t.Name, Dialect: netfilter.EBTables}
	l.broute = t.Name == "broute"
	for _, c := range t.Chains {
		policy, ok := policies[c.Policy]
		if !ok {
			return nil, fmt.Errorf("table %s: chain %s: unknown policy %q", t.Name, c.Name, c.Policy)
		}
		if l.chains[c.Name] != nil {
			return nil, fmt.Errorf("table %s: chain %s is there twice", t.Name, c.Name)
		}
		chain := &netfilter.Chain{Table: lowered, Name: c.Name, Base: l.baseOf(t.Name, c.Name), Policy: policy}
		l.chains[c.Name] = chain
		lowered.Chains = append(lowered.Chains, chain)
	}
	for i := range t.Rules {
		r := &t.Rules[i]
		c := l.chains[r.Chain]
		if c == nil {
			return nil, fmt.Errorf("table %s: rule in chain %s, which does not exist", t.Name, r.Chain)
		}
		c.Rules = append(c.Rules, netfilter.Rule{Number: len(c.Rules) + 1, Text: r.Text, Statements: l.rule(r.Text)})
	}
	for _, c := range lowered.Chains {
		if c.Base != nil {
			continue
		}
		if c.Policy == netfilter.Accept || c.Policy == netfilter.Drop {
			c.Rules = append(c.Rules, netfilter.Rule{Number: len(c.Rules) + 1, Text: "policy " + strings.ToUpper(c.Policy.String()),
				Statements: []netfilter.Statement{&netfilter.Decision{Verdict: netfilter.Verdict{Kind: c.Policy}}}})
		}
		c.Policy = netfilter.Return
	}
	return lowered, nil
}

// option is one option of a rule with its arguments.
type option struct {
	name string
	not  bool
	args []string
}

func (o *option) arg() string {
	if len(o.args) == 0 {
		return ""
	}
	return o.args[0]
}

func (o *option) text() string {
	not := ""
	if o.not {
		not = "! "
	}
	return strings.TrimSpace(o.name + " " + not + strings.Join(o.args, " "))
}

// parseOptions splits a rule into options. "!" stands in front of an option (ebtables-nft from 1.8.10) or of its argument.
func parseOptions(text string) []option {
	var all []option
	not := false
	for _, w := range words(text) {
		switch {
		case w == "!" && len(all) > 0 && len(all[len(all)-1].args) == 0 && all[len(all)-1].takes():
			all[len(all)-1].not = true
		case w == "!":
			not = true
		case len(w) > 1 && w[0] == '-' && !isNumber(w):
			all = append(all, option{name: w, not: not})
			not = false
		case len(all) > 0:
			all[len(all)-1].args = append(all[len(all)-1].args, w)
		default:
			all = append(all, option{name: w})
		}
	}
	return all
}

// takes reports whether the option has arguments.
func (o *option) takes() bool {
	return !slices.Contains([]string{"--log", "--log-ip", "--log-ip6", "--log-arp", "--nflog", "--ulog", "--snat-arp", "--arp-gratuitous"},
		o.name)
}

func isNumber(w string) bool {
	_, err := strconv.Atoi(w)
	return err == nil
}

// rule lowers a rule: tests, then watchers, then the target, whatever their order in the text.
func (l *lowerer) rule(text string) []netfilter.Statement {
	var tests, effects []netfilter.Statement
	options := parseOptions(text)
	protocol := "th"
	for i := range options {
		if o := &options[i]; (o.name == "--ip-proto" || o.name == "--ip-protocol" || o.name == "--ip6-proto" || o.name == "--ip6-protocol") &&
			!o.not {
			if p, err := packet.ParseProtocol(o.arg()); err == nil && p.HasPorts() {
				protocol = p.String()
			}
		}
	}
	for i := range options {
		o := &options[i]
		switch {
		case o.name == "-j" || o.name == "--jump":
			effects = append(effects, l.target(o.arg(), options[i+1:])...)
		case isWatcher(o.name):
			effects = append([]netfilter.Statement{&netfilter.Note{Words: o.text()}}, effects...)
		case isTargetOption(o.name), o.name == "-c":
		default:
			s := test(o, protocol)
			if s == nil {
				s = &netfilter.UnknownTest{Text: o.text(), Tracking: netfilter.NeverTracks}
			}
			tests = append(tests, s)
		}
	}
	return append(tests, effects...)
}

func isWatcher(name string) bool {
	return strings.HasPrefix(name, "--log") && !strings.HasPrefix(name, "--logical") || strings.HasPrefix(name, "--nflog") ||
		strings.HasPrefix(name, "--ulog")
}

func isTargetOption(name string) bool {
	for _, prefix := range []string{"--to-", "--snat-", "--dnat-", "--arpreply-", "--redirect-", "--mark-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// fields are the options that compare a field with a constant: nft's protocol and field of each.
var fields = map[string][2]string{
	"-s": {"ether", "saddr"}, "-d": {"ether", "daddr"},
	"--ip-src": {"ip", "saddr"}, "--ip-source": {"ip", "saddr"}, "--ip-dst": {"ip", "daddr"}, "--ip-destination": {"ip", "daddr"},
	"--ip-proto": {"ip", "protocol"}, "--ip-protocol": {"ip", "protocol"}, "--ip-tos": {"ip", "tos"},
	"--ip6-src": {"ip6", "saddr"}, "--ip6-source": {"ip6", "saddr"}, "--ip6-dst": {"ip6", "daddr"}, "--ip6-destination": {"ip6", "daddr"},
	"--ip6-proto": {"ip6", "nexthdr"}, "--ip6-protocol": {"ip6", "nexthdr"},
	"--ip-sport": {"", "sport"}, "--ip-source-port": {"", "sport"}, "--ip-dport": {"", "dport"}, "--ip-destination-port": {"", "dport"},
	"--ip6-sport": {"", "sport"}, "--ip6-source-port": {"", "sport"}, "--ip6-dport": {"", "dport"}, "--ip6-destination-port": {"", "dport"},
	"--arp-op": {"arp", "operation"}, "--arp-opcode": {"arp", "operation"}, "--arp-htype": {"arp", "htype"}, "--arp-ptype": {"arp", "ptype"},
	"--arp-ip-src": {"arp", "saddr ip"}, "--arp-ip-dst": {"arp", "daddr ip"},
	"--arp-mac-src": {"arp", "saddr ether"}, "--arp-mac-dst": {"arp", "daddr ether"},
}

// test lowers a test; nil where it is not understood. protocol is that of ports.
func test(o *option, protocol string) netfilter.Statement {
	switch o.name {
	case "-p", "--protocol":
		return protocolTest(o)
	case "-i", "--in-interface", "-o", "--out-interface":
		if o.arg() == "" {
			return nil
		}
		return netfilter.NewMatchInterface(o.name == "-o" || o.name == "--out-interface", o.not, o.arg())
	case "--logical-in", "--logical-out":
		key := map[string]string{"--logical-in": "ibrname", "--logical-out": "obrname"}[o.name]
		name := o.arg()
		if start, some := strings.CutSuffix(name, "+"); some {
			name = start + "*"
		}
		f, _ := netfilter.Meta(key)
		s, ok := nftables.ParseLinkName(name, "ifname")
		return compare(f, s, ok, o)
	case "--pkttype-type":
		f, _ := netfilter.Meta("pkttype")
		v, ok := map[string]uint64{"host": 0, "broadcast": 1, "multicast": 2, "otherhost": 3}[strings.ToLower(o.arg())]
		return compare(f, netfilter.Number(v), ok, o)
	case "--mark":
		return markTest(o)
	case "--limit":
		return &netfilter.MatchHistory{Text: o.text(), Words: "limit " + o.arg()}
	case "--limit-burst":
		return &netfilter.Note{Words: o.text()}
	case "--arp-gratuitous":
		source, _ := netfilter.Payload("arp", "saddr ip")
		target, _ := netfilter.Payload("arp", "daddr ip")
		same := &netfilter.Bitwise{Op: netfilter.BitXor, Left: source, Right: target}
		return compare(same, netfilter.Number(0), true, o)
	}
	names, ok := fields[o.name]
	if !ok {
		return nil
	}
	if names[0] == "" {
		names[0] = protocol
	}
	f, ok := netfilter.Payload(names[0], names[1])
	if !ok || o.arg() == "" {
		return nil
	}
	return fieldTest(f, o)
}

func compare(e netfilter.Expr, s netfilter.Span, ok bool, o *option) netfilter.Statement {
	if !ok || len(o.args) > 1 {
		return nil
	}
	relation := netfilter.Equal
	if o.not {
		relation = netfilter.NotEqual
	}
	return &netfilter.Compare{Left: e, Op: relation, Right: []netfilter.Span{s}, Words: o.arg()}
}

// fieldTest compares a field with a constant of its datatype, with a mask or as a range where it may.
func fieldTest(f *netfilter.Field, o *option) netfilter.Statement {
	text, maskText, masked := strings.Cut(o.arg(), "/")
	switch f.Type {
	case "ether_addr":
		if words, ok := macNames[strings.ToLower(text)]; ok && !masked {
			text, maskText, masked = words[0], words[1], true
		}
	case "inet_service":
		low, high, isRange := strings.Cut(text, ":")
		if !isRange {
			high = low
		}
		a, err1 := strconv.ParseUint(low, 10, 16)
		b, err2 := strconv.ParseUint(high, 10, 16)
		s := netfilter.Span{Low: netfilter.Value{Lo: a}, High: netfilter.Value{Lo: b}}
		return compare(f, s, err1 == nil && err2 == nil, o)
	case "arp_op":
		if n, ok := arpOperations[text]; ok {
			text = n
		}
	case "inet_proto":
		if p, err := packet.ParseProtocol(strings.ToLower(text)); err == nil {
			text = strconv.Itoa(int(p))
		}
	case "ether_type":
		if n, ok := etherTypes[strings.ToUpper(text)]; ok {
			text = n
		}
	}
	v, ok := nftables.ParseValue(text, f.Type)
	if !masked || !ok {
		return compare(f, netfilter.Exactly(v), ok, o)
	}
	mask, ok := parseMask(maskText, f)
	constant := &netfilter.Constant{Values: []netfilter.Span{netfilter.Exactly(mask)}, Words: maskText}
	v = netfilter.Value{Hi: v.Hi & mask.Hi, Lo: v.Lo & mask.Lo}
	return compare(&netfilter.Bitwise{Op: netfilter.BitAnd, Left: f, Right: constant}, netfilter.Exactly(v), ok, o)
}

// parseMask reads the mask of an address: a length or a mask.
func parseMask(text string, f *netfilter.Field) (netfilter.Value, bool) {
	if bits, err := strconv.Atoi(text); err == nil && f.Type != "ether_addr" {
		if bits < 0 || bits > f.Bits {
			return netfilter.Value{}, false
		}
		return netfilter.PrefixMask(bits, f.Type == "ipv6_addr"), true
	}
	if f.Type == "ipv4_addr" || f.Type == "ipv6_addr" {
		if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
			return netfilter.Value{}, false
		}
	}
	return nftables.ParseValue(text, f.Type)
}

// macNames are the words for addresses, with their masks (ebtables(8)).
var macNames = map[string][2]string{
	"unicast":   {"00:00:00:00:00:00", "01:00:00:00:00:00"},
	"multicast": {"01:00:00:00:00:00", "01:00:00:00:00:00"},
	"broadcast": {"ff:ff:ff:ff:ff:ff", "ff:ff:ff:ff:ff:ff"},
	"bga":       {"01:80:c2:00:00:00", "ff:ff:ff:ff:ff:ff"},
}

// arpOperations are the words for operations of ARP.
var arpOperations = map[string]string{"Request": "1", "Reply": "2", "Request_Reverse": "3", "Reply_Reverse": "4", "DRARP_Request": "5",
	"DRARP_Reply": "6", "DRARP_Error": "7", "InARP_Request": "8", "ARP_NAK": "9"}

// etherTypes are the words for Ethernet types (/etc/ethertypes) that frames of walks can have, and some that they cannot.
var etherTypes = map[string]string{"IPV4": "0x0800", "IP": "0x0800", "ARP": "0x0806", "IPV6": "0x86dd", "802_1Q": "0x8100",
	"802_1AD": "0x88a8"}

// protocolTest lowers -p: an Ethernet type, or LENGTH for frames of 802.3.
func protocolTest(o *option) netfilter.Statement {
	f, _ := netfilter.Payload("ether", "type")
	if strings.EqualFold(o.arg(), "length") {
		op := netfilter.Less
		if o.not {
			op = netfilter.AtLeast
		}
		return &netfilter.Compare{Left: f, Op: op, Right: []netfilter.Span{netfilter.Number(0x0600)}, Words: "0x0600"}
	}
	text, known := etherTypes[strings.ToUpper(o.arg())]
	if !known {
		text = o.arg()
		if _, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 16); err != nil || !strings.HasPrefix(text, "0x") {
			return nil
		}
	}
	v, ok := nftables.ParseValue(text, "ether_type")
	return compare(f, netfilter.Exactly(v), ok, o)
}

// markTest lowers --mark VALUE[/MASK], or /MASK, which holds where one of the bits is set (net/bridge/netfilter/ebt_mark_m.c).
func markTest(o *option) netfilter.Statement {
	text, maskText, masked := strings.Cut(o.arg(), "/")
	mask, err := uint64(math.MaxUint32), error(nil)
	if masked {
		mask, err = strconv.ParseUint(maskText, 0, 32)
	}
	if masked && text == "" {
		return orNil(&netfilter.MatchMark{Not: !o.not, Mask: uint32(mask)}, err)
	}
	value, err2 := strconv.ParseUint(text, 0, 32)
	if err2 != nil {
		err = err2
	}
	return orNil(&netfilter.MatchMark{Not: o.not, Value: uint32(value), Mask: uint32(mask)}, err)
}

func orNil(s netfilter.Statement, err error) netfilter.Statement {
	if err != nil {
		return nil
	}
	return s
}
