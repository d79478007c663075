package proof

import (
	"errors"
	"io/fs"
	"slices"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// orders are, for each host, base chains of equal priority that the kernel was seen to call in another order than the one in which the
// prediction has them. The kernel calls the one first that was made last; tools list the tables by their ages, and iptables-nft makes a
// table's base chains one by one, as they are needed.
func orders(
	source snapshot.Source, o *Observed, id *identity, expected func(host string) func(packet.Tuple) bool,
) (map[string][]walk.Order, error) {
	all := map[string][]walk.Order{}
	for name, h := range o.Hosts {
		if len(h.Trace) == 0 {
			continue
		}
		host, err := source.Host(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if list := disordered(host.Rules, called(h, id, expected(name))); len(list) > 0 {
			all[name] = list
		}
	}
	return all, nil
}

// called are the base chains that were called for packets of the probe, in order.
func called(h *Host, id *identity, expected func(packet.Tuple) bool) (chains []ChainID) {
	for _, t := range kernel.GroupTrace(h.Trace) {
		i := slices.IndexFunc(t.Events, func(e kernel.TraceEvent) bool { return e.Kind == kernel.TraceRule || e.Kind == kernel.TracePolicy })
		if i >= 0 && id.of(&t.Packet, t.Transport, expected) != foreign {
			chains = append(chains, ChainID{t.Events[i].Family, t.Events[i].Table, t.Events[i].Chain})
		}
	}
	return chains
}

// hooks are those at which chains of several tables may have one priority.
var hooks = []netfilter.Hook{netfilter.Prerouting, netfilter.Input, netfilter.Forward, netfilter.Output, netfilter.Postrouting}

// disordered finds pairs of base chains with one priority of which the second was called before the first; or, where they translate, the
// second alone: what binds a connection ends the asking.
func disordered(rules *netfilter.Ruleset, calls []ChainID) (list []walk.Order) {
	for _, family := range []netfilter.Family{netfilter.IPv4, netfilter.IPv6} {
		for _, hook := range hooks {
			chains := rules.Hook(family, hook)
			for i := range len(chains) - 1 {
				first, then := chains[i], chains[i+1]
				if first.Base.Priority != then.Base.Priority {
					continue
				}
				one, two := slices.Index(calls, chainID(first)), slices.Index(calls, chainID(then))
				if two >= 0 && (two < one || one < 0 && then.Base.Type == "nat" && len(first.Rules) > 0) {
					list = append(list, walk.Order{First: then, Then: first})
				}
			}
		}
	}
	return list
}
