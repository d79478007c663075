package iptables

import "packetwalk.dev/internal/model/netfilter"

var rejectTarget = targetExtension{
	options: spec("reject-with"),
	lower:   lowerReject,
	listed:  fixed("reject-with", "reject-with"),
}

func lowerReject(l *lowerer, t *Target) netfilter.Statement {
	with := "icmp-port-unreachable"
	if l.family == netfilter.IPv6 {
		with = "icmp6-port-unreachable"
	}
	if len(t.Options) > 0 {
		var name string
		if name, with = t.single(); name != "reject-with" || with == "" {
			return nil
		}
	}
	return &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Reject, Detail: with}, Words: "reject with " + with}
}
