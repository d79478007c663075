package iptables

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

var icmpMatch = matchExtension{
	options: spec("icmp-type"),
	lower:   lowerICMP,
	listed:  map[string]listedMatch{"icmp": icmpName("icmp", "icmp-type", icmpNames), "icmptype": icmpNumber("icmp", "icmp-type")},
}

var icmp6Match = matchExtension{
	options: spec("icmpv6-type"),
	lower:   lowerICMP,
	listed: map[string]listedMatch{
		"ipv6-icmp":     icmpName("icmp6", "icmpv6-type", icmp6Names),
		"ipv6-icmptype": icmpNumber("icmp6", "icmpv6-type"),
	},
}

func lowerICMP(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		t, ok := parseICMP(m.Module == "icmp6", o.arg())
		t.Not = o.Not
		l.test(&t)
		return ok
	})
}

// parseICMP reads a type: "any", "8", "3/1" or a name.
func parseICMP(ipv6 bool, text string) (t netfilter.MatchICMP, ok bool) {
	t.Protocol = packet.ICMP
	names := icmpNames
	if ipv6 {
		t.Protocol, names = packet.ICMPv6, icmp6Names
	}
	if numbers, ok := names[text]; ok {
		t.Name, text = text, numbers
	}
	kind, code, hasCode := strings.Cut(text, "/")
	if kind == "any" {
		kind = "255"
	}
	n, err := strconv.ParseUint(kind, 10, 8)
	if err != nil {
		return t, false
	}
	t.Type, t.CodeHigh = uint8(n), 255
	t.Any = !ipv6 && n == 255 // net/netfilter/xt_tcpudp.c, icmp_type_code_match
	if hasCode {
		if n, err = strconv.ParseUint(code, 10, 8); err != nil {
			return t, false
		}
		t.CodeLow, t.CodeHigh = uint8(n), uint8(n)
	}
	return t, true
}

func icmpName(module, option string, names map[string]string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		inverted := l.not()
		if l.peek() == "type" && inverted { // "icmp !type 8 code 0"
			l.next()
			return icmpNumber(module, option)(l, true)
		}
		value, ok := names[l.next()]
		return ok && !not && l.add(module, Option{Not: inverted, Name: option, Args: []string{value}})
	}
}

func icmpNumber(module, option string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool {
		value := l.next()
		if !isNumber0(value) {
			return false
		}
		if l.lit("code") {
			value += "/" + l.next()
		} else if value == "255" && module == "icmp" {
			value = "any" // XT_ICMP_ANY
		}
		return IsName(value) && l.add(module, Option{Not: not, Name: option, Args: []string{value}})
	}
}

// icmpNames and icmp6Names are the names that iptables -L without -n shows for types and codes, as iptables-save prints them
// (libxtables/xtables.h: xt_icmp_names; extensions/libxt_icmp.h).
var icmpNames = map[string]string{
	"any": "any", "echo-reply": "0", "destination-unreachable": "3", "network-unreachable": "3/0", "host-unreachable": "3/1",
	"protocol-unreachable": "3/2", "port-unreachable": "3/3", "fragmentation-needed": "3/4", "source-route-failed": "3/5",
	"network-unknown": "3/6", "host-unknown": "3/7", "network-prohibited": "3/9", "host-prohibited": "3/10",
	"TOS-network-unreachable": "3/11", "TOS-host-unreachable": "3/12", "communication-prohibited": "3/13",
	"host-precedence-violation": "3/14", "precedence-cutoff": "3/15", "source-quench": "4", "redirect": "5", "network-redirect": "5/0",
	"host-redirect": "5/1", "TOS-network-redirect": "5/2", "TOS-host-redirect": "5/3", "echo-request": "8", "router-advertisement": "9",
	"router-solicitation": "10", "time-exceeded": "11", "ttl-zero-during-transit": "11/0", "ttl-zero-during-reassembly": "11/1",
	"parameter-problem": "12", "ip-header-bad": "12/0", "required-option-missing": "12/1", "timestamp-request": "13",
	"timestamp-reply": "14", "address-mask-request": "17", "address-mask-reply": "18",
}

var icmp6Names = map[string]string{
	"destination-unreachable": "1", "no-route": "1/0", "communication-prohibited": "1/1", "beyond-scope": "1/2",
	"address-unreachable": "1/3", "port-unreachable": "1/4", "failed-policy": "1/5", "reject-route": "1/6", "packet-too-big": "2",
	"time-exceeded": "3", "ttl-zero-during-transit": "3/0", "ttl-zero-during-reassembly": "3/1", "parameter-problem": "4", "bad-header": "4/0",
	"unknown-header-type": "4/1", "unknown-option": "4/2", "echo-request": "128", "echo-reply": "129", "router-solicitation": "133",
	"router-advertisement": "134", "neighbour-solicitation": "135", "neighbor-solicitation": "135", "neighbour-advertisement": "136",
	"neighbor-advertisement": "136", "redirect": "137",
}
