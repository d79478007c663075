package nodes

import (
	"context"
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/status"
)

// nodeSettings are those of AKS's nodes from the start (AgentBaker, 99-force-bridge-forward.conf): one without a pod forwards for node ports,
// too.
var nodeSettings = netns.State{Sysctls: []netns.Sysctl{{Key: "net/ipv4/ip_forward", Value: "1"}}}

// isBridge returns a function that reports whether an address is one of a node's bridges, whose route leads to pods. The other addresses are
// those of Azure's network, which looks after their routes itself. A CNI plugin of the user's may route as it likes.
func (l *Nodes) isBridge(n *Node) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		return l.Cluster().Spec.Network.Plugin != cluster.PluginNone && a != n.Address && a != netns.Loopback
	}
}

// missing returns, one sentence each, what a node lacks of its settings, of the routes to its bridges, and of LocalDNS's link.
func (l *Nodes) missing(n *Node) []string {
	lacks, err := n.ns.Missing(nodeSettings)
	if err == nil {
		var lost []string
		lost, err = n.ns.LostRoutes(l.isBridge(n))
		lacks = append(lacks, lost...)
	}
	if err == nil {
		var cache string
		if cache, err = l.missingLocalDNS(n); cache != "" {
			lacks = append(lacks, cache)
		}
	}
	for i, text := range lacks {
		lacks[i] = fmt.Sprintf("%s: %s is missing", n.Name, text)
	}
	if err != nil {
		lacks = append(lacks, n.Name+": "+status.OneLine(err))
	}
	return lacks
}

// Repair makes again what nodes lack of their settings, of the routes to their bridges and of LocalDNS's link, and returns that in words.
func (l *Nodes) Repair(context.Context) (repaired []string, err error) {
	for _, n := range l.List() {
		missing := l.missing(n)
		if len(missing) == 0 {
			continue
		}
		if err := n.ns.SetSysctls(nodeSettings.Sysctls...); err != nil {
			return repaired, err
		}
		if err := n.ns.RestoreRoutes(l.isBridge(n)); err != nil {
			return repaired, err
		}
		if err := l.ensureLocalDNSLink(n); err != nil {
			return repaired, err
		}
		repaired = append(repaired, missing...)
	}
	return repaired, nil
}
