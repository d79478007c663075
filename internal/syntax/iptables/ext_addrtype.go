package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var addrtypeMatch = matchExtension{
	options: spec("src-type dst-type limit-iface-in=0 limit-iface-out=0"),
	lower:   lowerAddrtype,
	listed:  map[string]listedMatch{"ADDRTYPE": (*restReader).addressType},
}

func lowerAddrtype(l *lowerer, m *Match) bool {
	limit := netfilter.AnyLink
	if _, ok := m.Option("limit-iface-in"); ok {
		limit = netfilter.InLink
	} else if _, ok := m.Option("limit-iface-out"); ok {
		limit = netfilter.OutLink
	}
	return lowerAll(m, func(o *Option) bool {
		if o.Name != "src-type" && o.Name != "dst-type" {
			return !o.Not
		}
		t := &netfilter.MatchAddressType{Source: o.Name == "src-type", Not: o.Not, Limit: limit}
		for name := range strings.SplitSeq(o.arg(), ",") {
			kind, ok := netfilter.ParseAddressType(strings.ToUpper(name))
			if !ok {
				return false
			}
			t.Types = append(t.Types, kind)
		}
		l.test(t)
		return true
	})
}

func (l *restReader) addressType(not bool) bool {
	if not || !l.lit("match") {
		return false
	}
	l.begin("addrtype")
	for {
		switch word := l.peek(); {
		case word == "src-type" || word == "dst-type":
			l.next()
			if !l.value("addrtype", word, false) {
				return false
			}
		case l.lit("limit-in"):
			l.add("addrtype", Opt("limit-iface-in"))
		case l.lit("limit-out"):
			l.add("addrtype", Opt("limit-iface-out"))
		default:
			return true
		}
	}
}
