package arm

import (
	"fmt"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
)

const compute = "Microsoft.Compute"

// computeResources returns the resources of a type of the compute provider's, with what clients of the network look at. ok is false for a
// type that the lab has not.
func computeResources(n vnet.Network, name string) (all []any, ok bool) {
	switch strings.ToLower(name) {
	case "virtualmachines":
		return VirtualMachines(n), true
	case "availabilitysets":
		return availabilitySets(n), true
	}
	return nil, false
}

func (b builder) computeID(group, kind, name string) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s/%s", b.n.Subscription, group, compute, kind, name)
}

// VirtualMachines returns the machines with their interfaces and availability sets.
func VirtualMachines(n vnet.Network) (all []any) {
	n = Visible(n)
	b := newBuilder(n)
	for _, nic := range n.NICs {
		group := b.machineGroup(nic.Machine)
		properties := object{"provisioningState": "Succeeded", "networkProfile": object{"networkInterfaces": []any{object{
			"id": *b.id(group, "networkInterfaces", nic.Name), "properties": object{"primary": true}}}}}
		if set := AvailabilitySet(nic.Machine); set != "" {
			properties["availabilitySet"] = object{"id": b.computeID(group, "availabilitySets", set)}
		}
		all = append(all, object{
			"id": b.computeID(group, "virtualMachines", nic.Machine), "name": nic.Machine, "type": compute + "/virtualMachines",
			"location": n.Location, "properties": properties,
		})
	}
	return all
}

// AvailabilitySet returns the name of a node's availability set; "" for another machine. All nodes are in one, whatever their pools: a Basic
// load balancer's back ends are of one availability set. The name is as AKS forms it for its first pool.
func AvailabilitySet(machine string) string {
	part := strings.Split(machine, "-")
	if len(part) != 4 || part[0] != "aks" {
		return ""
	}
	return "agentpool-availabilitySet-" + part[2]
}

// availabilitySets returns the nodes' availability set, if there are nodes.
func availabilitySets(n vnet.Network) []any {
	b := newBuilder(n)
	var name string
	var members []any
	for _, nic := range Visible(n).NICs {
		if set := AvailabilitySet(nic.Machine); set != "" {
			name, members = set, append(members, object{"id": b.computeID(n.NodeResourceGroup, "virtualMachines", nic.Machine)})
		}
	}
	if name == "" {
		return nil
	}
	return []any{object{
		"id": b.computeID(n.NodeResourceGroup, "availabilitySets", name), "name": name, "type": compute + "/availabilitySets",
		"location": n.Location, "sku": object{"name": "Aligned"}, "properties": object{"virtualMachines": members, "platformFaultDomainCount": 2},
	}}
}
