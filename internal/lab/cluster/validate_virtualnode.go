package cluster

import (
	"fmt"
	"slices"
)

// virtualNode checks that container groups have a subnet of their own, as Azure delegates one to them.
func (v *validator) virtualNode() {
	s := v.c.Spec
	const path = "spec.virtualNode.subnet"
	if s.VirtualNode.Subnet != "" {
		v.subnetRef(path, s.VirtualNode.Subnet, func(at placedSubnet) bool {
			return !slices.ContainsFunc(s.NodePools, func(p NodePool) bool { return p.VNetSubnet == at.ref() }) &&
				!slices.ContainsFunc(s.Azure.VMs, func(vm VM) bool { return vm.Subnet == at.ref() })
		})
	}
	if !s.VirtualNode.Enabled {
		return
	}
	if s.Network.Plugin != PluginAzure {
		v.errs.add("spec.virtualNode.enabled", "write spec.network.plugin: azure, or leave spec.virtualNode out",
			"a virtual node needs network plugin azure, as in AKS")
	}
	if s.VirtualNode.Subnet == "" {
		v.errs.add(path, "write \"vnet/subnet\" of a subnet in spec.azure.vnets that nothing else uses", "container groups need a subnet")
		return
	}
	for i, p := range s.NodePools {
		if p.VNetSubnet == s.VirtualNode.Subnet {
			v.errs.add(path, "write another subnet", "%s is the subnet of spec.nodePools[%d]: a subnet of container groups holds nothing else",
				p.VNetSubnet, i)
		}
	}
	for i, vm := range s.Azure.VMs {
		if vm.Subnet == s.VirtualNode.Subnet {
			v.errs.add(path, "write another subnet", "%s is the subnet of spec.azure.vms[%d]: a subnet of container groups holds nothing else",
				vm.Subnet, i)
		}
	}
	if _, sub, ok := v.c.findSubnet(s.VirtualNode.Subnet); ok && sub.RouteTable != "" {
		v.errs.add(path, "take routeTable from the subnet, or write another subnet",
			"%s has route table %s, and Azure delegates no subnet to container groups that has one",
			s.VirtualNode.Subnet, sub.RouteTable)
	}
	for i, n := range s.Azure.VNets {
		for j, p := range n.AddressPrefixes {
			if p.Overlaps(ContainerHosts) {
				v.errs.add(fmt.Sprintf("spec.azure.vnets[%d].addressPrefixes[%d]", i, j), "write a private range (RFC 1918)",
					"%s overlaps %s, which Azure's own network under container groups has", p, ContainerHosts)
			}
		}
	}
}
