package iptables

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

var macMatch = matchExtension{
	options: spec("mac-source"),
	lower:   each(lowerMAC),
	listed:  map[string]listedMatch{"MAC": after("", "mac", "mac-source")},
}

func lowerMAC(l *lowerer, o *Option) bool {
	mac, ok := parseMAC(o.arg())
	l.test(&netfilter.MatchMAC{Not: o.Not, MAC: mac})
	return ok
}

func parseMAC(text string) (mac packet.MAC, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) != len(mac) {
		return mac, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			return mac, false
		}
		mac[i] = byte(n)
	}
	return mac, true
}
