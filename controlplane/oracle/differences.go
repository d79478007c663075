package oracle

// question is a packet that the two modes of upstream's treat differently.
type question struct {
	*probe
	settings         Settings
	iptables, tables outcomes // in the iptables and the nftables mode
}

// difference is a way in which upstream's modes differ on purpose.
type difference struct {
	name, reason string
	is           func(q *question) bool
}

const (
	refused = "rejected by "
	dropped = "dropped"
)

// asSent tells that nothing is done about the packet as one for a service.
func (q *question) asSent(o outcomes) bool {
	sent := q.request().Packet.Tuple.String()
	for _, end := range []string{"left by " + outside, "left by " + podLink(q.settings), "delivered by lo", "delivered by " + outside,
		"delivered by " + podLink(q.settings)} {
		if _, there := o[end+": "+sent]; there {
			return len(o) == 1
		}
	}
	return false
}

func (q *question) toService() bool { return q.kind == externalIP || q.kind == balancerIP }

// differences are all that there are, with upstream's reasons.
var differences = []difference{
	{"unused ports of cluster IPs", "pkg/proxy/nftables/README.md: the nftables mode rejects packets to undefined ports of cluster IPs",
		func(q *question) bool {
			return q.kind == unusedOfIP && q.asSent(q.iptables) && q.tables.always(refused)
		}},
	{"unallocated cluster IPs", "pkg/proxy/nftables/README.md: the nftables mode drops packets to cluster IPs that are not allocated, within " +
		"the ServiceCIDRs", func(q *question) bool {
		return q.kind == unallocated && len(q.settings.ServiceCIDRs) > 0 && q.asSent(q.iptables) && q.tables.always(dropped)
	}},
	{"node ports on localhost", "KEP-3866: the nftables mode has no node ports on loopback addresses, which need route_localnet",
		func(q *question) bool { return q.kind == nodePort && q.to.Addr().IsLoopback() && q.asSent(q.tables) }},
	{"node ports without endpoints, outside nodePortAddresses", "pkg/proxy/iptables/proxier.go: the rules for them in " +
		"KUBE-EXTERNAL-SERVICES hold at all local addresses (addrtype); pkg/proxy/nftables/proxier.go, nodePortEndpointsCheckChain: at @nodeport-ips only",
		func(q *question) bool {
			return q.kind == nodePort && len(q.settings.NodePortAddresses) > 0 && q.asSent(q.tables) &&
				(q.iptables.always(refused) || q.iptables.always(dropped))
		}},
	{"external addresses without endpoints, from the node", "pkg/proxy/nftables/proxier.go, nftablesJumpChains: service-endpoints-check is in " +
		"output for all addresses; in iptables KUBE-EXTERNAL-SERVICES is in input and forward only", func(q *question) bool {
		return q.toService() && q.arrives == "" && q.asSent(q.iptables) && (q.tables.always(refused) || q.tables.always(dropped))
	}},
	{"source ranges of services without endpoints", "pkg/proxy/nftables/proxier.go, usesFWChain: source ranges hold without endpoints, too; " +
		"in iptables they need some", func(q *question) bool {
		return q.kind == balancerIP && q.iptables.always(refused) && q.tables.always(dropped)
	}},
}

// differs finds the kind of a difference; "" where there is none that is known.
func (q *question) differs() string {
	for i := range differences {
		if differences[i].is(q) {
			return differences[i].name
		}
	}
	return ""
}
