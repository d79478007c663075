package iptables

import "packetwalk.dev/internal/model/netfilter"

var devgroupMatch = matchExtension{
	options: spec("src-group dst-group"),
	lower:   each(lowerDevgroup),
	listed:  map[string]listedMatch{"src-group": after("", "devgroup", "src-group"), "dst-group": after("", "devgroup", "dst-group")},
}

func lowerDevgroup(l *lowerer, o *Option) bool {
	v, mask, ok := parseMasked(o.arg(), 32)
	l.test(&netfilter.MatchLinkGroup{Out: o.Name == "dst-group", Not: o.Not, Group: v, Mask: mask})
	return ok
}
