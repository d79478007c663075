package armview

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
)

// subnetPeering is the kind of a route by a peering of subnets.
const subnetPeering = "subnet-peering"

// remote returns the prefixes of a peered network: those to which the peering was last synchronised, by which Azure routes; else those that
// it has now. Of a peering of subnets all that may be meant.
func (f *fabric) remote(p *Peering) []netip.Prefix {
	synced, now := parseAll(p.RemoteAddressSpace.AddressPrefixes...), parseAll(p.RemoteVNetSpace.AddressPrefixes...)
	var own []netip.Prefix
	if v := f.VNets[p.Remote.id()]; v != nil && v.ID != "" {
		own = parseAll(v.AddressSpace.AddressPrefixes...)
	}
	switch {
	case p.ofSubnets():
		return widest(slices.Concat(synced, now, own))
	case len(synced) > 0:
		return synced
	case len(now) > 0:
		return now
	}
	return own
}

// unreadPeer returns a peering of a virtual network of which nothing says what prefixes the other has; "" for none.
func (f *fabric) unreadPeer(v *VirtualNetwork) string {
	for i := range v.Peerings {
		if p := &v.Peerings[i]; p.PeeringState == vnet.PeeringConnected && len(f.remote(p)) == 0 {
			return title(p.Resource)
		}
	}
	return ""
}

// privateEndpoints: a private endpoint has a route of its own in its virtual network and in the peered ones, longer than any user-defined
// one, unless its subnet's policies say otherwise ("Manage network policies for private endpoints", learn.microsoft.com). Which addresses
// of a subnet are endpoints is not read.
func (f *fabric) privateEndpoints(c *netfilter.Chain, v *VirtualNetwork, id string, t *RouteTable) {
	near, spaces := map[string]bool{id: true}, parseAll(v.AddressSpace.AddressPrefixes...)
	for i := range v.Peerings {
		if p := &v.Peerings[i]; p.PeeringState == vnet.PeeringConnected {
			near[p.Remote.id()], spaces = true, append(spaces, f.remote(p)...)
		}
	}
	machines := parseAll("0.0.0.0") // an unused address, so that the test has one
	for _, n := range f.nics {
		for _, x := range n.configs {
			if n.PrivateEndpoint == nil {
				machines = append(machines, netip.PrefixFrom(x.address, 32))
			}
		}
	}
	for _, key := range sorted(f.subnets) {
		s := f.subnets[key]
		ranges := s.ranges()
		beaten := slices.ContainsFunc(t.Routes, func(r Route) bool {
			p, ok := parse(r.AddressPrefix) // a shorter one than the network's is not asked there
			return ok && slices.ContainsFunc(ranges, p.Overlaps) && slices.ContainsFunc(spaces, func(space netip.Prefix) bool {
				return p.Bits() >= space.Bits() && space.Overlaps(p)
			})
		})
		if home := vnetOf(key); near[home] && len(s.PrivateEndpoints) > 0 && beaten {
			add(c, "a private endpoint's route", addresses(false, false, ranges...), addresses(false, true, machines...),
				maybe("the destination is a private endpoint of subnet %s, with a route of its own", title(s.Resource)),
				to(f.vnetChain(home), false))
		}
	}
}

// forwarded: a peered network takes what others forward only where its side of the peering says so.
func (f *fabric) forwarded(c *netfilter.Chain, w way, v *VirtualNetwork) {
	own := parseAll(v.AddressSpace.AddressPrefixes...)
	if len(own) == 0 {
		return
	}
	tests := []netfilter.Statement{addresses(false, false, w.prefix), addresses(true, true, own...)}
	far := f.VNets[w.hop]
	if far == nil || far.ID == "" {
		add(c, "forwarded over a peering of which the other side was not read", with(tests,
			maybe("the other side of peering %s takes no forwarded traffic", title(w.own.Resource)), decide(netfilter.Drop))...)
		return
	}
	for _, p := range far.Peerings {
		if strings.EqualFold(p.Remote.id(), v.ID) && !p.AllowForwardedTraffic { // what Azure takes to be forwarded is not documented
			add(c, "the other side of the peering takes no forwarded traffic", with(tests,
				maybe("peering %s keeps forwarded traffic out", title(p.Resource)), decide(netfilter.Drop))...)
		}
	}
}
