package armview

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
)

// tagSpace returns the ranges behind the tags VirtualNetwork and Internet for a subnet: its network, those peered with it, the prefixes
// of its subnet's user-defined routes to appliances, and pods of an overlay network. A peer to which the peering does not allow access is
// routed to, but the tag VirtualNetwork does not hold it ("Create, change, or delete a virtual network peering", learn.microsoft.com).
func (f *fabric) tagSpace(subnet string) vnet.TagSpace {
	t := vnet.TagSpace{Networks: slices.Clone(f.overlay), Gateway: f.hasGateway(subnet), RoutedTags: f.routedTags(subnet),
		Members: func(group string) ([]netip.Prefix, vnet.Ends) { return f.groupMembers(group, subnet) }}
	id := vnetOf(subnet)
	v := f.VNets[id]
	if v == nil || v.ID == "" {
		t.Unread = fmt.Sprintf("virtual network %s, which was not read", plain(last(id)))
		return t
	}
	t.Networks = append(t.Networks, parseAll(v.AddressSpace.AddressPrefixes...)...)
	for i := range v.Peerings {
		p := &v.Peerings[i]
		if p.PeeringState != vnet.PeeringConnected || p.AllowVirtualNetworkAccess != nil && !*p.AllowVirtualNetworkAccess {
			continue
		}
		far := f.remote(p)
		switch {
		case p.ofSubnets():
			t.Unread = fmt.Sprintf("the subnets of peering %s", title(p.Resource))
		case len(far) == 0:
			t.Unread = fmt.Sprintf("the network of peering %s, which was not read", title(p.Resource))
		default:
			t.Networks = append(t.Networks, far...)
		}
	}
	if s := f.subnets[subnet]; s != nil {
		if table := f.RouteTables[s.RouteTable.id()]; table != nil {
			for _, r := range table.Routes {
				if vnet.InVirtualNetwork(r.NextHopType) {
					t.Routes = append(t.Routes, parseAll(r.AddressPrefix)...)
				}
			}
		}
	}
	return t
}

// routedTags returns the service tags of a subnet's user-defined routes that the tag VirtualNetwork holds.
func (f *fabric) routedTags(subnet string) (all []string) {
	s := f.subnets[subnet]
	if s == nil || f.RouteTables[s.RouteTable.id()] == nil {
		return nil
	}
	for _, r := range f.RouteTables[s.RouteTable.id()].Routes {
		if r.ofTag() && vnet.InVirtualNetwork(r.NextHopType) {
			all = append(all, plain(r.AddressPrefix))
		}
	}
	return all
}

// hasGateway reports whether a subnet's virtual network has a gateway: the tag VirtualNetwork holds what that has learnt, which is unknown.
func (f *fabric) hasGateway(subnet string) bool {
	id := vnetOf(subnet)
	v := f.VNets[id]
	return v != nil && v.ID != "" && f.gateway(v, id)
}

// inTag returns the question whether a service tag holds a destination.
func (f *fabric) inTag(tag string) netfilter.Statement {
	return f.question("destination in service tag " + plain(tag))
}
