package ippool

import (
	"net/netip"
	"slices"
	"sync"

	"packetwalk.dev/internal/model/reason"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Signed says what the pools' rules are there for, felix's as well as ours: with the pools, which of them decide about a packet.
func Signed(pools []Pool) reason.Writer {
	begins := func(from, to, what string) reason.Chain {
		return reason.Chain{Name: from, For: "where Calico's nat begins", Rules: []reason.Line{{To: to, For: "Calico: " + what}}}
	}
	leads := []reason.Line{
		{To: chainFIPDNAT, For: "Calico: floating addresses, of which Kubernetes has none"},
		{To: chainFIPSNAT, For: "Calico: floating addresses, of which Kubernetes has none"},
		{To: chainNATOutgoing, For: "Calico: is it from a pool with natOutgoing?"},
	}
	return reason.Writer{
		Name: "Calico's pools", File: "internal/node/ippool/plan.go", Know: poolsOf(pools).know, Always: always(),
		Chains: reason.In(iptables.NAT,
			begins("PREROUTING", chainPrerouting, "destinations of what comes in"),
			begins("OUTPUT", chainOutput, "destinations of the node's own packets"),
			begins("POSTROUTING", chainPostrouting, "sources of what leaves"),
			reason.Chain{Name: chainPrerouting, For: "destinations of what comes in", Rules: leads[:1]},
			reason.Chain{Name: chainOutput, For: "destinations of the node's own packets", Rules: leads[:1]},
			reason.Chain{Name: chainPostrouting, For: "sources of what leaves", Rules: leads[1:]},
			reason.Chain{Name: chainNATOutgoing, For: "gives what pools with natOutgoing send outside every pool the node's address",
				Rules: []reason.Line{{
					To: "MASQUERADE",
					For: "Calico[ pool {pool} has natOutgoing, and no pool holds the destination|" +
						": from a pool with natOutgoing to a destination outside every pool]",
					Not: "Calico[: {outside}| pool {other} holds the destination, {too}| pool {other} holds the destination|" +
						" pool {pool} has natOutgoing and no pool holds the destination: the node's IP sets do not say what the pools do|" +
						": from no pool with natOutgoing, or to one of the pools]",
				}}},
			reason.Chain{Name: chainFIPDNAT, For: "empty with Kubernetes: OpenStack's floating addresses"},
			reason.Chain{Name: chainFIPSNAT, For: "empty with Kubernetes: OpenStack's floating addresses"},
		),
	}
}

// always is how every node leads to what its pools do to the sources of what leaves.
var always = sync.OnceValue(func() string {
	plan := Build(service.IPv4, Felix{}, nil)
	edit := plan.Edit(nil)
	edit.Replace = slices.DeleteFunc(edit.Replace, func(c iptables.Chain) bool { return c.Name != chainPostrouting && c.Name != chainFIPSNAT })
	edit.Insert = slices.DeleteFunc(edit.Insert, func(j iptables.Placed) bool { return j.Rule.Target.Name != chainPostrouting })
	return string(iptables.AppendRestore(nil, []iptables.Edit{edit}))
})

type poolsOf []Pool

// holding is the narrowest pool that an address is in, among those that translate or among all; its name is empty where there is none.
func (all poolsOf) holding(a netip.Addr, translating bool) Pool {
	var best Pool
	for _, p := range all {
		if p.CIDR.Contains(a) && (p.NATOutgoing || !translating) && (!best.CIDR.IsValid() || p.CIDR.Bits() > best.CIDR.Bits()) {
			best = p
		}
	}
	return best
}

func (all poolsOf) know(r *reason.Rule, f reason.Fields) {
	from, to := all.holding(r.Source, true).Name, all.holding(r.Destination, false).Name
	f.Set("pool", from)
	switch {
	case len(all) > 0 && from == "":
		f.Set("outside", "no pool with natOutgoing holds the source")
	case from != "" && to == from:
		f.Set("too", "too")
		fallthrough
	case from != "":
		f.Set("other", to)
	}
}
