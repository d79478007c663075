package armview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// Azure's own ranges: what it routes nowhere unless a virtual network has it (RFC 1918, RFC 6598; "Virtual network traffic routing",
// default system routes, learn.microsoft.com), and reserved ranges of the internet (RFC 6890).
var (
	private   = vnet.Private
	notPublic = vnet.NotPublic
)

// Marks of a connection: the place that a packet of it goes to, and who chose that.
const (
	placeBits    = 0xffff
	chosen       = 0x10000 // a load balancer, or a machine's public address
	chosenInside = 0x20000 // by a front end inside a virtual network
)

func (f *fabric) rules() {
	raw := f.base("raw", "filter", netfilter.Prerouting, netfilter.PriorityRaw, netfilter.Accept)
	add(raw, "Azure's host, next to every machine", in(uplink), addresses(false, false, vnet.Platform...),
		unknown("Azure's host serves machines in Azure: what it does with a packet from the internet is not known"))
	add(raw, "Azure's host, next to every machine", addresses(false, false, vnet.Platform...), decide(netfilter.Accept))
	for _, n := range f.nics {
		f.senders(raw, n)
	}
	f.unreadNodes(raw)
	lb := f.base("lb", "filter", netfilter.Prerouting, netfilter.PriorityMangle, netfilter.Accept)
	natPre := f.base("nat-pre", "nat", netfilter.Prerouting, netfilter.PriorityDNAT, netfilter.Accept)
	forward := f.base("forward", "filter", netfilter.Forward, netfilter.PriorityFilter, netfilter.Drop)
	natPost := f.base("nat-post", "nat", netfilter.Postrouting, netfilter.PrioritySNAT, netfilter.Accept)
	nsgIn := f.base("nsg-in", "filter", netfilter.Postrouting, netfilter.PrioritySNAT+10, netfilter.Accept)
	f.keepFlows(lb)
	f.securityOut(lb)
	f.balance(lb, natPre)
	f.forward(forward)
	f.source(natPost)
	f.securityIn(nsgIn)
}

// Links that lead to the virtual network gateway, for routes with this next hop, and to appliances.
const (
	gatewayLink   = "virtual network gateway"
	applianceLink = "virtual appliance " // and its address
)

// area is a subnet of which an interface has addresses: its configurations', or those of pods behind it.
type area struct {
	subnet string // id
	ranges []netip.Prefix
	pods   bool
}

// areas returns those of an interface, the primary configuration's first.
func (f *fabric) areas(n *nic) []area {
	if n.areas == nil {
		n.areas = f.findAreas(n)
	}
	return n.areas
}

func (f *fabric) findAreas(n *nic) []area {
	var all []area
	at := func(id string) *area {
		for i := range all {
			if all[i].subnet == id {
				return &all[i]
			}
		}
		all = append(all, area{subnet: id})
		return &all[len(all)-1]
	}
	for _, c := range n.configs {
		a := at(c.Subnet.id())
		a.ranges = append(a.ranges, netip.PrefixFrom(c.address, 32))
	}
	home := vnetOf(n.configs[0].Subnet.id())
	for _, ip := range f.pods(n) {
		id, s := f.subnetAt(home, ip)
		if s == nil || slices.ContainsFunc(all, func(a area) bool { return a.subnet == id && a.pods }) {
			continue
		}
		a := at(id)
		a.pods, a.ranges = true, append(a.ranges, s.ranges()...)
	}
	return all
}

// pods returns the addresses of the pods on an interface's machine that are not the interface's own.
func (f *fabric) pods(n *nic) []netip.Addr {
	node, ok := strings.CutPrefix(n.machine, "node/")
	if !ok {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(f.podsOn[node]), func(ip netip.Addr) bool {
		return slices.ContainsFunc(n.configs, func(c *config) bool { return c.address == ip })
	})
}

// subnetAt finds the subnet of a virtual network that holds an address.
func (f *fabric) subnetAt(network string, a netip.Addr) (string, *Subnet) {
	for _, id := range sorted(f.subnets) {
		if vnetOf(id) != network {
			continue
		}
		for _, p := range f.subnets[id].ranges() {
			if p.Contains(a) {
				return id, f.subnets[id]
			}
		}
	}
	return "", nil
}

// senders sends what comes from an interface by the routes of the sender's subnet.
func (f *fabric) senders(raw *netfilter.Chain, n *nic) {
	areas := f.areas(n)
	const why = "by the routes of the sender's subnet"
	f.toPods(raw, n)
	for _, a := range areas {
		tests := []netfilter.Statement{in(n.link), addresses(true, false, a.ranges...)}
		f.endpoints(raw, tests, a.subnet)
		add(raw, why, with(tests, to(f.routesOf(a.subnet), false))...)
	}
	f.fromPods(raw, n)
	if fronts := f.floatingFronts(n); len(fronts) > 0 {
		add(raw, "replies of the load balancer's back end", in(n.link), addresses(true, false, fronts...), to(f.routesOf(areas[0].subnet), false))
	}
	if n.EnableIPForwarding {
		tests := []netfilter.Statement{in(n.link)}
		f.endpoints(raw, tests, areas[0].subnet)
		add(raw, "the sender forwards for others", in(n.link), to(f.routesOf(areas[0].subnet), false))
		return
	}
	add(raw, "not the NIC's address", in(n.link), decide(netfilter.Drop))
}

// unreadNodes writes rules for the nodes whose interfaces were not read.
func (f *fabric) unreadNodes(raw *netfilter.Chain) {
	for _, node := range f.objects.Nodes {
		if slices.ContainsFunc(f.nics, func(n *nic) bool { return n.machine == "node/"+node.Name }) {
			continue
		}
		link := f.linkName("node/" + node.Name)
		f.outlet(link, "ether", hostMAC)
		f.unreadLinks["node/"+node.Name] = link
		add(raw, "an interface that was not read", in(link), unknown("the interface of node %s was not read%s", plain(node.Name),
			f.remedy(machineID(node)+"/networkInterfaces/x")))
	}
}

// endpoints writes rules for the services that a subnet reaches by service endpoints: they see the private address. Which addresses they
// have is unknown.
func (f *fabric) endpoints(raw *netfilter.Chain, tests []netfilter.Statement, subnet string) {
	s := f.subnets[subnet]
	if s == nil {
		return
	}
	for _, e := range s.ServiceEndpoints {
		link := "service endpoint " + plain(e.Service)
		m := f.beyond(link)
		add(raw, "a service endpoint of the sender's subnet", with(tests,
			addresses(false, true, slices.Concat(private, notPublic)...),
			maybe("the destination is one of %s, which the subnet reaches by a service endpoint", plain(e.Service)),
			setMark(m, false), decide(netfilter.Accept))...)
	}
}

// way is a route with what it leads to.
type way struct {
	prefix netip.Prefix
	user   bool
	kind   string
	hop    string // address of an appliance, or id of a virtual network
	own    *Peering
	over   string // next hop type of a user-defined route of everything, of Azure's routes to nowhere
	gone   bool   // a user-defined route takes its place, or takes it away
}

// routesOf returns the chain of a subnet's routes.
func (f *fabric) routesOf(subnet string) *netfilter.Chain {
	s, v := f.subnets[subnet], f.VNets[vnetOf(subnet)]
	if s == nil || v == nil || v.ID == "" {
		c, fresh := f.chain("routes/" + f.shortName(subnet))
		if fresh {
			add(c, "a subnet that was not read", unknown("%s", f.UnreadResource(subnet)))
		}
		return c
	}
	name, table := "routes/"+f.shortName(vnetOf(subnet)), s.RouteTable.id()
	if table != "" {
		name += "/" + f.shortName(table)
	}
	c, fresh := f.chain(name)
	if !fresh {
		return c
	}
	if table != "" && f.RouteTables[table] == nil {
		add(c, "a route table that was not read", unknown("%s", f.UnreadResource(table)))
		return c
	}
	f.writeRoutes(c, v, vnetOf(subnet), f.RouteTables[table])
	return c
}

func (f *fabric) writeRoutes(c *netfilter.Chain, v *VirtualNetwork, id string, t *RouteTable) {
	learnt := f.gateway(v, id) && (t == nil || !t.DisableBGPRoutePropagation)
	if t != nil {
		f.privateEndpoints(c, v, id, t)
		f.tagged(c, id, t)
	}
	for _, w := range f.ways(v, id, t) {
		tests := []netfilter.Statement{addresses(false, false, w.prefix)}
		if learnt && !w.gone && w.kind != vnet.NextHopVNetLocal && w.kind != vnet.NextHopPeering && w.prefix.Bits() < 32 {
			add(c, "a route that the virtual network gateway learnt", with(tests,
				maybe("the virtual network gateway has learnt a longer route (BGP)"), to(f.gatewayChain(), false))...)
		}
		if w.own != nil {
			f.forwarded(c, w, v)
		}
		if dark := f.unreadPeer(v); dark != "" && w.mayHidePeer(v) {
			add(c, "a peered network that was not read", with(tests, maybe("the destination is in the network of peering %s", dark),
				unknown("the network of peering %s was not read", dark))...)
		}
		if w.gone {
			continue
		}
		if w.over != "" && w.over != vnet.NextHopNone {
			tests = append(tests, maybe("Azure keeps its own route of %s to nowhere beside the user-defined one of 0.0.0.0/0 to %s",
				w.prefix, plain(w.over)))
		}
		add(c, "by the destination's route", with(tests, to(f.target(w, id), false))...)
	}
	add(c, "no route", unknown("no route that was read holds the destination"))
}

// mayHidePeer reports whether a peered network of which nothing was read may have a longer route than this one: outside the virtual
// network's own space, which peers do not have, and shorter than the longest prefix of virtual networks, /29.
func (w *way) mayHidePeer(v *VirtualNetwork) bool {
	within := func(p netip.Prefix) bool { return p.Bits() <= w.prefix.Bits() && p.Overlaps(w.prefix) }
	return (w.user || w.kind == vnet.NextHopNone) && w.prefix.Bits() < 29 && slices.ContainsFunc(private, within) &&
		!slices.ContainsFunc(parseAll(v.AddressSpace.AddressPrefixes...), within)
}

// ways returns the effective routes, the longest prefix first and a user-defined one first among equals.
func (f *fabric) ways(v *VirtualNetwork, id string, t *RouteTable) []way {
	networks := []vnet.Reachable{{VNet: id, NextHopType: vnet.NextHopVNetLocal, Prefixes: parseAll(v.AddressSpace.AddressPrefixes...)}}
	peerings := map[string]*Peering{}
	for i := range v.Peerings {
		p := &v.Peerings[i]
		if p.PeeringState != vnet.PeeringConnected {
			continue
		}
		kind := vnet.NextHopPeering
		if p.ofSubnets() { // which subnets of it the peering holds is not modelled: the rest of the way is unknown
			kind = subnetPeering
		}
		networks, peerings[p.Remote.id()] = append(networks, vnet.Reachable{VNet: p.Remote.id(), NextHopType: kind, Prefixes: f.remote(p)}), p
	}
	var user []vnet.UserRoute
	hops := map[string]string{}
	if t != nil {
		for i, r := range t.Routes {
			if p, ok := parse(r.AddressPrefix); ok {
				name := strconv.Itoa(i)
				user, hops[name] = append(user, vnet.UserRoute{Name: name, Prefix: p, NextHopType: r.NextHopType}), r.NextHopIPAddress
			}
		}
	}
	var all []way
	for _, r := range vnet.EffectiveRoutes(networks, user) {
		w := way{prefix: r.Prefix, user: r.User != "", kind: r.NextHopType, hop: r.VNet, over: r.Beside, gone: !r.Active}
		if w.user && w.hop == "" {
			w.hop = hops[r.User]
		}
		if w.kind == vnet.NextHopPeering && !w.user {
			w.own = peerings[r.VNet]
		}
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b way) int {
		return cmp.Or(b.prefix.Bits()-a.prefix.Bits(), order(b.user)-order(a.user), order(a.gone)-order(b.gone))
	})
	return all
}

// gateway reports whether a virtual network may have a virtual network gateway, or use a peer's.
func (f *fabric) gateway(v *VirtualNetwork, id string) bool {
	for _, s := range sorted(f.subnets) {
		if vnetOf(s) == id && last(s) == "gatewaysubnet" {
			return true
		}
	}
	return slices.ContainsFunc(v.Peerings, func(p Peering) bool { return p.UseRemoteGateways })
}

// tagged writes the routes to service tags. Which addresses a tag holds is unknown.
func (f *fabric) tagged(c *netfilter.Chain, id string, t *RouteTable) {
	for _, r := range t.Routes {
		if !r.ofTag() {
			continue
		}
		w := way{user: true, kind: r.NextHopType, hop: r.NextHopIPAddress}
		add(c, "by the route of a service tag", addresses(false, true, slices.Concat(private, notPublic)...),
			f.inTag(r.AddressPrefix), to(f.target(w, id), false))
	}
}

// ofTag reports whether the route is one to a service tag, and not to an IPv4 or IPv6 prefix.
func (r *Route) ofTag() bool {
	_, isPrefix := parse(r.AddressPrefix)
	return !isPrefix && !strings.Contains(r.AddressPrefix, ":")
}

// target returns the chain that a route leads to.
func (f *fabric) target(w way, network string) *netfilter.Chain {
	switch w.kind {
	case vnet.NextHopVNetLocal, vnet.NextHopPeering:
		return f.vnetChain(w.hop)
	case vnet.NextHopInternet:
		c, fresh := f.chain("internet")
		if fresh {
			f.dropForwarded(c)
			add(c, "leaves for the internet", decide(netfilter.Accept))
		}
		return c
	case vnet.NextHopNone:
		c, fresh := f.chain("none")
		if fresh {
			add(c, "the route leads nowhere", decide(netfilter.Drop))
		}
		return c
	case vnet.NextHopAppliance:
		return f.hop(w.hop, network)
	case vnet.NextHopGateway:
		return f.gatewayChain()
	}
	c, fresh := f.chain("next-hop/" + plain(w.kind))
	if fresh {
		add(c, "a next hop that is not modelled", unknown("next hop %s is not modelled", plain(w.kind)))
	}
	return c
}

// dropForwarded drops what a machine forwards to the internet, or to a public address, without its own address as source, as a lab's Azure
// does. Whether a NAT gateway translates that is not documented.
func (f *fabric) dropForwarded(c *netfilter.Chain) {
	for _, n := range f.nics {
		if !n.EnableIPForwarding {
			continue
		}
		own := f.floatingFronts(n)
		for _, a := range f.areas(n) {
			own = append(own, a.ranges...)
		}
		verdict := decide(netfilter.Drop)
		if s := f.subnets[f.areas(n)[0].subnet]; s == nil || s.NATGateway != nil {
			verdict = unknown("whether a NAT gateway translates what %s forwards is not known", n.title)
		}
		add(c, "not the NIC's address", in(n.link), addresses(true, true, own...), verdict)
	}
}

func (f *fabric) gatewayChain() *netfilter.Chain {
	c, fresh := f.chain(gatewayLink)
	if fresh {
		add(c, "to the virtual network gateway", setMark(f.beyond(gatewayLink), false), decide(netfilter.Accept))
		f.host.Forwarders[gatewayLink] = snapshot.Forwarder{Name: "the " + gatewayLink}
	}
	return c
}

// vnetChain leads to who is in a virtual network.
func (f *fabric) vnetChain(id string) *netfilter.Chain {
	name := f.shortName(id)
	c, fresh := f.chain("vnet/" + name)
	if !fresh {
		return c
	}
	accept := decide(netfilter.Accept)
	for _, n := range f.nics {
		var there []netip.Prefix
		for _, x := range n.configs {
			if vnetOf(x.Subnet.id()) == id {
				there = append(there, netip.PrefixFrom(x.address, 32))
			}
		}
		if len(there) == 0 {
			continue
		}
		for _, ip := range f.pods(n) {
			if _, s := f.subnetAt(id, ip); s != nil {
				there = append(there, netip.PrefixFrom(ip, 32))
			}
		}
		add(c, "to "+n.title, addresses(false, false, there...), setMark(n.mark, false), accept)
	}
	for _, lbID := range sorted(f.LoadBalancers) {
		for _, fe := range f.LoadBalancers[lbID].Frontends {
			if p := parseAll(fe.PrivateIPAddress); len(p) > 0 && vnetOf(fe.Subnet.id()) == id {
				add(c, "a load balancer's front end", addresses(false, false, p...), accept)
			}
		}
	}
	link := "virtual network " + name
	add(c, "no interface that was read has the address", setMark(f.beyond(link), false), accept)
	return c
}

// appliance returns a virtual appliance with its addresses, the primary one first. Assume a stateful firewall, as Azure Firewall is
// ("Integrate Azure Firewall with Azure Standard Load Balancer", asymmetric routing, learn.microsoft.com).
func appliance(addresses ...netip.Addr) snapshot.Forwarder {
	return snapshot.Forwarder{Name: "appliance " + addresses[0].String(), Addresses: addresses, Stateful: true}
}

// hop returns the virtual appliance at an address, seen from a virtual network.
func (f *fabric) hop(address, network string) *netfilter.Chain {
	ip, err := netip.ParseAddr(address)
	if err != nil || !ip.Is4() {
		c, fresh := f.chain("no-hop")
		if fresh {
			add(c, "the route's next hop is no IPv4 address", unknown("the next hop %q is no IPv4 address", plain(address)))
		}
		return c
	}
	c, fresh := f.chain(fmt.Sprintf("hop/%s/%s", ip, f.shortName(network)))
	if !fresh {
		return c
	}
	for _, n := range f.nics {
		for _, x := range n.configs {
			if x.address != ip || !f.reaches(network, vnetOf(x.Subnet.id())) {
				continue
			}
			if !n.EnableIPForwarding {
				add(c, "the route's next hop does not forward", decide(netfilter.Drop))
				return c
			}
			add(c, "to "+n.title, setMark(n.mark, false), decide(netfilter.Accept))
			return c
		}
	}
	link := applianceLink + ip.String()
	add(c, "a user-defined route to a virtual appliance", setMark(f.beyond(link), false), decide(netfilter.Accept))
	f.host.Forwarders[link] = appliance(ip)
	return c
}

// reaches reports whether a virtual network is the other, or peered with it.
func (f *fabric) reaches(from, other string) bool {
	if from == other {
		return true
	}
	v := f.VNets[from]
	return v != nil && slices.ContainsFunc(v.Peerings, func(p Peering) bool {
		return p.Remote.id() == other && p.PeeringState == vnet.PeeringConnected
	})
}
