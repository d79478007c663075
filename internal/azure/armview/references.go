package armview

import (
	"slices"
	"strings"
)

// References returns the ids, in lower case and sorted, of resources that those that were read name, that a walk needs, and that were not
// read.
func (r *Resources) References() []string {
	var all []string
	need := func(there bool, id string) {
		if id != "" && !there && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	address := func(x *ref) { need(r.PublicIPs[x.id()] != nil, x.id()) }
	prefix := func(x *ref) { need(r.Prefixes[x.id()] != nil, x.id()) }
	group := func(x *ref) { need(r.SecurityGroups[x.id()] != nil, x.id()) }
	network := func(id string) { need(r.VNets[id] != nil && r.VNets[id].ID != "", id) }
	home := map[string]bool{} // virtual networks that interfaces are in
	for _, i := range r.Interfaces {
		group(i.SecurityGroup)
		for _, c := range i.IPConfigs {
			address(c.PublicIPAddress)
			network(vnetOf(c.Subnet.id()))
			home[vnetOf(c.Subnet.id())] = true
			for _, p := range c.Pools {
				lb, _, _ := strings.Cut(p.id(), "/backendaddresspools/")
				need(r.LoadBalancers[lb] != nil, lb)
			}
		}
	}
	for _, lb := range r.LoadBalancers {
		for i := range lb.Frontends {
			address(lb.Frontends[i].PublicIPAddress)
			prefix(lb.Frontends[i].PublicIPPrefix)
		}
	}
	for _, g := range r.NATGateways {
		for i := range g.PublicIPs {
			address(&g.PublicIPs[i])
		}
		for i := range g.PublicIPPrefixes {
			prefix(&g.PublicIPPrefixes[i])
		}
	}
	for id, v := range r.VNets {
		if !home[id] {
			continue
		}
		for i := range v.Peerings {
			network(v.Peerings[i].Remote.id())
		}
	}
	for id, s := range r.subnets {
		if !home[vnetOf(id)] {
			continue
		}
		group(s.SecurityGroup)
		need(r.RouteTables[s.RouteTable.id()] != nil, s.RouteTable.id())
		need(r.NATGateways[s.NATGateway.id()] != nil, s.NATGateway.id())
	}
	slices.Sort(all)
	return all
}
