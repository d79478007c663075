package iptables

import "packetwalk.dev/internal/model/netfilter"

const physdevOptions = "physdev-in physdev-out physdev-is-in=0 physdev-is-out=0 physdev-is-bridged=0"

var physdevMatch = matchExtension{
	options: spec(physdevOptions),
	lower:   each(lowerPhysdev),
	listed:  map[string]listedMatch{"PHYSDEV": (*restReader).physdev},
}

var bridgePortTests = map[string]netfilter.BridgePortTest{
	"physdev-in": netfilter.BridgePortIn, "physdev-out": netfilter.BridgePortOut, "physdev-is-in": netfilter.HasBridgeIn,
	"physdev-is-out": netfilter.HasBridgeOut, "physdev-is-bridged": netfilter.IsBridged,
}

func lowerPhysdev(l *lowerer, o *Option) bool {
	kind, ok := bridgePortTests[o.Name]
	l.test(netfilter.NewMatchBridgePort(kind, o.Not, o.arg()))
	return ok
}

func (l *restReader) physdev(not bool) bool {
	if not || !l.lit("match") {
		return false
	}
	return ownOptions("physdev", "--", spec(physdevOptions))(l, not)
}
