package iptables

var nfacctMatch = matchExtension{
	options: spec("nfacct-name"),
	lower:   each(lowerNfacct),
	listed:  map[string]listedMatch{"nfacct-name": after("", "nfacct", "nfacct-name")},
}

// lowerNfacct: an object without a quota counts, and the match holds; dumps do not tell of quotas (net/netfilter/xt_nfacct.c).
func lowerNfacct(l *lowerer, o *Option) bool {
	l.note("count in accounting object %s (assumed to have no quota)", o.arg())
	return !o.Not
}
