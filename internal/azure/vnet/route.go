package vnet

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// EffectiveRoute is one route that the packets of a subnet's machines meet.
type EffectiveRoute struct {
	Prefix      netip.Prefix
	NextHopType string
	NextHop     netip.Addr // of NextHopAppliance
	VNet        string     // the virtual network that NextHopVNetLocal and NextHopPeering lead into
	User        string     // the user-defined route's name, "" for a system route
	Active      bool       // false for a system route that a user-defined one of the same prefix overrides
}

// Private are the ranges that Azure routes nowhere unless a virtual network has them (RFC 1918, RFC 6598; "Virtual network traffic
// routing", default system routes, learn.microsoft.com), nor a user-defined route leads everything to an appliance (routing example there;
// what one of everything to the internet does is not documented, and taken to change nothing).
var Private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
}

// EffectiveRoutes gives the routes of a virtual network's subnets that have the route table ("" for none): the system routes and the
// user-defined ones, in the order of the prefixes. Where several hold an address the longest active prefix counts.
func (n *Network) EffectiveRoutes(vnet, table string) []EffectiveRoute {
	var all []EffectiveRoute
	for _, v := range n.VNets {
		hop := NextHopVNetLocal
		if v.Name != vnet {
			if !peered(*n, vnet, v.Name) {
				continue
			}
			hop = NextHopPeering
		}
		for _, p := range v.AddressPrefixes {
			all = append(all, EffectiveRoute{Prefix: p.Masked(), NextHopType: hop, VNet: v.Name, Active: true})
		}
	}
	taken := func(p netip.Prefix) bool {
		return slices.ContainsFunc(all, func(r EffectiveRoute) bool { return r.Prefix == p })
	}
	t, ok := n.RouteTable(table)
	firewalled := ok && slices.ContainsFunc(t.Routes, func(r UserRoute) bool {
		return r.NextHopType == NextHopAppliance && r.Prefix.Bits() == 0
	})
	for _, p := range Private {
		if !firewalled && !taken(p) {
			all = append(all, EffectiveRoute{Prefix: p, NextHopType: NextHopNone, Active: true})
		}
	}
	if !taken(anywhere) {
		all = append(all, EffectiveRoute{Prefix: anywhere, NextHopType: NextHopInternet, Active: true})
	}
	if ok {
		for _, r := range t.Routes {
			for i := range all {
				all[i].Active = all[i].Active && (all[i].User != "" || all[i].Prefix != r.Prefix.Masked())
			}
			e := EffectiveRoute{Prefix: r.Prefix.Masked(), NextHopType: r.NextHopType, NextHop: r.NextHop, User: r.Name, Active: true}
			if r.NextHopType == NextHopVNetLocal {
				e.VNet = vnet
			}
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b EffectiveRoute) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
	})
	return all
}

// interval is a range of addresses, both ends within, and the route that holds for all of them.
type interval struct {
	first, last netip.Addr
	route       EffectiveRoute
}

func (i interval) String() string {
	switch {
	case i.first == i.last:
		return i.first.String()
	case i.first == i.route.Prefix.Addr() && i.last == lastOf(i.route.Prefix):
		return i.route.Prefix.String()
	}
	return fmt.Sprintf("%s-%s", i.first, i.last)
}

// intervals cuts the active routes, in their order, into ranges that do not overlap, each with the route of the longest prefix.
func intervals(routes []EffectiveRoute) []interval {
	var all []interval
	var open []EffectiveRoute // those that hold the address at, the longest prefix last
	at := uint64(0)
	until := func(end uint64) { // what lies before end, from at on, belongs to the longest open prefix
		if len(open) > 0 && at < end {
			all = append(all, interval{addressAt(at), addressAt(end - 1), open[len(open)-1]})
		}
		at = max(at, end)
	}
	closeBefore := func(start uint64) {
		for len(open) > 0 {
			end := addressNumber(lastOf(open[len(open)-1].Prefix)) + 1
			if end > start {
				return
			}
			until(end)
			open = open[:len(open)-1]
		}
	}
	for _, r := range routes {
		if !r.Active {
			continue
		}
		start := addressNumber(r.Prefix.Addr())
		closeBefore(start)
		until(start)
		open = append(open, r)
	}
	closeBefore(1 << 32)
	return all
}

func addressNumber(a netip.Addr) uint64 {
	b := a.As4()
	return uint64(binary.BigEndian.Uint32(b[:]))
}

func addressAt(n uint64) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(n))
	return netip.AddrFrom4(b)
}

func lastOf(p netip.Prefix) netip.Addr {
	return addressAt(addressNumber(p.Masked().Addr()) | (1<<(32-p.Bits()) - 1))
}

// RouteTable finds a route table; the pointer is into the network.
func (n *Network) RouteTable(name string) (*RouteTable, bool) {
	for i := range n.RouteTables {
		if n.RouteTables[i].Name == name {
			return &n.RouteTables[i], true
		}
	}
	return nil, false
}

// SetRoute puts a route into a table, in the place of the one of that name if there is one. A table that is not there is an error; whether
// the route makes sense, Validate says.
func (n *Network) SetRoute(table string, r UserRoute) error {
	t, ok := n.RouteTable(table)
	if !ok {
		return fmt.Errorf("route %s: no route table %q", r.Name, table)
	}
	if i := slices.IndexFunc(t.Routes, func(o UserRoute) bool { return o.Name == r.Name }); i >= 0 {
		t.Routes[i] = r
		return nil
	}
	t.Routes = append(t.Routes, r)
	return nil
}

// DeleteRoute takes a route out of a table. It is no error if it does not exist.
func (n *Network) DeleteRoute(table, name string) {
	if t, ok := n.RouteTable(table); ok {
		t.Routes = slices.DeleteFunc(t.Routes, func(r UserRoute) bool { return r.Name == name })
	}
}

// at finds the NIC that has an address.
func (n *Network) at(a netip.Addr) (NIC, bool) {
	return find(n.NICs, func(nic NIC) bool {
		return slices.ContainsFunc(nic.IPConfigs, func(c IPConfig) bool { return c.Address == a })
	})
}

// Forwarder returns the NIC that takes packets for others at an address, seen from a virtual network: it has to be in there or in a peered
// one.
func (n *Network) Forwarder(vnet string, a netip.Addr) (NIC, bool) {
	nic, ok := n.at(a)
	return nic, ok && nic.IPForwarding && (nic.VNet == vnet || peered(*n, vnet, nic.VNet))
}
