package iptables

import "packetwalk.dev/internal/model/netfilter"

var helperMatch = matchExtension{
	options: spec("helper"),
	lower:   each(lowerHelper),
	listed:  map[string]listedMatch{"helper": (*restReader).helper},
}

func lowerHelper(l *lowerer, o *Option) bool {
	l.test(&netfilter.MatchHelper{Not: o.Not, Name: o.arg()})
	return true
}

func (l *restReader) helper(not bool) bool {
	if !l.lit("match") {
		return false
	}
	not = l.not() || not
	name, ok := l.quoted()
	return ok && l.add("helper", Option{Not: not, Name: "helper", Args: []string{name}})
}
