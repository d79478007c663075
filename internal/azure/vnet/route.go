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
	Active      bool       // false for a system route that a user-defined one overrides or takes away
	// Beside is set of Azure's routes to nowhere: the next hop type of a user-defined route of 0.0.0.0/0, "" for none. One to an appliance or a
	// gateway takes them away ("Virtual network traffic routing", routing example, learn.microsoft.com, of an appliance's; what it says of
	// 0.0.0.0/0 before that is of both). What others do is not documented. The lab keeps Azure's own beside them.
	Beside string
}

func (r EffectiveRoute) isTakenAway() bool {
	return r.Beside == NextHopAppliance || r.Beside == NextHopGateway
}

// Private are the ranges that Azure routes nowhere unless a virtual network has them (RFC 1918, RFC 6598; "Virtual network traffic
// routing", default system routes, learn.microsoft.com).
var Private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
}

// Reachable is a virtual network to which Azure routes by itself.
type Reachable struct {
	VNet        string
	NextHopType string
	Prefixes    []netip.Prefix
}

// EffectiveRoutes returns the routes of subnets with some user-defined routes: those, and the system routes, in the order of the prefixes.
// The first of the networks is the subnets' own. Where several routes hold an address the longest active prefix counts.
func EffectiveRoutes(networks []Reachable, user []UserRoute) []EffectiveRoute {
	var all []EffectiveRoute
	for _, v := range networks {
		for _, p := range v.Prefixes {
			all = append(all, EffectiveRoute{Prefix: p.Masked(), NextHopType: v.NextHopType, VNet: v.VNet, Active: true})
		}
	}
	taken := func(p netip.Prefix) bool {
		return slices.ContainsFunc(all, func(r EffectiveRoute) bool { return r.Prefix == p })
	}
	byDefault, _ := find(user, func(r UserRoute) bool { return r.Prefix.Bits() == 0 })
	for _, p := range Private {
		if !taken(p) {
			r := EffectiveRoute{Prefix: p, NextHopType: NextHopNone, Beside: byDefault.NextHopType}
			r.Active = !r.isTakenAway()
			all = append(all, r)
		}
	}
	if !taken(anywhere) {
		all = append(all, EffectiveRoute{Prefix: anywhere, NextHopType: NextHopInternet, Active: true})
	}
	for _, r := range user {
		for i := range all {
			all[i].Active = all[i].Active && (all[i].User != "" || all[i].Prefix != r.Prefix.Masked())
		}
		e := EffectiveRoute{Prefix: r.Prefix.Masked(), NextHopType: r.NextHopType, NextHop: r.NextHop, User: r.Name, Active: true}
		if r.NextHopType == NextHopVNetLocal {
			e.VNet = networks[0].VNet
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b EffectiveRoute) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
	})
	return all
}

// EffectiveRoutes returns those of a virtual network's subnets that have the route table ("" for none), without what a user-defined route
// takes away.
func (n *Network) EffectiveRoutes(vnet, table string) []EffectiveRoute {
	networks := []Reachable{{VNet: vnet, NextHopType: NextHopVNetLocal}}
	for _, v := range n.VNets {
		switch {
		case v.Name == vnet:
			networks[0].Prefixes = v.AddressPrefixes
		case peered(*n, vnet, v.Name):
			networks = append(networks, Reachable{v.Name, NextHopPeering, v.AddressPrefixes})
		}
	}
	var user []UserRoute
	if t, ok := n.RouteTable(table); ok {
		user = t.Routes
	}
	return slices.DeleteFunc(EffectiveRoutes(networks, user), EffectiveRoute.isTakenAway)
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
	case i.first == i.route.Prefix.Addr() && i.last == LastOf(i.route.Prefix):
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
			end := addressNumber(LastOf(open[len(open)-1].Prefix)) + 1
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

// LastOf returns the last address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
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
