package plan

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// Revise brings a network from what one cluster says to what another says. What neither says stays: Services' front ends, the route
// controller's routes; and the NICs of nodes that are to leave, which go with them.
func Revise(n *vnet.Network, from, to *cluster.Cluster) error {
	before, err := Network(from)
	if err != nil {
		return err
	}
	after, err := Network(to)
	if err != nil {
		return err
	}
	reviseVNets(n, before, after)
	n.PublicAddresses = to.Frontends()
	if err := addNodes(n, to); err != nil {
		return err
	}
	if err := reviseTables(n, before, after); err != nil {
		return err
	}
	reviseSecurity(n, before, after)
	if err := reviseVMs(n, from, to); err != nil {
		return err
	}
	n.Hosts = after.Hosts
	return checkFrontends(n, to)
}

// reviseVNets sets the VNets to their new state. It keeps the route tables that another client assigned to subnets.
func reviseVNets(n *vnet.Network, before, after vnet.Network) {
	for i := range after.VNets {
		v := &after.VNets[i]
		for j := range v.Subnets {
			s := &v.Subnets[j]
			was, _ := before.Subnet(v.Name, s.Name)
			if is, ok := n.Subnet(v.Name, s.Name); ok && was.RouteTable == s.RouteTable {
				s.RouteTable = is.RouteTable
			}
		}
		for j := range v.Peerings {
			p := &v.Peerings[j]
			p.Parted = !after.Peered(v.Name, p.RemoteVNet) && wasConnected(n, v.Name, p.RemoteVNet)
		}
	}
	n.VNets = after.VNets
}

// wasConnected reports whether a virtual network's side of a peering has been connected.
func wasConnected(n *vnet.Network, from, to string) bool {
	return n.Peered(from, to) || slices.ContainsFunc(n.VNets, func(v vnet.VNet) bool {
		return v.Name == from && slices.ContainsFunc(v.Peerings, func(p vnet.Peering) bool { return p.RemoteVNet == to && p.Parted })
	})
}

// reviseTables changes the routes that are cluster.yaml's.
func reviseTables(n *vnet.Network, before, after vnet.Network) error {
	for _, t := range before.RouteTables {
		now, stays := after.RouteTable(t.Name)
		if !stays {
			n.RouteTables = slices.DeleteFunc(n.RouteTables, func(o vnet.RouteTable) bool { return o.Name == t.Name })
			continue
		}
		for _, r := range t.Routes {
			if !slices.ContainsFunc(now.Routes, func(o vnet.UserRoute) bool { return o.Name == r.Name }) {
				n.DeleteRoute(t.Name, r.Name)
			}
		}
	}
	for _, t := range after.RouteTables {
		if _, ok := n.RouteTable(t.Name); !ok {
			n.RouteTables = append(n.RouteTables, vnet.RouteTable{Name: t.Name})
		}
		for _, r := range t.Routes {
			if err := n.SetRoute(t.Name, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// reviseVMs gives VMs NICs and public addresses, and takes them from those that are gone. A NIC whose place is another one is a new NIC.
func reviseVMs(n *vnet.Network, from, to *cluster.Cluster) error {
	for _, vm := range from.Spec.Azure.VMs {
		i := slices.IndexFunc(to.Spec.Azure.VMs, func(o cluster.VM) bool { return o.Name == vm.Name })
		if i < 0 || to.Spec.Azure.VMs[i].Subnet != vm.Subnet || to.Spec.Azure.VMs[i].Address != vm.Address {
			n.ReleasePublicIP(publicIPOf(vm.Name))
			n.ReleaseNIC(NICOf(vm.Name))
		}
	}
	for _, vm := range to.Spec.Azure.VMs {
		n.ReleasePublicIP(publicIPOf(vm.Name)) // all of them first: they may change places
	}
	for _, vm := range to.Spec.Azure.VMs {
		i := slices.IndexFunc(n.NICs, func(nic vnet.NIC) bool { return nic.Name == NICOf(vm.Name) })
		if i < 0 {
			if err := addVM(n, to, vm); err != nil {
				return err
			}
			continue
		}
		n.NICs[i].IPForwarding, n.NICs[i].SecurityGroup = vm.IPForwarding, vm.NetworkSecurityGroup
		setVMPublicIP(n, to, vm.Name, &n.NICs[i])
	}
	return nil
}

// checkFrontends checks that the front ends are among the public addresses that are handed out from now on.
func checkFrontends(n *vnet.Network, to *cluster.Cluster) error {
	for i := range n.LoadBalancers {
		for _, f := range n.LoadBalancers[i].Frontends {
			if !f.Internal() && !slices.Contains(n.PublicAddresses, f.Address) {
				return fmt.Errorf("spec.loadBalancer.frontends: %s is in use by a front end; delete its Service first ('packetwalk kubectl get svc -A' names it), "+
					"or leave the address in", f.Address)
			}
		}
	}
	return nil
}
