package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func (v *validator) azure() {
	a := v.c.Spec.Azure
	v.name("spec.azure.subscription", a.Subscription, subscription, "a UUID in lower case")
	v.name("spec.azure.resourceGroup", a.ResourceGroup, resourceGroup, "1 to 90 letters, digits, -, _, (, ) and ., no . at the end")
	v.name("spec.azure.location", a.Location, location, "a region's short name, such as westeurope")
	if len(a.VNets) == 0 {
		v.errs.add("spec.azure.vnets", "leave the field out for the default", "a cluster needs a VNet")
	}
	names := map[string]string{}
	for i, n := range a.VNets {
		at := fmt.Sprintf("spec.azure.vnets[%d]", i)
		v.azureName(at+".name", n.Name, names)
		v.vnet(at, n)
	}
	v.peerings()
	v.routeTables()
	v.securityGroups()
	v.resourceManager()
}

// peerings checks that they name other VNets. One that only one side has is possible in Azure too, and carries nothing.
func (v *validator) peerings() {
	for i, n := range v.c.Spec.Azure.VNets {
		var others []string
		for _, o := range v.c.Spec.Azure.VNets {
			if o.Name != n.Name {
				others = append(others, o.Name)
			}
		}
		for j, remote := range n.Peerings {
			at := fmt.Sprintf("spec.azure.vnets[%d].peerings[%d]", i, j)
			switch first := slices.Index(n.Peerings, remote); {
			case remote == n.Name:
				v.errs.add(at, "write another VNet's name", "a VNet has no peering with itself")
			case !slices.Contains(others, remote):
				v.errs.add(at, suggestName(remote, others, "add it to spec.azure.vnets"), "no VNet %q in spec.azure.vnets", remote)
			case first < j:
				v.errs.add(at, "remove it", "the same as peerings[%d]", first)
			}
		}
	}
}

// routeTables checks the tables and that the subnets name some of them. A next hop that no VM has is no error, as in Azure: what the route
// leads to is dropped.
func (v *validator) routeTables() {
	names := map[string]string{}
	var known []string
	for i, t := range v.c.Spec.Azure.RouteTables {
		at := fmt.Sprintf("spec.azure.routeTables[%d]", i)
		v.azureName(at+".name", t.Name, names)
		known = append(known, t.Name)
		routes := map[string]string{}
		for j, r := range t.Routes {
			route := fmt.Sprintf("%s.routes[%d]", at, j)
			v.azureName(route+".name", r.Name, routes)
			v.route(route, r)
			if k := slices.IndexFunc(t.Routes, func(o Route) bool { return o.Prefix == r.Prefix }); k < j && r.Prefix.IsValid() {
				v.errs.add(route+".prefix", "write another prefix, or remove one of them", "%s is the prefix of routes[%d] too", r.Prefix, k)
			}
		}
	}
	for _, s := range v.c.subnets() {
		if s.RouteTable != "" && !slices.Contains(known, s.RouteTable) {
			v.errs.add(s.path+".routeTable", suggestName(s.RouteTable, known, "add it to spec.azure.routeTables"), "no route table %q", s.RouteTable)
		}
	}
}

func (v *validator) route(at string, r Route) {
	v.prefix(at+".prefix", r.Prefix, 0, 32)
	choice(v, at+".nextHopType", r.NextHopType, NextHopAppliance, NextHopVNetLocal, NextHopInternet, NextHopNone)
	switch appliance := r.NextHopType == NextHopAppliance; {
	case appliance && !r.NextHopAddress.Is4():
		v.errs.add(at+".nextHopAddress", "write the address of a VM with ipForwarding: true", "missing")
	case !appliance && r.NextHopAddress.IsValid():
		v.errs.add(at+".nextHopAddress", "leave it out, or write nextHopType: "+string(NextHopAppliance), "only a %s has an address",
			NextHopAppliance)
	}
}

func (v *validator) vnet(at string, n VNet) {
	if len(n.AddressPrefixes) == 0 {
		v.errs.add(at+".addressPrefixes", "write at least one range, such as 10.13.0.0/16", "missing")
	}
	if len(n.Subnets) == 0 {
		v.errs.add(at+".subnets", "write at least one subnet", "missing")
	}
	names := map[string]string{}
	for i, s := range n.Subnets {
		sub := fmt.Sprintf("%s.subnets[%d]", at, i)
		v.azureName(sub+".name", s.Name, names)
		if v.prefix(sub+".prefix", s.Prefix, 8, 29) {
			v.subnet(sub+".prefix", s.Prefix, n, i, at)
		}
	}
}

// subnet checks that a subnet lies in its VNet and off the subnets before it.
func (v *validator) subnet(path string, p netip.Prefix, n VNet, index int, at string) {
	in := func(q netip.Prefix) bool { return q.IsValid() && q.Bits() <= p.Bits() && q.Contains(p.Addr()) }
	if !slices.ContainsFunc(n.AddressPrefixes, in) && len(n.AddressPrefixes) > 0 {
		var all []string
		for _, q := range n.AddressPrefixes {
			all = append(all, q.String())
		}
		v.errs.add(path, "write a range within one of them, or add one that holds it", "%s lies outside its VNet's addressPrefixes, %s", p,
			strings.Join(all, ", "))
	}
	for j, other := range n.Subnets[:index] {
		if usable(other.Prefix) && p.Overlaps(other.Prefix) {
			v.errs.add(path, "write a range that is free", "%s overlaps %s.subnets[%d], %s", p, at, j, other.Prefix)
		}
	}
}

func usable(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4() }

// subnetRef checks that there is the subnet that a field names. The remedy names only those that are possible there.
func (v *validator) subnetRef(path, ref string, possible func(placedSubnet) bool) {
	if _, _, ok := v.c.findSubnet(ref); ok {
		return
	}
	var known []string
	for _, s := range v.c.subnets() {
		if azureName.MatchString(s.vnet.Name) && azureName.MatchString(s.Name) && possible(s) && !slices.Contains(known, s.ref()) {
			known = append(known, s.ref())
		}
	}
	switch {
	case len(known) > 0:
		v.errs.add(path, suggest(ref, known, "write one of "), "no subnet %q in spec.azure.vnets", ref)
	case len(v.c.subnets()) > 0: // without any, that is what is wrong
		v.errs.add(path, "add it there", "no subnet %q in spec.azure.vnets", ref)
	}
}
