package plan

import (
	"net/netip"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// Placement returns where a network's machines have their addresses.
func Placement(n vnet.Network) cluster.Placement {
	p := cluster.Placement{}
	for _, nic := range n.NICs {
		var addrs []netip.Addr
		for _, c := range nic.IPConfigs {
			addrs = append(addrs, c.Address)
		}
		p[nic.Machine] = addrs
	}
	return p
}

// Nodes returns the cluster's nodes, and after them those that a network still has of its pools: they are to leave, or were about to.
func Nodes(c *cluster.Cluster, n vnet.Network) []cluster.Node {
	all := c.Nodes()
	for _, nic := range n.NICs {
		node, ok := c.NodeOf(nic.Machine)
		if ok && !slices.ContainsFunc(all, func(o cluster.Node) bool { return o.Name == node.Name }) {
			all = append(all, node)
		}
	}
	return all
}

// PoolsOf returns the load balancer's pools that a NIC is in.
func PoolsOf(n vnet.Network, nic string) []string {
	var names []string
	if lb, ok := n.LoadBalancer(CloudName); ok {
		for _, p := range lb.BackendPools {
			if slices.ContainsFunc(p.Members, func(m vnet.IPConfigRef) bool { return m.NIC == nic }) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// JoinPools puts a NIC into the load balancer's pools of these names that it is not in.
func JoinPools(n *vnet.Network, name string, pools []string) {
	lb, ok := n.LoadBalancer(CloudName)
	nic, there := n.NIC(name)
	if !ok || !there {
		return
	}
	member := vnet.IPConfigRef{NIC: name, IPConfig: nic.Primary().Name}
	for i := range lb.BackendPools {
		pool := &lb.BackendPools[i]
		if slices.Contains(pools, pool.Name) && !slices.Contains(pool.Members, member) {
			pool.Members = append(pool.Members, member)
		}
	}
}
