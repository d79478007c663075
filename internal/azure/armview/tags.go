package armview

import (
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
)

// tagSpace returns the ranges behind the tags VirtualNetwork and Internet for a subnet: its network, those peered with it, the prefixes
// of its subnet's user-defined routes to appliances, and pods of an overlay network. A peer to which the peering does not allow access is
// routed to, but the tag VirtualNetwork does not hold it ("Create, change, or delete a virtual network peering", learn.microsoft.com).
// What else that tag may hold and was not read is said in words.
func (f *fabric) tagSpace(subnet string) (t vnet.TagSpace, unread string) {
	t.Networks = slices.Clone(f.overlay)
	id := vnetOf(subnet)
	v := f.VNets[id]
	if v == nil || v.ID == "" {
		t.Open = true
		return t, fmt.Sprintf("virtual network %s, which was not read", plain(last(id)))
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
			unread = fmt.Sprintf("the subnets of peering %s", title(p.Resource))
		case len(far) == 0:
			unread = fmt.Sprintf("the network of peering %s, which was not read", title(p.Resource))
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
	t.Open = unread != "" || f.hasGateway(subnet) || len(f.routedTags(subnet)) > 0
	return t, unread
}

// routedTags returns the service tags of a subnet's user-defined routes that the tag VirtualNetwork holds.
func (f *fabric) routedTags(subnet string) (all []string) {
	s := f.subnets[subnet]
	if s == nil || f.RouteTables[s.RouteTable.id()] == nil {
		return nil
	}
	for _, r := range f.RouteTables[s.RouteTable.id()].Routes {
		if r.ofTag() && vnet.InVirtualNetwork(r.NextHopType) {
			all = append(all, r.AddressPrefix)
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

// inTag returns the question whether a service tag holds an address: one statement for each tag, so that one answer holds for all rules of
// a group.
func (f *fabric) inTag(source bool, tag string) netfilter.Statement {
	text := end(source) + " in service tag " + plain(tag)
	key := strings.ToLower(text)
	if f.inTags[key] == nil {
		f.inTags[key] = maybe("%s", text)
	}
	return f.inTags[key]
}
