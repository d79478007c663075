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

// readBalancer returns a load balancer as vnet has it. Its front ends and pools have their ids for names.
func (f *fabric) readBalancer(lb *LoadBalancer) *vnet.LoadBalancer {
	read := &vnet.LoadBalancer{Name: title(lb.Resource), SKU: vnet.SKUStandard}
	if strings.EqualFold(lb.SKU.Name, vnet.SKUBasic) {
		read.SKU = vnet.SKUBasic
	}
	for i := range lb.Frontends {
		fe := vnet.Frontend{Name: strings.ToLower(lb.Frontends[i].ID)}
		if fe.Name != "" {
			f.frontends[fe.Name] = &lb.Frontends[i]
		}
		if !lb.Frontends[i].public() {
			fe.VNet = cmp.Or(vnetOf(lb.Frontends[i].Subnet.id()), "not read")
		}
		read.Frontends = append(read.Frontends, fe)
	}
	for _, r := range lb.OutboundRules {
		rule := vnet.OutboundRule{Name: title(r.Resource), BackendPool: r.Pool.id(), Protocol: transport(r.Protocol)}
		for _, fe := range r.Frontends {
			rule.Frontends = append(rule.Frontends, fe.id())
		}
		read.OutboundRules = append(read.OutboundRules, rule)
	}
	for _, r := range lb.Rules {
		rule := vnet.Rule{Name: title(r.Resource), Frontend: r.Frontend.id(), BackendPool: r.Pool.id(), Probe: r.Probe.id(),
			Protocol: transport(r.Protocol), FrontendPort: r.FrontendPort, BackendPort: r.BackendPort, FloatingIP: r.EnableFloatingIP,
			LoadDistribution:    canonical(r.LoadDistribution, vnet.DistributionSourceIP, vnet.DistributionSourceIPProtocol),
			DisableOutboundSNAT: r.DisableOutboundSNAT}
		for _, p := range r.Pools {
			switch rule.BackendPool {
			case "", p.id():
				rule.BackendPool = p.id()
			default: // a gateway load balancer has two
				rule.BackendPool = "several"
			}
		}
		read.Rules = append(read.Rules, rule)
	}
	for _, r := range lb.InboundNATRules {
		rule := vnet.Rule{Name: title(r.Resource), Frontend: r.Frontend.id(), BackendPool: r.Target.id(), Protocol: transport(r.Protocol),
			FrontendPort: r.FrontendPort, BackendPort: r.BackendPort, FloatingIP: r.EnableFloatingIP, DisableOutboundSNAT: true}
		if r.Target == nil && r.FrontendPort == 0 {
			rule.FrontendPort, rule.LastPort = r.RangeStart, r.RangeEnd
		}
		read.Rules = append(read.Rules, rule)
	}
	return read
}

// backends returns a rule's back ends. Their probes' results are not known.
func (f *fabric) backends(r vnet.Rule) []vnet.Backend {
	var all []vnet.Backend
	unread := func(why string, values ...any) {
		all = append(all, vnet.Backend{Up: true, Unknown: fmt.Sprintf(why, values...)})
	}
	members := f.members[r.BackendPool]
	if c := f.owners[r.BackendPool]; c != nil { // of an inbound NAT rule
		members = []*config{c}
	}
	for _, m := range members {
		all = append(all, vnet.Backend{NIC: m.nic.title, Link: m.nic.link, Mark: m.nic.mark, Address: m.address, Up: true})
	}
	for _, a := range f.others[r.BackendPool] {
		unread("no interface that was read has the back end's address %s", a)
	}
	switch {
	case f.lost[r.BackendPool]:
		unread("not all back ends of pool %s were read", plain(last(r.BackendPool)))
	case r.BackendPool == "", r.BackendPool == "several":
		unread("which back end rule %s leads to is not known", r.Name)
	case len(all) == 0 && !f.empty[r.BackendPool]:
		unread("the rule's pool has no back end that was read")
	}
	return all
}

// balancerOf returns the load balancer in a pool's id.
func balancerOf(pool string) string {
	id, _, _ := strings.Cut(pool, "/backendaddresspools/")
	return id
}

// transport returns a rule's protocol as vnet has it: "" for TCP and UDP.
func transport(protocol string) string {
	for _, p := range []string{vnet.ProtocolTCP, vnet.ProtocolUDP} {
		if strings.EqualFold(p, protocol) {
			return p
		}
	}
	return ""
}

// keepFlows sends later packets of a connection, and answers, the way that its first packet took.
func (f *fabric) keepFlows(c *netfilter.Chain) {
	restore := &netfilter.CopyMark{Restore: true, Packet: ^uint32(0), Flow: placeBits}
	accept := decide(netfilter.Accept)
	add(c, "a flow that is known", in(uplink), states(packet.Established|packet.Related), restore, accept)
	add(c, "a flow keeps its back end", &netfilter.MatchConntrack{Direction: &netfilter.MatchDirection{}},
		&netfilter.MatchMark{Connection: true, Value: chosen, Mask: chosen}, restore, accept)
	for _, n := range f.nics {
		add(c, "answers come back to the sender, "+n.title, in(n.link), states(packet.New), setMark(n.mark, true))
	}
}

// balance writes the load balancers' rules: with floating IP a route to the back end, else a new destination.
func (f *fabric) balance(lbChain, nat *netfilter.Chain) {
	for _, id := range sorted(f.balancing) {
		unsure := false
		for _, b := range f.balancing[id] {
			c := nat
			if b.Rule.FloatingIP {
				c = lbChain
			}
			f.balancingRule(c, id, b)
			unsure = unsure || b.Rule.Probe != ""
		}
		if unsure {
			f.notes = append(f.notes, fmt.Sprintf(
				"Azure: probe results of load balancer %s unknown; assuming all its back ends are up", f.balancers[id].Name))
		}
	}
	for _, n := range f.nics {
		for _, c := range n.configs {
			if a, ok := f.ownAddress(c); ok {
				add(nat, "the machine's own public address", with([]netfilter.Statement{notRouted(), addresses(false, false, netip.PrefixFrom(a, 32))},
					deliver(n.mark, chosen, c.address, 0)...)...)
			}
		}
	}
}

// notRouted tests that no route took the packet to an appliance, a gateway or a machine. Routes come before Azure's public addresses: a
// user-defined one of 0.0.0.0/0 to a firewall is also for those of load balancers ("Virtual network traffic routing", learn.microsoft.com).
func notRouted() netfilter.Statement { return &netfilter.MatchMark{Mask: ^uint32(0)} }

// balancingRule writes what one rule does at the addresses of its front end.
func (f *fabric) balancingRule(from *netfilter.Chain, balancer string, b vnet.BalancingRule) {
	tests := f.frontTests(b)
	if tests == nil {
		return
	}
	bits := chosen
	if b.Frontend.Internal() {
		bits |= chosenInside
	}
	name := fmt.Sprintf("rule/%s/%s", f.shortName(balancer), b.Rule.Name)
	c, fresh := f.chain(name)
	if !fresh { // an inbound NAT rule of the same name
		name += "-2"
		c, _ = f.chain(name)
	}
	add(from, "has the load balancer a rule for this address and port?", with(tests, to(c, false))...)
	var chains []*netfilter.Chain
	for i, m := range b.Up() {
		back, _ := f.chain(fmt.Sprintf("%s/%d", name, i+1))
		chains = append(chains, back)
		switch {
		case m.Unknown != "": // once for each pool: what is not known of one is not of another
			add(back, "a back end that was not read", unknown("%s", m.Unknown))
		case b.Rule.FloatingIP:
			add(back, "a back end, "+m.NIC, setMark(m.Mark|bits, true), setMark(m.Mark, false), decide(netfilter.Accept))
		default:
			add(back, "a back end, "+m.NIC, deliver(m.Mark, bits, m.Address, b.Rule.BackendPort)...)
		}
	}
	if len(chains) == 0 {
		add(c, vnet.NoBackEnd, decide(netfilter.Drop))
		return
	}
	add(c, "a back end", choose("one of the back ends by "+b.Rule.ChosenBy(), chains))
}

// floatingFronts returns the addresses of front ends whose rules leave the destination as it is and have a back end on an interface:
// replies come from them ("Floating IP configuration", Azure Load Balancer, learn.microsoft.com).
func (f *fabric) floatingFronts(n *nic) (all []netip.Prefix) {
	for _, id := range sorted(f.balancing) {
		for _, b := range f.balancing[id] {
			if b.Rule.FloatingIP && slices.ContainsFunc(b.Backends, func(m vnet.Backend) bool { return m.Link == n.link }) {
				all = append(all, f.frontAddresses(b.Rule.Frontend)...)
			}
		}
	}
	return all
}

// deliver gives what comes for a public address or a back end its destination.
func deliver(mark, bits int, a netip.Addr, port uint16) []netfilter.Statement {
	t := packet.Translation{Low: a, High: a, PortLow: port, PortHigh: port}
	return []netfilter.Statement{setMark(mark|bits, true), setMark(mark, false), &netfilter.Translate{Translation: t}}
}

// frontTests test for a rule's front end; nil where its address was not read. A rule for all protocols and port 0 holds every port.
func (f *fabric) frontTests(b vnet.BalancingRule) []netfilter.Statement {
	at := f.frontAddresses(b.Rule.Frontend)
	if len(at) == 0 {
		return nil
	}
	tests := []netfilter.Statement{states(packet.New), notRouted(), addresses(false, false, at...)}
	if number, _ := protocolNumber(b.Rule.Protocol); b.Rule.Protocol != "" {
		tests = append(tests, protocol(number))
	}
	if low := b.Rule.FrontendPort; low != 0 {
		tests = append(tests, ports(false, netfilter.PortRange{Low: low, High: max(low, b.Rule.LastPort)}))
	}
	return tests
}

// frontAddresses returns the addresses of a load balancer's front end, as far as they were read.
func (f *fabric) frontAddresses(front string) []netip.Prefix {
	fe := f.frontends[front]
	switch {
	case fe == nil:
		return nil
	case fe.public():
		return f.publicAddresses(fe.PublicIPAddress, fe.PublicIPPrefix)
	}
	return parseAll(fe.PrivateIPAddress)
}
