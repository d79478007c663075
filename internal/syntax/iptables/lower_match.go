package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// protocols are the tests of the protocols that rules test most, so that each is there once.
var protocols = map[NameMatch]*netfilter.MatchProtocol{
	{Name: "tcp"}:  {Protocol: packet.TCP},
	{Name: "udp"}:  {Protocol: packet.UDP},
	{Name: "sctp"}: {Protocol: packet.SCTP},
	{Name: "icmp"}: {Protocol: packet.ICMP},
}

func (l *lowerer) protocol(m NameMatch) {
	if p, ok := protocols[m]; ok {
		l.test(p)
		return
	}
	if m.Name == "all" || m.Name == "0" {
		return // every protocol, as iptables means it
	}
	p, err := packet.ParseProtocol(m.Name)
	if err != nil {
		l.test(&netfilter.UnknownTest{Text: strings.TrimPrefix(string(appendName(nil, "-p", m)), " "), Tracking: netfilter.NeverTracks})
		return
	}
	l.test(&netfilter.MatchProtocol{Not: m.Not, Protocol: p})
}

// match lowers one match. What it does not understand, in whole or in part, is one unknown test.
func (l *lowerer) match(m *Match) {
	lower := matchExtensions[m.Module].lower
	tests, notes := len(l.tests), len(l.notes)
	if lower != nil && lower(l, m) {
		return
	}
	l.tests, l.notes = l.tests[:tests], l.notes[:notes]
	l.test(&netfilter.UnknownTest{Text: m.text(), Tracking: matchTracking(m.Module)})
}

// text returns the match as iptables prints it.
func (m *Match) text() string { return string(appendOptions([]byte("-m "+m.Module), m.Options)) }

// each lowers a match whose options are tests of their own.
func each(lower func(*lowerer, *Option) bool) func(*lowerer, *Match) bool {
	return func(l *lowerer, m *Match) bool { return lowerAll(m, func(o *Option) bool { return lower(l, o) }) }
}

// lowerAll lowers each option by itself.
func lowerAll(m *Match, lower func(o *Option) bool) bool {
	for i := range m.Options {
		if !lower(&m.Options[i]) {
			return false
		}
	}
	return len(m.Options) > 0
}

// arg returns an option's only word; "" where it has none.
func (o *Option) arg() string {
	if len(o.Args) != 1 {
		return ""
	}
	return o.Args[0]
}
