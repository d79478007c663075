package foreign

import (
	"net/netip"

	"packetwalk.dev/internal/model/attribution"
)

// Pool is a Calico IPPool.
type Pool struct {
	Name        string
	CIDR        netip.Prefix
	NATOutgoing bool
}

// felixNAT describes felix's nat chains, which masquerade what pods of pools with natOutgoing send outside every pool
// (felix/rules/nat.go, felix/dataplane/linux/masq_mgr.go).
func felixNAT() []attribution.Chain {
	begins := func(from, to, what string) attribution.Chain {
		return attribution.Chain{Name: from, For: "where Calico's nat begins", Rules: []attribution.Line{{To: to, For: "Calico: " + what}}}
	}
	leads := []attribution.Line{
		{To: "cali-fip-dnat", For: "Calico: floating addresses, of which Kubernetes has none"},
		{To: "cali-fip-snat", For: "Calico: floating addresses, of which Kubernetes has none"},
		{To: "cali-nat-outgoing", For: "Calico: is it from a pool with natOutgoing?"},
	}
	return attribution.In("nat",
		begins("PREROUTING", "cali-PREROUTING", "destinations of what comes in"),
		begins("OUTPUT", "cali-OUTPUT", "destinations of the node's own packets"),
		begins("POSTROUTING", "cali-POSTROUTING", "sources of what leaves"),
		attribution.Chain{Name: "cali-PREROUTING", For: "destinations of what comes in", Rules: leads[:1]},
		attribution.Chain{Name: "cali-OUTPUT", For: "destinations of the node's own packets", Rules: leads[:1]},
		attribution.Chain{Name: "cali-POSTROUTING", For: "sources of what leaves", Rules: leads[1:]},
		attribution.Chain{Name: "cali-nat-outgoing", For: "gives what pools with natOutgoing send outside every pool the node's address",
			Rules: []attribution.Line{{
				To: "MASQUERADE",
				For: "Calico[ pool {pool} has natOutgoing, and no pool holds the destination|" +
					": from a pool with natOutgoing to a destination outside every pool]",
				Not: "Calico[: {outside}| pool {other} holds the destination, {too}| pool {other} holds the destination|" +
					" pool {pool} has natOutgoing and no pool holds the destination: the node's IP sets do not say what the pools do|" +
					": from no pool with natOutgoing, or to one of the pools]",
			}}},
		attribution.Chain{Name: "cali-fip-dnat", For: "empty with Kubernetes: OpenStack's floating addresses"},
		attribution.Chain{Name: "cali-fip-snat", For: "empty with Kubernetes: OpenStack's floating addresses"},
	)
}

// felixAlways holds what felix has in table nat on each node for the sources of what leaves. Up to 3.27 its jump is the first rule of
// POSTROUTING, from 3.28 on the last, with a different hash.
const felixAlways = `*nat
:cali-POSTROUTING - [0:0]
:cali-fip-snat - [0:0]
-A cali-POSTROUTING -m comment --comment "cali:Z-c7XtVd2Bq7s_hA" -j cali-fip-snat
-A cali-POSTROUTING -m comment --comment "cali:nYKhEzDlr11Jccal" -j cali-nat-outgoing
-I POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A POSTROUTING -m comment --comment "cali:0i8pjzKKPyA34aQD" -j cali-POSTROUTING
COMMIT
`

type poolsOf []Pool

// narrowest returns the narrowest pool that holds an address, of those with natOutgoing or of all; without a name if none does.
func (all poolsOf) narrowest(a netip.Addr, natOutgoing bool) Pool {
	var best Pool
	for _, p := range all {
		if p.CIDR.Contains(a) && (p.NATOutgoing || !natOutgoing) && (!best.CIDR.IsValid() || p.CIDR.Bits() > best.CIDR.Bits()) {
			best = p
		}
	}
	return best
}

// know sets the fields of cali-nat-outgoing's rule: the pools of the packet's source and destination.
func (all poolsOf) know(r *attribution.Rule, f attribution.Fields) {
	from, to := all.narrowest(r.Source, true).Name, all.narrowest(r.Destination, false).Name
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
