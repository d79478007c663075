package cluster

import (
	"fmt"
	"slices"
)

// MaxPoolNodes is the most nodes that a pool can have in the lab (spec.nodePools[].count).
const MaxPoolNodes = 100

// Bounds of a node pool. maxPods is AKS's own range for Azure CNI.
const (
	maxPools   = 10
	minMaxPods = 10
	maxMaxPods = 250
)

func (v *validator) pools() {
	c := v.c
	if len(c.Spec.NodePools) == 0 || len(c.Spec.NodePools) > maxPools {
		v.errs.add("spec.nodePools", fmt.Sprintf("write 1 to %d pools, or leave the field out", maxPools), "%d node pools", len(c.Spec.NodePools))
	}
	names := map[string]string{}
	for i, p := range c.Spec.NodePools {
		at := fmt.Sprintf("spec.nodePools[%d]", i)
		v.name(at+".name", p.Name, poolName, "1 to 12 lower-case letters and digits, a letter first")
		v.unique(at+".name", p.Name, names)
		v.number(at+".count", p.Count, 1, MaxPoolNodes)
		v.number(at+".maxPods", p.MaxPods, minMaxPods, maxMaxPods)
		v.name(at+".vmSize", p.VMSize, vmSize, "a size's name, such as Standard_B2ms")
		for j, zone := range p.AvailabilityZones {
			at := fmt.Sprintf("%s.availabilityZones[%d]", at, j)
			v.name(at, zone, zoneName, "1, 2 or 3")
			if first := slices.Index(p.AvailabilityZones[:j], zone); first >= 0 {
				v.errs.add(at, "remove it", "the same as availabilityZones[%d]", first)
			}
		}
		choice(v, at+".runtime", p.Runtime, RuntimeLight, RuntimeContainerd)
		if c.Spec.Network.Plugin == PluginNone && p.Runtime == RuntimeLight {
			v.errs.add(at+".runtime", "write containerd", "a light node has no place for a CNI plugin of your own, as spec.network.plugin: none needs it")
		}
		v.subnetRef(at+".vnetSubnet", p.VNetSubnet)
		if first := c.Spec.NodePools[0].VNetSubnet; p.VNetSubnet != first {
			v.errs.add(at+".vnetSubnet", "write "+first+" today", "node pools in different subnets are not built yet")
		}
	}
	if c.countable() {
		v.capacity()
		v.podCapacity()
	}
}

// podCapacity checks that each node gets its part of the range of pods.
func (v *validator) podCapacity() {
	n := v.c.Spec.Network
	if n.Plugin == PluginAzure || !usable(n.PodCIDR) || n.PodCIDR.Bits() > NodePodBits {
		return
	}
	nodes := 0
	for _, p := range v.c.Spec.NodePools {
		nodes += p.Count
	}
	if most := 1 << (NodePodBits - n.PodCIDR.Bits()); nodes > most {
		v.errs.add("spec.network.podCIDR", fmt.Sprintf("write a range of /%d or shorter, or fewer nodes", NodePodBits-(32-lengthFor(nodes))),
			"%s has a /%d for each of %d nodes and there are %d", n.PodCIDR, NodePodBits, most, nodes)
	}
}

// capacity checks that each subnet holds its nodes, their pods and the addresses that Azure keeps.
func (v *validator) capacity() {
	c, used := v.c, map[string]int{}
	for i, p := range c.Spec.NodePools {
		used[p.VNetSubnet] += p.Count * c.addressesPerNode(p)
		_, s, ok := c.findSubnet(p.VNetSubnet)
		need := used[p.VNetSubnet] + reserved
		if !ok || !usable(s.Prefix) || need <= size(s.Prefix) {
			continue
		}
		v.errs.add(fmt.Sprintf("spec.nodePools[%d].count", i),
			fmt.Sprintf("give the subnet a prefix of /%d or shorter, or write fewer nodes or a smaller maxPods", lengthFor(need)),
			"subnet %s, %s, has %d addresses and %d are needed: %d of nodes and pods (nodes × (1 + maxPods)) and %d that Azure keeps",
			p.VNetSubnet, s.Prefix, size(s.Prefix), need, need-reserved, reserved)
		return
	}
	if c.countable() {
		v.rowsFit()
	}
}

// rowsFit checks that each node finds its addresses in a row beside the machines that are there already.
func (v *validator) rowsFit() {
	for _, r := range v.c.layout() {
		if p := v.c.Spec.NodePools[r.pool]; !r.fits && usable(r.subnet.Prefix) {
			v.errs.add(fmt.Sprintf("spec.nodePools[%d].count", r.pool), "write fewer nodes, or take away machines of that subnet first",
				"subnet %s, %s, has no %d free addresses in a row for node %d of pool %s beside what is there", p.VNetSubnet, r.subnet.Prefix,
				v.c.addressesPerNode(p), r.index, p.Name)
			return
		}
	}
}
