package armview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// forward says what may pass.
func (f *fabric) forward(c *netfilter.Chain) {
	accept, drop := decide(netfilter.Accept), decide(netfilter.Drop)
	add(c, "of a flow that was let through", states(packet.Established|packet.Related), accept)
	known := f.frontEnds()
	if pinged := f.pinged(); len(pinged) > 0 {
		for _, link := range []netfilter.Statement{in(uplink), out(uplink)} {
			add(c, "ICMP to a load balancer's front end", link, addresses(false, false, pinged...), protocol(packet.ICMP),
				&netfilter.MatchMark{Connection: true, Mask: chosen},
				unknown("the load balancer itself answers ICMP at its front end, as its back ends' health is"))
		}
	}
	if len(known) > 0 {
		add(c, "no rule of the load balancer is for this address and port", out(uplink), addresses(false, false, known...), drop)
	}
	add(c, "chosen by the load balancer, or for a machine's public address",
		&netfilter.MatchMark{Connection: true, Value: chosen, Mask: chosen}, accept)
	if len(known) > 0 {
		add(c, "no rule of the load balancer is for this address and port", in(uplink), addresses(false, false, known...), drop)
	}
	if gateways := f.gatewayAddresses(); len(gateways) > 0 {
		add(c, "a NAT gateway lets nothing in", in(uplink), addresses(false, false, gateways...), drop)
	}
	add(c, "an address that was not read", in(uplink), unknown("no front end or public address that was read is for the destination%s",
		f.unreadOf("loadbalancers", "publicipaddresses", "publicipprefixes")))
	add(c, "within Azure, or leaves for the internet", accept)
}

// gatewayFronts returns the ways out by a NAT gateway.
func (f *fabric) gatewayFronts(g *NATGateway) []front {
	var ways []front
	for i := range g.PublicIPs {
		ways = append(ways, f.front(&g.PublicIPs[i], nil))
	}
	for i := range g.PublicIPPrefixes {
		ways = append(ways, f.front(nil, &g.PublicIPPrefixes[i]))
	}
	return ways
}

// gatewayAddresses returns the public addresses of NAT gateways that were read.
func (f *fabric) gatewayAddresses() []netip.Prefix {
	var all []netip.Prefix
	for _, g := range f.NATGateways {
		for _, w := range f.gatewayFronts(g) {
			all = append(all, w.prefixes...)
		}
	}
	return widest(all)
}

// frontEnds returns the addresses of load balancers, and public ones of machines, that were read.
func (f *fabric) frontEnds() []netip.Prefix {
	var all []netip.Prefix
	for id := range f.frontends {
		all = append(all, f.frontAddresses(id)...)
	}
	all = slices.DeleteFunc(all, func(p netip.Prefix) bool { return !p.IsSingleIP() })
	for _, n := range f.nics {
		for _, c := range n.configs {
			if a, ok := f.ownAddress(c); ok {
				all = append(all, netip.PrefixFrom(a, 32))
			}
		}
	}
	return widest(all)
}

// pinged returns the front ends that may answer ICMP: public ones of Standard load balancers ("Test reachability of Azure Load Balancer",
// learn.microsoft.com).
func (f *fabric) pinged() []netip.Prefix {
	var all []netip.Prefix
	for _, lb := range f.balancers {
		for _, fe := range lb.Frontends {
			if lb.SKU == vnet.SKUStandard && !fe.Internal() {
				all = append(all, f.frontAddresses(fe.Name)...)
			}
		}
	}
	return widest(all)
}

// ownID returns the public address of a configuration itself: named by it, or by the address. "" for none.
func (f *fabric) ownID(c *config) string {
	if c.PublicIPAddress != nil {
		return c.PublicIPAddress.id()
	}
	return f.publicOf[c]
}

// ownAddress returns the public address of a configuration, if that was read.
func (f *fabric) ownAddress(c *config) (netip.Addr, bool) {
	if p := f.PublicIPs[f.ownID(c)]; p != nil {
		if a := parseAll(p.IPAddress); len(a) == 1 {
			return a[0].Addr(), true
		}
	}
	return netip.Addr{}, false
}

// source translates what leaves for the internet, each sender as it has its way there. Which ports of a public address it gets is not told by
// resources.
func (f *fabric) source(c *netfilter.Chain) {
	accept := decide(netfilter.Accept)
	inside := &netfilter.MatchMark{Connection: true, Value: chosenInside, Mask: chosenInside}
	add(c, "nothing inside virtual networks is translated", notOut(uplink), inside, accept)
	add(c, "nothing inside virtual networks is translated", notOut(uplink), &netfilter.MatchMark{Connection: true, Mask: chosen}, accept)
	add(c, "comes from the internet", in(uplink), accept)
	for _, n := range f.nics {
		for _, x := range n.configs {
			f.leave(c, x, []netfilter.Statement{in(n.link), addresses(true, false, netip.PrefixFrom(x.address, 32))})
		}
		for _, a := range f.areas(n) {
			s := f.subnets[a.subnet]
			if !a.pods || s == nil {
				continue
			}
			tests := []netfilter.Statement{in(n.link), addresses(true, false, s.ranges()...)}
			if s.NATGateway == nil {
				add(c, "a pod's own address", with(tests, unknown("how a pod's address of subnet %s leaves is not known: it has no NAT gateway",
					plain(last(a.subnet))))...)
				continue
			}
			f.byGateway(c, tests, s.NATGateway.id())
		}
	}
	add(c, "a sender that is not known", out(uplink), unknown("no interface that was read has the sender's address"))
}

// leave says how a configuration's address leaves ([vnet.Sender.Outbound]).
func (f *fabric) leave(c *netfilter.Chain, x *config, tests []netfilter.Statement) {
	s := f.subnets[x.Subnet.id()]
	if s == nil {
		add(c, "a subnet that was not read", with(tests,
			unknown("a NAT gateway may be there: %s", f.UnreadResource(x.Subnet.id())))...)
		return
	}
	o := f.sender(x, s).Outbound()
	switch o.Way {
	case vnet.WayUnknown:
		add(c, unreadWay, with(tests, unknown("%s", o.Why))...)
	case vnet.WayOutboundRule, vnet.WayBalancingRule:
		f.byBalancer(c, o, tests)
	case vnet.WayGateway:
		f.byGateway(c, tests, s.NATGateway.id())
	case vnet.WayInstance:
		f.byInstance(c, x, tests)
	case vnet.WayNone:
		add(c, o.Why, with(tests, decide(netfilter.Drop))...)
	default: // the address of default outbound access is Azure's, and no resource shows it
		add(c, portsNeeded, with(tests, with(notTransport(), decide(netfilter.Drop))...)...)
		add(c, "default outbound access", with(tests,
			unknown("it leaves by default outbound access: Azure takes a public address that no resource shows"))...)
	}
}

const (
	portsNeeded = "port translation needs ports"
	unreadWay   = "what was read does not say how it leaves"
)

// sender says what there is to leave by for a configuration of a subnet.
func (f *fabric) sender(x *config, s *Subnet) vnet.Sender {
	sender := vnet.Sender{Gateway: s.NATGateway != nil, Instance: f.ownID(x) != "", Secondary: x != x.nic.configs[0], ByAddress: len(x.byIP) > 0,
		Private: s.DefaultOutboundAccess != nil && !*s.DefaultOutboundAccess}
	pools := map[string][]string{}
	for _, pool := range x.pools {
		id := balancerOf(pool)
		if f.LoadBalancers[id] == nil {
			sender.Unread = cmp.Or(sender.Unread, f.UnreadResource(id))
		} else if pools[id] = append(pools[id], pool); slices.Contains(x.byIP, pool) {
			pools[id] = pools[id][:len(pools[id])-1]
		}
	}
	for _, id := range sorted(pools) {
		sender.Balancers = append(sender.Balancers, vnet.Membership{Balancer: f.balancers[id], Pools: pools[id]})
	}
	return sender
}

// byInstance leaves by the configuration's own public address.
func (f *fabric) byInstance(c *netfilter.Chain, x *config, tests []netfilter.Statement) {
	a, ok := f.ownAddress(x)
	if !ok {
		add(c, "the machine's own public address", with(tests, unknown("%s", f.UnreadResource(f.ownID(x))))...)
		return
	}
	one := packet.Translation{Source: true, Low: a, High: a}
	add(c, "the machine's own public address", with(tests, &netfilter.Translate{Translation: one})...)
}

// byGateway leaves by a NAT gateway, which takes TCP and UDP ("Azure NAT Gateway", learn.microsoft.com).
func (f *fabric) byGateway(c *netfilter.Chain, tests []netfilter.Statement, id string) {
	g := f.NATGateways[id]
	if g == nil {
		add(c, "a NAT gateway that was not read", with(tests, unknown("%s", f.UnreadResource(id)))...)
		return
	}
	why := "NAT gateway " + title(g.Resource)
	ways := f.gatewayFronts(g)
	add(c, portsNeeded, with(tests, with(notTransport(), decide(netfilter.Drop))...)...)
	if len(ways) == 0 {
		add(c, why+" has no public address", with(tests, decide(netfilter.Drop))...)
		return
	}
	add(c, why, with(tests, f.oneOf(id, why, ways))...)
}

// front is one public way out.
type front struct {
	prefixes []netip.Prefix
	unread   string // which resource was not read, "" where it was
}

func (f *fabric) front(address, prefix *ref) front {
	w := front{prefixes: f.publicAddresses(address, prefix)}
	if len(w.prefixes) == 0 {
		w.unread = f.UnreadResource(address.id() + prefix.id())
	}
	return w
}

// oneOf goes to one of several ways out, which are those of a resource.
func (f *fabric) oneOf(id, why string, ways []front) netfilter.Statement {
	pool, ok := f.pools[id]
	if !ok {
		pool = len(f.pools) + 1
		f.pools[id] = pool
	}
	var chains []*netfilter.Chain
	for i, w := range ways {
		c, fresh := f.chain(fmt.Sprintf("out-%d-%d", pool, i+1))
		chains = append(chains, c)
		if !fresh {
			continue
		}
		if w.unread != "" {
			add(c, why, unknown("%s", w.unread))
			continue
		}
		for _, p := range w.prefixes {
			add(c, why, &netfilter.Translate{Translation: packet.Translation{
				Source: true, Low: p.Addr(), High: vnet.LastOf(p), PortLow: vnet.FirstOutboundPort, PortHigh: vnet.LastOutboundPort, FullyRandom: true,
			}})
		}
	}
	return choose("one of the public addresses", chains)
}

// byBalancer leaves by a public load balancer's exits.
func (f *fabric) byBalancer(c *netfilter.Chain, o vnet.Outbound, tests []netfilter.Statement) {
	add(c, portsNeeded, with(tests, with(notTransport(), decide(netfilter.Drop))...)...)
	for _, by := range o.ByProtocol() {
		var rules, ids []string
		var ways []front
		for _, e := range by.Exits {
			rules = append(rules, e.Why())
			for _, id := range e.Frontends {
				if !slices.Contains(ids, id) {
					ids, ways = append(ids, id), append(ways, f.frontOf(id))
				}
			}
		}
		test := tests
		if number, _ := protocolNumber(by.Protocol); by.Protocol != "" {
			test = with(tests, protocol(number))
		}
		why := strings.Join(slices.Compact(rules), " or ")
		add(c, why, with(test, f.oneOf(strings.Join(append(ids, why), " "), why, ways))...)
	}
	if o.Why != "" {
		add(c, unreadWay, with(tests, unknown("%s", o.Why))...)
		return
	}
	add(c, "the load balancer's rules are not for this protocol", with(tests, decide(netfilter.Drop))...)
}

// frontOf returns the public addresses of a front end.
func (f *fabric) frontOf(id string) front {
	if fe := f.frontends[id]; fe != nil {
		return f.front(fe.PublicIPAddress, fe.PublicIPPrefix)
	}
	return front{unread: "front end " + plain(last(id)) + " was not read"}
}
