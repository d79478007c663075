package iptables

import "packetwalk.dev/internal/model/netfilter"

const physdevOptions = "physdev-in physdev-out physdev-is-in=0 physdev-is-out=0 physdev-is-bridged=0"

var physdevMatch = matchExtension{
	options: spec(physdevOptions),
	lower:   lowerPhysdev,
	listed:  map[string]listedMatch{"PHYSDEV": (*restReader).physdev},
}

var bridgePortTests = map[string]netfilter.BridgePortTest{
	"physdev-in": netfilter.BridgePortIn, "physdev-out": netfilter.BridgePortOut, "physdev-is-in": netfilter.HasBridgeIn,
	"physdev-is-out": netfilter.HasBridgeOut, "physdev-is-bridged": netfilter.IsBridged,
}

func lowerPhysdev(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		kind, ok := bridgePortTests[o.Name]
		l.test(netfilter.NewMatchBridgePort(kind, o.Not, o.arg()))
		return ok
	})
}

func (l *restReader) physdev(not bool) bool {
	if not || !l.lit("match") {
		return false
	}
	l.begin("physdev")
	for {
		before := l.rest
		not := l.lit("!")
		name, ok := l.glued("--")
		n, known := spec(physdevOptions)[name]
		if !ok || !known {
			l.rest = before
			return true
		}
		o := Option{Not: not, Name: name}
		if n == 1 {
			o.Args = []string{l.next()}
			if !isValue(o.Args[0]) {
				return false
			}
		}
		l.add("physdev", o)
	}
}
