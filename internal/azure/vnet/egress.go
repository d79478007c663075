package vnet

import (
	"fmt"
	"net/netip"
	"slices"
)

// NATGateway translates what leaves its subnets for the internet ("What is Azure NAT Gateway?", learn.microsoft.com). All machines of the
// subnets share the ports of its public addresses.
type NATGateway struct {
	Name      string
	PublicIPs []string // names
	// IdleTimeoutMinutes is how long a TCP flow may be idle, 4 to 120. For UDP it is always 4.
	IdleTimeoutMinutes int
}

// GatewayPorts is how many source ports a NAT gateway has on each public address towards one destination and port ("SNAT with Azure NAT
// Gateway", learn.microsoft.com).
const GatewayPorts = LastOutboundPort - FirstOutboundPort + 1

// Seconds for which a NAT gateway keeps the port of a flow that has ended from flows to the same destination (port reuse timers, "Azure NAT
// Gateway resource", learn.microsoft.com).
const (
	gatewayFINSeconds = 65
	gatewayRSTSeconds = 16
)

// NATGateway finds a NAT gateway.
func (n *Network) NATGateway(name string) (NATGateway, bool) {
	return find(n.NATGateways, func(g NATGateway) bool { return g.Name == name })
}

// Way is how an address of a machine leaves for the internet.
type Way int

// The ways, the first that there is last. A user-defined route to an appliance comes before all of them, because it is a route.
const (
	WayUnknown       Way = iota // something that decides was not read
	WayNone                     // nothing translates the address
	WayDefault                  // default outbound access
	WayBalancingRule            // a load balancing rule that translates sources, too
	WayOutboundRule             // an outbound rule of a load balancer
	WayInstance                 // the machine's own public address
	WayGateway                  // the subnet's NAT gateway
)

// Sender says what there is to leave by for one IP configuration.
type Sender struct {
	Gateway   bool         // the subnet has a NAT gateway
	Instance  bool         // the configuration has a public address
	Secondary bool         // it is not the primary one of its NIC: only a NAT gateway or a public address take it
	Private   bool         // the subnet has no default outbound access
	Balancers []Membership // the load balancers that have pools with it
	Unread    string       // why a load balancer that has a pool with it was not read, "" for none
	ByAddress bool         // a pool names it by its address
}

// Membership says which pools of a load balancer have an IP configuration. A pool that names only its address is none of them: it has no
// outbound rules ("Backend pool management", limitations, learn.microsoft.com).
type Membership struct {
	Balancer *LoadBalancer
	Pools    []string
}

// Outbound says how an address leaves for the internet.
type Outbound struct {
	Way   Way
	Exits []Exit // of WayOutboundRule and WayBalancingRule
	// Why says what keeps in an address, or of which flows it is not known how they leave: those of WayUnknown, or TCP's and UDP's that no
	// exit translates. Without it such flows are dropped.
	Why string
}

// Exit is a way out of a pool's members: front ends of a load balancer.
type Exit struct {
	Balancer  *LoadBalancer
	Pool      string
	Rule      *OutboundRule // nil where load balancing rules translate
	Protocol  string        // ProtocolTCP or ProtocolUDP, "" for both
	Frontends []string      // names; a Standard load balancer uses one after the other
}

// Why names the rule that translates.
func (e Exit) Why() string {
	if e.Rule == nil {
		return "load balancer " + e.Balancer.Name
	}
	return fmt.Sprintf("load balancer %s, outbound rule %s", e.Balancer.Name, e.Rule.Name)
}

// Outbound returns the way that Azure takes ("Use source network address translation (SNAT) for outbound connections", "What is Azure NAT
// Gateway?" and "Default outbound access", learn.microsoft.com).
func (s Sender) Outbound() Outbound {
	var byOutboundRule, byBalancingRule []Exit
	standard, byAddress := "", ""
	if s.ByAddress {
		byAddress = "a load balancer has it as a back end by its address: whether it has default outbound access is not known"
	}
	for _, m := range s.Balancers {
		byOutboundRule = append(byOutboundRule, m.outboundRules()...)
		byBalancingRule = append(byBalancingRule, m.balancingRules()...)
		if m.Balancer.SKU == SKUStandard {
			standard = m.Balancer.Name
		}
	}
	switch {
	case s.Gateway:
		return Outbound{Way: WayGateway}
	case s.Instance:
		return Outbound{Way: WayInstance}
	case s.Secondary:
		return Outbound{Way: WayNone, Why: "a secondary address has no outbound"}
	case s.Unread != "":
		return Outbound{Why: s.Unread}
	case len(byOutboundRule) > 0:
		return Outbound{WayOutboundRule, byOutboundRule, byAddress}
	case len(byBalancingRule) > 0:
		return Outbound{WayBalancingRule, byBalancingRule, byAddress}
	case s.ByAddress:
		return Outbound{Why: byAddress}
	case standard != "":
		return Outbound{Way: WayNone, Why: "no outbound: load balancer " + standard + " has no rule for it"}
	case s.Private:
		return Outbound{Way: WayNone, Why: "no outbound: the subnet is private"}
	}
	return Outbound{Way: WayDefault}
}

// ProtocolExits are the exits of one protocol's flows, or of TCP's and UDP's with Protocol "". Which of several Azure takes is not
// documented. The lab takes the first.
type ProtocolExits struct {
	Protocol string
	Exits    []Exit
}

// ByProtocol returns the exits of TCP and of UDP, together where they are the same.
func (o Outbound) ByProtocol() []ProtocolExits {
	if !slices.ContainsFunc(o.Exits, func(e Exit) bool { return e.Protocol != "" }) {
		return []ProtocolExits{{"", o.Exits}}
	}
	var all []ProtocolExits
	for _, protocol := range []string{ProtocolTCP, ProtocolUDP} {
		others := func(e Exit) bool { return e.Protocol != "" && e.Protocol != protocol }
		if exits := slices.DeleteFunc(slices.Clone(o.Exits), others); len(exits) > 0 {
			all = append(all, ProtocolExits{protocol, exits})
		}
	}
	return all
}

func (m Membership) outboundRules() []Exit {
	var all []Exit
	for i, r := range m.Balancer.OutboundRules {
		e := Exit{m.Balancer, r.BackendPool, &m.Balancer.OutboundRules[i], r.Protocol, m.Balancer.public(r.Frontends)}
		if slices.Contains(m.Pools, r.BackendPool) && len(e.Frontends) > 0 {
			all = append(all, e)
		}
	}
	return all
}

// balancingRules returns the exits by front ends of load balancing rules that translate sources, too: of a Standard load balancer for their
// protocols only.
func (m Membership) balancingRules() []Exit {
	var all []Exit
	for _, pool := range m.Pools {
		by := func(protocols ...string) Exit {
			var names []string
			for _, r := range m.Balancer.Rules {
				if r.BackendPool == pool && !r.DisableOutboundSNAT && slices.Contains(protocols, r.Protocol) {
					names = append(names, r.Frontend)
				}
			}
			return Exit{Balancer: m.Balancer, Pool: pool, Frontends: m.Balancer.public(sortedBy(names, m.Balancer.frontendIndex))}
		}
		exits := []Exit{by("", ProtocolTCP), by("", ProtocolUDP)}
		if slices.Equal(exits[0].Frontends, exits[1].Frontends) || m.Balancer.SKU != SKUStandard {
			exits = []Exit{by("", ProtocolTCP, ProtocolUDP)}
		} else {
			exits[0].Protocol, exits[1].Protocol = ProtocolTCP, ProtocolUDP
		}
		all = append(all, slices.DeleteFunc(exits, func(e Exit) bool { return len(e.Frontends) == 0 })...)
	}
	return all
}

// public returns those of the named front ends that are not internal, each once.
func (lb *LoadBalancer) public(names []string) []string {
	var all []string
	for _, name := range names {
		i := lb.frontendIndex(name)
		if (i < 0 || !lb.Frontends[i].Internal()) && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func (lb *LoadBalancer) frontendIndex(name string) int {
	return slices.IndexFunc(lb.Frontends, func(f Frontend) bool { return f.Name == name })
}

// senders returns a function that says what there is to leave by for a NIC's IP configuration.
func (n *Network) senders() func(NIC, IPConfig) Sender {
	balancers := map[IPConfigRef][]Membership{}
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		pools := map[IPConfigRef][]string{}
		for _, pool := range lb.BackendPools {
			for _, m := range pool.Members {
				pools[m] = append(pools[m], pool.Name)
			}
		}
		for m, names := range pools {
			balancers[m] = append(balancers[m], Membership{lb, names})
		}
	}
	return func(nic NIC, c IPConfig) Sender {
		s, _ := n.Subnet(nic.VNet, nic.Subnet)
		return Sender{Gateway: s.NATGateway != "", Instance: c.PublicIP != "", Secondary: !c.Primary, Private: s.Private,
			Balancers: balancers[IPConfigRef{nic.Name, c.Name}]}
	}
}

// internalFrontends returns the private addresses of front ends.
func (n *Network) internalFrontends() []netip.Addr {
	var all []netip.Addr
	for _, lb := range n.LoadBalancers {
		for _, f := range lb.Frontends {
			if f.Internal() {
				all = append(all, f.Address)
			}
		}
	}
	return all
}

// AllocateFrontend returns an address of a subnet for an internal front end: the wanted one, or the first free one.
func (n *Network) AllocateFrontend(vnet, subnet string, want netip.Addr) (netip.Addr, error) {
	fail := func(format string, a ...any) (netip.Addr, error) {
		return netip.Addr{}, fmt.Errorf("allocate front end in %s/%s: %w", vnet, subnet, fmt.Errorf(format, a...))
	}
	s, ok := n.Subnet(vnet, subnet)
	if !ok {
		return fail("no such subnet")
	}
	if want.IsValid() {
		if !s.Prefix.Contains(want) {
			return fail("%s is outside %s", want, s.Prefix)
		}
		if _, taken := n.runBlocked(s, want, 1); taken {
			return fail("%s is not free", want)
		}
		return want, nil
	}
	free, ok := n.findFree(s, 1)
	if !ok {
		return fail("%s has no free address", s.Prefix)
	}
	return free, nil
}

// gateways checks NAT gateways, and that subnets name some of them.
func (v *validator) gateways(n Network) {
	users := map[string]string{}
	for _, nic := range n.NICs {
		for _, c := range nic.IPConfigs {
			users[c.PublicIP] = "NIC " + nic.Name
		}
	}
	for _, g := range n.NATGateways {
		what := "NAT gateway " + g.Name
		v.unique("NAT gateway", g.Name)
		v.check(nftName(g.Name) == g.Name && len(g.Name) <= 80, "%s: a name has at most 80 letters, digits, -, _ and .", what)
		v.check(len(g.PublicIPs) <= 16, "%s: %d public addresses: it has at most 16", what, len(g.PublicIPs))
		v.check(g.IdleTimeoutMinutes >= 4 && g.IdleTimeoutMinutes <= 120, "%s: idle time-out %d min is not from 4 to 120", what,
			g.IdleTimeoutMinutes)
		for _, name := range g.PublicIPs {
			_, known := n.PublicIP(name)
			v.check(known, "%s: no public address %s", what, name)
			v.check(users[name] == "", "%s: public address %s is %s's", what, name, users[name])
			users[name] = what
		}
	}
	for _, net := range n.VNets {
		for _, s := range net.Subnets {
			v.check(s.NATGateway == "" || v.names["NAT gateway "+s.NATGateway], "subnet %s/%s: no NAT gateway %s", net.Name, s.Name, s.NATGateway)
		}
	}
	v.basicBesideGateways(n)
}

// basicBesideGateways checks that no member of a Basic load balancer is in a subnet with a NAT gateway ("Azure NAT Gateway resource",
// limitations, learn.microsoft.com).
func (v *validator) basicBesideGateways(n Network) {
	for _, lb := range n.LoadBalancers {
		for _, pool := range lb.BackendPools {
			for _, m := range pool.Members {
				nic, _ := n.NIC(m.NIC)
				s, _ := n.Subnet(nic.VNet, nic.Subnet)
				v.check(lb.SKU == SKUStandard || s.NATGateway == "", "back-end pool %s/%s: %s is in subnet %s/%s, whose NAT gateway needs SKU %s",
					lb.Name, pool.Name, m.NIC, nic.VNet, nic.Subnet, SKUStandard)
			}
		}
	}
}
