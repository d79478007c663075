package armview

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// groupOf returns the resource group in an id, in lower case: "/subscriptions/x/resourcegroups/y".
func groupOf(id string) string {
	group, _, _ := strings.Cut(strings.ToLower(id), "/providers/")
	return group
}

// clusterOf returns the managed cluster whose node an interface's machine is; nil where that was not read.
func (f *fabric) clusterOf(n *nic) *Cluster {
	for _, id := range sorted(f.Clusters) {
		subscription, _, _ := strings.Cut(id, "/resourcegroups/")
		if groupOf(n.ID) == subscription+"/resourcegroups/"+strings.ToLower(f.Clusters[id].NodeResourceGroup) {
			return f.Clusters[id]
		}
	}
	return nil
}

// podRanges returns those of pods that have no address of the virtual network: Azure routes them by itself.
func (c *Cluster) podRanges() []netip.Prefix {
	if c == nil || !strings.EqualFold(c.NetworkProfile.NetworkPluginMode, "overlay") {
		return nil
	}
	return parseAll(append(slices.Clone(c.NetworkProfile.PodCIDRs), c.NetworkProfile.PodCIDR)...)
}

// isNode reports whether an interface is a node's.
func (n *nic) isNode() bool { return strings.HasPrefix(n.machine, "node/") }

// unknownPlace returns why it is not known where Azure has the addresses of pods that are none of the interface's subnets; "" where it is
// known, and for an interface that is no node's.
func (f *fabric) unknownPlace(n *nic) string {
	v := f.VNets[vnetOf(n.configs[0].Subnet.id())]
	switch {
	case !n.isNode():
		return ""
	case f.clusterOf(n) == nil:
		return "whether pods have an overlay network: the cluster was not read"
	case v == nil || v.ID == "":
		return "whether the virtual network has the pod's address: it was not read"
	}
	return ""
}

// strayPods returns the addresses of pods, and the ranges of nodes for them, that no subnet of a virtual network holds.
func (f *fabric) strayPods(network string) []netip.Prefix {
	var all []netip.Prefix
	for _, node := range f.objects.Nodes {
		all = append(all, node.PodCIDRs...)
	}
	for _, node := range sorted(f.podsOn) {
		for _, ip := range f.podsOn[node] {
			if _, s := f.subnetAt(network, ip); s == nil {
				all = append(all, netip.PrefixFrom(ip, 32))
			}
		}
	}
	return widest(slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.Addr().Is4() || f.routedToNode(network, p) }))
}

// routedToNode reports whether a user-defined route of the virtual network's leads to one of its nodes for all of a prefix: so pods of
// kubenet, and of clusters that are not AKS's, are reached, and none of an overlay network.
func (f *fabric) routedToNode(network string, pods netip.Prefix) bool {
	isNode := func(a string) bool {
		return slices.ContainsFunc(f.nics, func(n *nic) bool {
			return n.isNode() && slices.ContainsFunc(n.configs, func(c *config) bool { return c.PrivateIPAddress == a })
		})
	}
	for id, s := range f.subnets {
		t := f.RouteTables[s.RouteTable.id()]
		if vnetOf(id) != network || t == nil {
			continue
		}
		for _, r := range t.Routes {
			p, ok := parse(r.AddressPrefix)
			if ok && p.Bits() > 0 && p.Bits() <= pods.Bits() && p.Contains(pods.Addr()) && isNode(r.NextHopIPAddress) {
				return true
			}
		}
	}
	return false
}

// maxWords is the most prefixes that a rule's text names one by one.
const maxWords = 8

// stray tests for such an address; nil where there is none. Each node has rules with it, so that it is made once.
func (f *fabric) stray(network string, source bool) netfilter.Statement {
	key := fmt.Sprintf("%t %s", source, network)
	s, ok := f.strays[key]
	if ok {
		return s
	}
	if pods := f.strayPods(network); len(pods) > 0 {
		s = addresses(source, false, pods...)
		if set, ok := s.(*netfilter.InSet); ok && len(pods) > maxWords {
			set.Words = fmt.Sprintf("{ %d prefixes of pods }", len(pods))
		}
	}
	f.strays[key] = s
	return s
}

// askDoubt ends a walk from such pods, or to them, where that is in doubt.
func (f *fabric) askDoubt(c *netfilter.Chain, n *nic, source bool, tests ...netfilter.Statement) {
	why := f.unknownPlace(n)
	if stray := f.stray(vnetOf(n.configs[0].Subnet.id()), source); why != "" && stray != nil {
		add(c, "pods of which it is not known where they are", with(tests, in(n.link), stray, unknown("%s", why))...)
	}
}

// noteClusters says of which nodes the managed cluster was not read, where pods may have an overlay network.
func (f *fabric) noteClusters() {
	for _, n := range f.nics {
		if n.isNode() && f.clusterOf(n) == nil && f.stray(vnetOf(n.configs[0].Subnet.id()), true) != nil {
			group, _, _ := strings.Cut(n.ID, "/providers/")
			f.notes = append(f.notes, fmt.Sprintf("Azure: the managed cluster of resource group %s was not read: "+
				"whether its pods have an overlay network is not known%s", plain(last(group)), f.clusterRemedy()))
		}
	}
}

// toPods: nodes reach pods of the overlay network ("Azure CNI Overlay networking", network security groups, learn.microsoft.com: "traffic
// from the node CIDR to the pod CIDR"), others do not.
func (f *fabric) toPods(raw *netfilter.Chain, n *nic) {
	var own []netip.Prefix
	for _, x := range n.configs {
		own = append(own, netip.PrefixFrom(x.address, 32))
	}
	from := addresses(true, false, own...)
	if pods := f.clusterOf(n).podRanges(); len(pods) > 0 && n.isNode() {
		add(raw, "to the pods' own network", in(n.link), from, addresses(false, false, pods...), to(f.overlayChain(), false))
	}
	f.askDoubt(raw, n, false, from)
}

// fromPods: pods of the overlay network reach each other, and answer nodes, by their own addresses. To others they have their node's.
func (f *fabric) fromPods(raw *netfilter.Chain, n *nic) {
	if pods := f.clusterOf(n).podRanges(); len(pods) > 0 {
		add(raw, "pods' own network", in(n.link), addresses(true, false, pods...), to(f.overlayChain(), false))
	}
	f.askDoubt(raw, n, true)
}

// overlayChain leads to nodes, and to pods that have addresses of their own network.
func (f *fabric) overlayChain() *netfilter.Chain {
	c, fresh := f.chain("vnet/pods")
	if !fresh {
		return c
	}
	for _, n := range f.nics {
		var there []netip.Prefix
		for _, ip := range f.pods(n) {
			there = append(there, netip.PrefixFrom(ip, 32))
		}
		for _, node := range f.objects.Nodes {
			if "node/"+node.Name == n.machine {
				there = append(there, node.PodCIDRs...)
			}
		}
		there = slices.DeleteFunc(there, func(p netip.Prefix) bool { return !p.Addr().Is4() })
		for _, x := range n.configs {
			if n.isNode() {
				there = append(there, netip.PrefixFrom(x.address, 32))
			}
		}
		if len(there) > 0 {
			add(c, "to the pod's node", addresses(false, false, there...), setMark(n.mark, false), decide(netfilter.Accept))
		}
	}
	add(c, "a pod that is not known", addresses(false, false, f.overlay...), unknown("no node is known to have the pod's address"))
	add(c, "pods' own network", unknown("a pod's address of the overlay network leaves its node, which should have its own there"))
	return c
}
