package iptables

import (
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var iprangeMatch = matchExtension{
	options: spec("src-range dst-range"),
	lower:   each(lowerIPRange),
	listed:  map[string]listedMatch{"source": addressRange("src-range"), "destination": addressRange("dst-range")},
}

func lowerIPRange(l *lowerer, o *Option) bool {
	low, high, ok := parseAddresses(o.arg())
	l.test(&netfilter.MatchRange{Source: o.Name == "src-range", Not: o.Not, Low: low, High: high})
	return ok
}

// parseAddresses reads "a" or "a-b".
func parseAddresses(text string) (low, high netip.Addr, ok bool) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	low, err := netip.ParseAddr(first)
	high, err2 := netip.ParseAddr(last)
	return low, high, err == nil && err2 == nil && low.Is4() == high.Is4() && low.Zone() == "" && high.Zone() == ""
}

func addressRange(option string) func(*restReader, bool) bool {
	return func(l *restReader, not bool) bool { return l.lit("IP range") && l.value("iprange", option, not) }
}
