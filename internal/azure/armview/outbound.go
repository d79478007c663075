package armview

import (
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

// gatewayAddresses returns the public addresses of NAT gateways that were read.
func (f *fabric) gatewayAddresses() []netip.Prefix {
	var all []netip.Prefix
	for _, g := range f.NATGateways {
		for i := range g.PublicIPs {
			all = append(all, f.publicAddresses(&g.PublicIPs[i], nil)...)
		}
		for i := range g.PublicIPPrefixes {
			all = append(all, f.publicAddresses(nil, &g.PublicIPPrefixes[i])...)
		}
	}
	return widest(all)
}

// frontEnds returns the addresses of load balancers, and public ones of machines, that were read.
func (f *fabric) frontEnds() []netip.Prefix {
	var all []netip.Prefix
	for a := range f.frontend {
		all = append(all, netip.PrefixFrom(a, 32))
	}
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
	for _, lb := range f.LoadBalancers {
		if strings.EqualFold(lb.SKU.Name, "Basic") {
			continue
		}
		for _, fe := range lb.Frontends {
			all = append(all, f.publicAddresses(fe.PublicIPAddress, fe.PublicIPPrefix)...)
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

// leave says how a configuration's address leaves ([vnet.Sender.Way]).
func (f *fabric) leave(c *netfilter.Chain, x *config, tests []netfilter.Statement) {
	s := f.subnets[x.Subnet.id()]
	if s == nil {
		add(c, "a subnet that was not read", with(tests,
			unknown("a NAT gateway may be there: %s", f.UnreadResource(x.Subnet.id())))...)
		return
	}
	ruled, balanced := f.byOutboundRules(x), f.byRules(x)
	standard, lost := f.balancersOf(x)
	sender := vnet.Sender{
		Gateway: s.NATGateway != nil, Instance: f.ownID(x) != "", Secondary: x != x.nic.configs[0], OutboundRule: len(ruled) > 0,
		BalancingRule: len(balanced) > 0, Standard: standard != "", Private: s.DefaultOutboundAccess != nil && !*s.DefaultOutboundAccess,
	}
	way, why := sender.Way()
	byLoadBalancer := way < vnet.WayInstance && !sender.Secondary
	switch {
	case byLoadBalancer && lost != "":
		add(c, "a load balancer that was not read", with(tests, unknown("%s", f.UnreadResource(lost)))...)
	case byLoadBalancer && (way >= vnet.WayBalancingRule || len(x.byIP) > 0):
		f.byBalancer(c, x, ruled, balanced, tests)
	case way == vnet.WayGateway:
		f.byGateway(c, tests, s.NATGateway.id())
	case way == vnet.WayInstance:
		f.byInstance(c, x, tests)
	case way == vnet.WayNone && !sender.Secondary && standard != "":
		add(c, "no outbound: load balancer "+standard+" has no rule for it", with(tests, decide(netfilter.Drop))...)
	case way == vnet.WayNone:
		add(c, why, with(tests, decide(netfilter.Drop))...)
	default: // the address of default outbound access is Azure's, and no resource shows it
		add(c, "port translation needs ports", with(tests, with(notTransport(), decide(netfilter.Drop))...)...)
		add(c, "default outbound access", with(tests,
			unknown("it leaves by default outbound access: Azure takes a public address that no resource shows"))...)
	}
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
	var ways []front
	for i := range g.PublicIPs {
		ways = append(ways, f.front(&g.PublicIPs[i], nil))
	}
	for i := range g.PublicIPPrefixes {
		ways = append(ways, f.front(nil, &g.PublicIPPrefixes[i]))
	}
	add(c, "port translation needs ports", with(tests, with(notTransport(), decide(netfilter.Drop))...)...)
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
				Source: true, Low: p.Addr(), High: lastOf(p), PortLow: vnet.FirstOutboundPort, PortHigh: vnet.LastOutboundPort, FullyRandom: true,
			}})
		}
	}
	return choose("one of the public addresses", chains)
}

// balancersOf returns the name of a Standard load balancer that has the configuration in a pool, and the id of a load balancer that has it
// and was not read.
func (f *fabric) balancersOf(x *config) (standard, lost string) {
	for _, pool := range x.pools {
		id := pool[:max(0, strings.Index(pool, "/backendaddresspools/"))]
		switch lb := f.LoadBalancers[id]; {
		case lb == nil && lost == "":
			lost = id
		case lb != nil && !strings.EqualFold(lb.SKU.Name, "Basic"):
			standard = title(lb.Resource)
		}
	}
	return standard, lost
}

// byBalancer leaves by a public load balancer's outbound rules, or else by its load balancing rules.
func (f *fabric) byBalancer(c *netfilter.Chain, x *config, ruled, balanced byProtocol, tests []netfilter.Statement) {
	if !f.through(c, ruled, tests) {
		f.through(c, balanced, tests)
	}
	if len(x.byIP) > 0 { // what no rule of another pool took
		add(c, "a back end by its address", with(tests,
			unknown("a load balancer has it as a back end by its address: whether it has default outbound access is not known"))...)
		return
	}
	add(c, "the load balancer's rules are not for this protocol", with(tests, decide(netfilter.Drop))...)
}

// exits are the front ends that translate a protocol's flows, and the rules that say so.
type exits struct {
	rules, ids []string
	ways       []front
}

// byProtocol are exits by "tcp", "udp" and "all".
type byProtocol map[string]*exits

// add adds a front end, once.
func (b byProtocol) add(f *fabric, lb *LoadBalancer, protocol, rule, frontend string) {
	protocol = strings.ToLower(protocol)
	if protocol != "tcp" && protocol != "udp" {
		protocol = "all"
	}
	ways := f.frontsOf(lb, frontend)
	if len(ways) == 0 {
		return
	}
	e := &exits{rules: []string{rule}, ids: []string{frontend}, ways: ways}
	if b[protocol] != nil {
		b[protocol].merge(e)
		return
	}
	b[protocol] = e
}

func (e *exits) merge(other *exits) {
	for i, id := range other.ids {
		if !slices.Contains(e.ids, id) {
			e.ids, e.ways = append(e.ids, id), append(e.ways, other.ways[i])
		}
	}
	for _, r := range other.rules {
		if !slices.Contains(e.rules, r) {
			e.rules = append(e.rules, r)
		}
	}
}

// through writes what the exits translate. Those for all protocols are TCP's and UDP's, too: which front end Azure takes is not known.
func (f *fabric) through(c *netfilter.Chain, by byProtocol, tests []netfilter.Statement) bool {
	if all := by["all"]; all != nil && len(by) > 1 {
		for _, protocol := range []string{"tcp", "udp"} {
			if by[protocol] == nil {
				by[protocol] = &exits{}
			}
			by[protocol].merge(all)
		}
		delete(by, "all")
	}
	for _, protocol := range sorted(by) {
		e := by[protocol]
		why := strings.Join(e.rules, " or ")
		f.throughLB(c, why, strings.Join(append(slices.Clone(e.ids), why, protocol), " "), protocol, e.ways, tests)
	}
	return len(by) > 0
}

// serves reports whether one of the pools has a configuration, not only its address: such pools have no outbound rules ("Backend pool
// management", limitations, learn.microsoft.com).
func (x *config) serves(pools ...string) bool {
	return slices.ContainsFunc(pools, func(p string) bool { return slices.Contains(x.pools, p) && !slices.Contains(x.byIP, p) })
}

func (f *fabric) byOutboundRules(x *config) byProtocol {
	by := byProtocol{}
	for _, id := range sorted(f.LoadBalancers) {
		lb := f.LoadBalancers[id]
		for _, r := range lb.OutboundRules {
			if !x.serves(r.Pool.id()) {
				continue
			}
			for _, ref := range r.Frontends {
				by.add(f, lb, r.Protocol, fmt.Sprintf("load balancer %s, outbound rule %s", title(lb.Resource), title(r.Resource)), ref.id())
			}
		}
	}
	return by
}

// byRules leaves by the front ends of load balancing rules that translate sources, too: of a Standard load balancer for their protocols
// only.
func (f *fabric) byRules(x *config) byProtocol {
	by := byProtocol{}
	for _, id := range sorted(f.LoadBalancers) {
		lb := f.LoadBalancers[id]
		for _, r := range lb.Rules {
			if r.DisableOutboundSNAT || !x.serves(r.pools()...) {
				continue
			}
			protocol := r.Protocol
			if strings.EqualFold(lb.SKU.Name, "Basic") {
				protocol = "All"
			}
			by.add(f, lb, protocol, "load balancer "+title(lb.Resource), r.Frontend.id())
		}
	}
	return by
}

// pools returns the ids of a rule's pools.
func (r BalancingRule) pools() []string {
	var all []string
	for _, p := range append(r.Pools, refOf(r.Pool)...) {
		if !slices.Contains(all, p.id()) {
			all = append(all, p.id())
		}
	}
	return all
}

func refOf(r *ref) []ref {
	if r == nil {
		return nil
	}
	return []ref{*r}
}

// frontsOf returns the public addresses of a front end; none of one that is inside a virtual network.
func (f *fabric) frontsOf(lb *LoadBalancer, id string) []front {
	for _, fe := range lb.Frontends {
		if strings.EqualFold(fe.ID, id) {
			if !fe.public() {
				return nil
			}
			return []front{f.front(fe.PublicIPAddress, fe.PublicIPPrefix)}
		}
	}
	return []front{{unread: "front end " + plain(last(id)) + " was not read"}}
}

// throughLB writes the rule for what a load balancer translates: flows of TCP and UDP, or one of them.
func (f *fabric) throughLB(c *netfilter.Chain, why, key, name string, ways []front, tests []netfilter.Statement) {
	switch name {
	case "tcp":
		tests = with(tests, protocol(packet.TCP))
	case "udp":
		tests = with(tests, protocol(packet.UDP))
	default:
		add(c, "port translation needs ports", with(tests, with(notTransport(), decide(netfilter.Drop))...)...)
	}
	add(c, why, with(tests, f.oneOf(key, why, ways))...)
}
