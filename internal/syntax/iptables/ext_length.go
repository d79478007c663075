package iptables

import "packetwalk.dev/internal/model/netfilter"

var lengthMatch = matchExtension{
	options: spec("length"),
	lower:   lowerLength,
	listed:  map[string]listedMatch{"length": after("", "length", "length")},
}

func lowerLength(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		r, ok := parsePorts(o.arg(), ":")
		l.test(&netfilter.MatchLength{Not: o.Not, Low: int(r.Low), High: int(r.High)})
		return ok
	})
}
