package iptables

var tcpmssMatch = matchExtension{
	options: spec("mss"),
	listed:  map[string]listedMatch{"tcpmss": after("match", "tcpmss", "mss")},
}

var tcpmssTarget = targetExtension{
	options: spec("set-mss clamp-mss-to-pmtu=0"),
	note:    "limit the TCP segment size",
	listed:  (*restReader).segmentSize,
}

func (l *restReader) segmentSize(t *Target) bool {
	if l.lit("TCPMSS clamp to PMTU") {
		return t.add("clamp-mss-to-pmtu")
	}
	return fixed("TCPMSS set", "set-mss")(l, t)
}
