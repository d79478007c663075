package iptables

import "packetwalk.dev/internal/model/netfilter"

var lengthMatch = matchExtension{
	options: spec("length"),
	lower:   each(lowerLength),
	listed:  map[string]listedMatch{"length": after("", "length", "length")},
}

func lowerLength(l *lowerer, o *Option) bool {
	r, ok := parsePorts(o.arg(), ":")
	l.test(&netfilter.MatchLength{Not: o.Not, Low: int(r.Low), High: int(r.High)})
	return ok
}
