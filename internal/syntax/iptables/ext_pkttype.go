package iptables

import (
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

var pkttypeMatch = matchExtension{
	options: spec("pkt-type"),
	lower:   each(lowerPkttype),
	listed:  map[string]listedMatch{"PKTTYPE": (*restReader).packetType},
}

func lowerPkttype(l *lowerer, o *Option) bool {
	cast, ok := casts[o.arg()]
	l.test(&netfilter.MatchCast{Not: o.Not, Cast: cast})
	return ok
}

var casts = map[string]packet.Cast{
	"unicast": packet.Unicast, "host": packet.Unicast, "broadcast": packet.BroadcastFrame, "multicast": packet.MulticastFrame,
	"otherhost": packet.OtherHost,
}

func (l *restReader) packetType(not bool) bool {
	not = l.lit("!=") || not
	return (not || l.lit("=")) && l.value("pkttype", "pkt-type", not)
}
