package armview

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

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
	for _, id := range sorted(f.LoadBalancers) {
		lb := f.LoadBalancers[id]
		unsure := false
		for _, r := range lb.Rules {
			f.balancingRule(lbChain, nat, lb, r)
			unsure = unsure || r.Probe != nil
		}
		for _, r := range lb.InboundNATRules {
			f.inboundRule(lbChain, nat, lb, r)
		}
		if unsure {
			f.notes = append(f.notes, fmt.Sprintf(
				"Azure: probe results of load balancer %s unknown; assuming all its back ends are up", title(lb.Resource)))
		}
	}
	for _, n := range f.nics {
		for _, c := range n.configs {
			if a, ok := f.ownAddress(c); ok {
				tests := []netfilter.Statement{notRouted(), addresses(false, false, netip.PrefixFrom(a, 32))}
				f.deliver(nat, "the machine's own public address", tests, c, 0, 0)
			}
		}
	}
}

// notRouted tests that no route took the packet to an appliance, a gateway or a machine. Routes come before Azure's public addresses: a
// user-defined one of 0.0.0.0/0 to a firewall is also for those of load balancers ("Virtual network traffic routing", learn.microsoft.com).
func notRouted() netfilter.Statement { return &netfilter.MatchMark{Mask: ^uint32(0)} }

// entry are a front end's address and what is done with what comes there.
type entry struct {
	lb             *LoadBalancer
	name           string
	front          *ref
	protocol       string
	port, backPort uint16
	lastPort       uint16 // of a range, 0 for one port
	floating       bool
	members        []*config
	others         []netip.Addr
	lost           []string // pools of which not all members were read
}

func (f *fabric) balancingRule(lbChain, nat *netfilter.Chain, lb *LoadBalancer, r BalancingRule) {
	e := entry{lb: lb, name: r.Name, front: r.Frontend, protocol: r.Protocol, port: r.FrontendPort, backPort: r.BackendPort,
		floating: r.EnableFloatingIP}
	for _, p := range r.pools() {
		e.members = append(e.members, f.members[p]...)
		e.others = append(e.others, f.others[p]...)
		if f.lost[p] {
			e.lost = append(e.lost, p)
		}
	}
	f.entry(lbChain, nat, e)
}

func (f *fabric) inboundRule(lbChain, nat *netfilter.Chain, lb *LoadBalancer, r InboundNATRule) {
	e := entry{lb: lb, name: r.Name, front: r.Frontend, protocol: r.Protocol, port: r.FrontendPort, backPort: r.BackendPort,
		floating: r.EnableFloatingIP}
	if r.Target == nil {
		f.poolRule(lbChain, nat, r, e)
		return
	}
	if c := f.owners[r.Target.id()]; c != nil {
		e.members = []*config{c}
	}
	f.entry(lbChain, nat, e)
}

// poolRule writes an inbound NAT rule of a pool. Which back end has which port is unknown: the rule does not say.
func (f *fabric) poolRule(lbChain, nat *netfilter.Chain, r InboundNATRule, e entry) {
	if e.port == 0 {
		e.port, e.lastPort = r.RangeStart, r.RangeEnd
	}
	c := nat
	if e.floating {
		c = lbChain
	}
	if tests, _ := f.frontTests(e); tests != nil {
		add(c, "an inbound NAT rule without one back end", with(tests,
			unknown("which back end inbound NAT rule %s leads to is not known", title(r.Resource)))...)
	}
}

// entry writes what one rule does at the addresses of its front end.
func (f *fabric) entry(lbChain, nat *netfilter.Chain, e entry) {
	tests, inside := f.frontTests(e)
	if tests == nil {
		return
	}
	bits := chosen
	if inside {
		bits |= chosenInside
	}
	name := fmt.Sprintf("rule/%s/%s", f.shortName(e.lb.ID), plain(e.name))
	c, fresh := f.chain(name)
	if !fresh {
		return
	}
	from := nat
	if e.floating {
		from = lbChain
	}
	add(from, "has the load balancer a rule for this address and port?", with(tests, to(c, false))...)
	var chains []*netfilter.Chain
	for i, m := range e.members {
		back, _ := f.chain(fmt.Sprintf("%s/%d", name, i+1))
		chains = append(chains, back)
		why := "a back end, " + m.nic.title
		if e.floating {
			add(back, why, setMark(m.nic.mark|bits, true), setMark(m.nic.mark, false), decide(netfilter.Accept))
			continue
		}
		f.deliver(back, why, nil, m, bits, e.backPort)
	}
	for i, a := range e.others {
		back, _ := f.chain(fmt.Sprintf("%s/%d", name, len(e.members)+i+1))
		chains = append(chains, back)
		add(back, "a back end by its address", unknown("no interface that was read has the back end's address %s", a))
	}
	for i, p := range e.lost { // once for each pool: what is not known of one is not of another
		back, _ := f.chain(fmt.Sprintf("%s/%d", name, len(e.members)+len(e.others)+i+1))
		chains = append(chains, back)
		add(back, "a back end that was not read", unknown("not all back ends of pool %s were read", plain(last(p))))
	}
	if len(chains) == 0 {
		add(c, "no back end is up", unknown("the rule's pool has no back end that was read"))
		return
	}
	words := "one of the back ends by the flow"
	add(c, "a back end", choose(words, chains))
}

// floatingFronts returns the addresses of front ends whose rules leave the destination as it is and have a back end on an interface:
// replies come from them ("Floating IP configuration", Azure Load Balancer, learn.microsoft.com).
func (f *fabric) floatingFronts(n *nic) (all []netip.Prefix) {
	onNIC := func(c *config) bool { return c.nic == n }
	for _, id := range sorted(f.LoadBalancers) {
		lb := f.LoadBalancers[id]
		for _, r := range lb.Rules {
			if r.EnableFloatingIP && slices.ContainsFunc(r.pools(), func(p string) bool { return slices.ContainsFunc(f.members[p], onNIC) }) {
				at, _ := f.frontAddresses(lb, r.Frontend)
				all = append(all, at...)
			}
		}
		for _, r := range lb.InboundNATRules {
			if c := f.owners[r.Target.id()]; r.EnableFloatingIP && c != nil && onNIC(c) {
				at, _ := f.frontAddresses(lb, r.Frontend)
				all = append(all, at...)
			}
		}
	}
	return all
}

// deliver gives what comes for a public address or a back end its destination.
func (f *fabric) deliver(c *netfilter.Chain, why string, tests []netfilter.Statement, m *config, bits int, port uint16) {
	if bits == 0 {
		bits = chosen
	}
	t := packet.Translation{Low: m.address, High: m.address, PortLow: port, PortHigh: port}
	add(c, why, with(tests, setMark(m.nic.mark|bits, true), setMark(m.nic.mark, false), &netfilter.Translate{Translation: t})...)
}

// frontTests test for a rule's front end; nil where its address was not read. A rule for all protocols and port 0 holds every port.
func (f *fabric) frontTests(e entry) (tests []netfilter.Statement, inside bool) {
	at, inside := f.frontAddresses(e.lb, e.front)
	if len(at) == 0 {
		return nil, false
	}
	tests = []netfilter.Statement{states(packet.New), notRouted(), addresses(false, false, at...)}
	switch strings.ToLower(e.protocol) {
	case "tcp":
		tests = append(tests, protocol(packet.TCP))
	case "udp":
		tests = append(tests, protocol(packet.UDP))
	}
	if e.port != 0 {
		tests = append(tests, ports(false, netfilter.PortRange{Low: e.port, High: max(e.port, e.lastPort)}))
	}
	return tests, inside
}

// frontAddresses returns the addresses of a load balancer's front end, as far as they were read, and whether they are in a virtual network.
func (f *fabric) frontAddresses(lb *LoadBalancer, front *ref) (at []netip.Prefix, inside bool) {
	i := slices.IndexFunc(lb.Frontends, func(fe Frontend) bool { return front != nil && strings.EqualFold(fe.ID, front.ID) })
	if i < 0 {
		return nil, false
	}
	fe := lb.Frontends[i]
	if fe.public() {
		return f.publicAddresses(fe.PublicIPAddress, fe.PublicIPPrefix), false
	}
	return parseAll(fe.PrivateIPAddress), true
}
