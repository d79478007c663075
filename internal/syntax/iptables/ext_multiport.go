package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var multiportSides = map[string]netfilter.PortSide{
	"sports": netfilter.SourcePort, "source-ports": netfilter.SourcePort,
	"dports": netfilter.DestinationPort, "destination-ports": netfilter.DestinationPort, "ports": netfilter.EitherPort,
}

var multiportMatch = matchExtension{
	options: spec("sports dports ports source-ports destination-ports"),
	lower:   each(lowerMultiport),
	listed:  map[string]listedMatch{"multiport": (*restReader).multiport},
}

func lowerMultiport(l *lowerer, o *Option) bool {
	side, ok := multiportSides[o.Name]
	t := netfilter.MatchPort{Side: side, Not: o.Not}
	for text := range strings.SplitSeq(o.arg(), ",") {
		r, good := parsePorts(text, ":")
		ok = ok && good
		t.Ranges = append(t.Ranges, r)
	}
	l.test(&t)
	return ok
}

func (l *restReader) multiport(not bool) bool {
	which := l.next()
	not = l.not() || not
	list, ok := portNumbers(l.next(), ",:")
	_, known := multiportSides[which]
	l.begin("multiport")
	return ok && known && l.add("multiport", Option{Not: not, Name: which, Args: []string{list}})
}
