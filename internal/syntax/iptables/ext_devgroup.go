package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var devgroupMatch = matchExtension{
	options: spec("src-group dst-group"),
	lower:   each(lowerDevgroup),
	listed:  map[string]listedMatch{"src-group": after("", "devgroup", "src-group"), "dst-group": after("", "devgroup", "dst-group")},
}

// lowerDevgroup knows the one name that iproute2 gives a group everywhere, which iptables prints for 0 (extensions/libxt_devgroup.c).
func lowerDevgroup(l *lowerer, o *Option) bool {
	group := o.arg()
	if rest, named := strings.CutPrefix(group, "default"); named && (rest == "" || rest[0] == '/') {
		group = "0" + rest
	}
	v, mask, ok := parseMasked(group, 32)
	l.test(&netfilter.MatchLinkGroup{Out: o.Name == "dst-group", Not: o.Not, Group: v, Mask: mask})
	return ok
}
