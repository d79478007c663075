package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var limitMatch = matchExtension{
	options: spec("limit limit-burst"),
	lower:   lowerHistory,
	listed:  map[string]listedMatch{"limit:": (*restReader).limit},
}

// hashlimitMatch: what iptables -L prints does not tell its table's name.
var hashlimitMatch = matchExtension{
	options: spec("hashlimit-upto hashlimit-above hashlimit-burst hashlimit-mode hashlimit-name " +
		"hashlimit-srcmask hashlimit-dstmask hashlimit-htable-size hashlimit-htable-max hashlimit-htable-expire " +
		"hashlimit-htable-gcinterval hashlimit-rate-match=0 hashlimit-rate-interval"),
	lower: lowerHistory,
}

var connlimitMatch = matchExtension{
	options: spec("connlimit-upto connlimit-above connlimit-mask connlimit-saddr=0 connlimit-daddr=0"),
	lower:   lowerHistory,
	listed:  map[string]listedMatch{"#conn": (*restReader).connectionLimit},
}

var quotaMatch = matchExtension{
	options: spec("quota"),
	lower:   lowerHistory,
	listed:  map[string]listedMatch{"quota:": (*restReader).quota},
}

// lowerHistory lowers the matches that depend on earlier packets alone.
func lowerHistory(l *lowerer, m *Match) bool {
	text := m.text()
	l.test(&netfilter.MatchHistory{Text: text, Words: "by what came before: " + strings.TrimPrefix(text, "-m "),
		Connections: m.Module == "connlimit"})
	return len(m.Options) > 0
}

// limit reads "limit: avg 5/min burst 10"; a burst of 5 is the default, which iptables-save leaves out. What hashlimit prints does not
// tell its table's name.
func (l *restReader) limit(not bool) bool {
	l.begin("limit")
	if not || !l.lit("avg") || !l.value("limit", "limit", false) || !l.lit("burst") {
		return false
	}
	return l.lit("5") || l.value("limit", "limit-burst", false)
}

// connectionLimit reads "#conn src/32 > 3".
func (l *restReader) connectionLimit(not bool) bool {
	side, mask, ok := strings.Cut(l.next(), "/")
	option := map[string]string{">": "connlimit-above", "<=": "connlimit-upto"}[l.next()]
	flag := map[string]string{"src": "connlimit-saddr", "dst": "connlimit-daddr"}[side]
	l.begin("connlimit")
	return ok && !not && option != "" && flag != "" && isValue(mask) && l.value("connlimit", option, false) &&
		l.add("connlimit", Opt("connlimit-mask", mask)) && l.add("connlimit", Opt(flag))
}

// quota reads "quota: 1000 bytes" (libxt_quota.c).
func (l *restReader) quota(not bool) bool {
	l.begin("quota")
	return l.value("quota", "quota", not) && l.lit("bytes")
}
