package proof

import (
	"reflect"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// ordered returns the prediction once more, with the chains of different tables that have the same priority in the order in which the
// kernel's trace of the packet has them: which of them was registered last, and so is called first, no dump tells. It is the same
// prediction where the trace shows nothing new of that.
func ordered(source snapshot.Source, predicted *walk.Result, o *Observation) (*walk.Result, error) {
	request := predicted.Request
	request.Early = map[string][]walk.Call{}
	id, answers := identifyAny(o, predicted), answersAt(predicted)
	read := map[string]bool{} // what is read now would have the tables of the traces
	for s := range predicted.Steps() {
		h := o.Hosts[s.Host]
		if h == nil || read[s.Host] {
			continue
		}
		read[s.Host] = true
		host, err := source.Host(s.Host)
		if err != nil {
			return nil, err
		}
		if early := called(h, id, answers(s.Host), tied(host.Rules)); len(early) > 0 {
			request.Early[s.Host] = early
		}
	}
	if len(request.Early) == 0 || reflect.DeepEqual(request.Early, predicted.Request.Early) {
		return predicted, nil
	}
	return walk.Walk(source, request)
}

// assumesOrder reports whether a prediction assumes the order of chains. If there are too many outcomes in the other order, it has none of them.
func assumesOrder(predicted *walk.Result) bool {
	return slices.ContainsFunc(predicted.Assumed, func(a walk.Assumption) bool { return a.Tied[0].Chain != "" })
}

// called returns those of a host's chains that the packet or its answer was taken through, each once, in the order in which it was.
func called(h *Host, id *identity, answers func(packet.Tuple) bool, among map[walk.ChainRef]bool) (early []walk.Call) {
	for _, t := range witness.GroupTrace(h.Trace) { // one base chain each
		e := &t.Events[0]
		c := walk.ChainRef{Family: e.Family, Table: e.Table, Chain: e.Chain}
		call := walk.Call{ChainRef: c, IPv6: t.Packet.IsIPv6() && e.Family != netfilter.Bridge.String()}
		if among[c] && !slices.Contains(early, call) && id.of(&t.Packet, t.Transport, answers) != foreign {
			early = append(early, call)
		}
	}
	return early
}

// tied returns the base chains that share their hook and priority with a base chain of another table.
func tied(rules *netfilter.Ruleset) map[walk.ChainRef]bool {
	found := map[walk.ChainRef]bool{}
	for _, f := range [...]netfilter.Family{netfilter.IPv4, netfilter.IPv6, netfilter.Bridge} {
		for h := netfilter.Prerouting; h <= netfilter.Postrouting; h++ {
			chains := rules.Hook(f, h)
			for i := 1; i < len(chains); i++ {
				a, b := chains[i-1], chains[i]
				legacy := a.Table.Dialect == netfilter.IPTablesLegacy || b.Table.Dialect == netfilter.IPTablesLegacy // never in a trace
				if a.Base.Priority == b.Base.Priority && a.Table != b.Table && !legacy {
					found[walk.Ref(a)], found[walk.Ref(b)] = true, true
				}
			}
		}
	}
	return found
}
