package vnet

import (
	"fmt"
	"net/netip"
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
	WayNone          Way = iota // nothing translates the address
	WayDefault                  // default outbound access
	WayBalancingRule            // a load balancing rule that translates sources, too
	WayOutboundRule             // an outbound rule of a load balancer
	WayInstance                 // the machine's own public address
	WayGateway                  // the subnet's NAT gateway
)

// Sender says what there is to leave by for one IP configuration.
type Sender struct {
	Gateway       bool // the subnet has a NAT gateway
	Instance      bool // the configuration has a public address
	OutboundRule  bool // an outbound rule has a pool with it
	BalancingRule bool // a load balancing rule has a pool with it and translates sources, too
	Standard      bool // a Standard load balancer has a pool with it, which ends default outbound access
	Secondary     bool // it is not the primary one of its NIC: only a NAT gateway or a public address take it
	Private       bool // the subnet has no default outbound access
}

// Way returns the way that Azure takes, and for WayNone why there is none ("Use source network address translation (SNAT) for outbound
// connections", "What is Azure NAT Gateway?" and "Default outbound access", learn.microsoft.com).
func (s Sender) Way() (way Way, why string) {
	switch {
	case s.Gateway:
		return WayGateway, ""
	case s.Instance:
		return WayInstance, ""
	case s.Secondary:
		return WayNone, "a secondary address has no outbound"
	case s.OutboundRule:
		return WayOutboundRule, ""
	case s.BalancingRule:
		return WayBalancingRule, ""
	case s.Standard:
		return WayNone, "no outbound: no rule of its Standard load balancer translates it"
	case s.Private:
		return WayNone, "no outbound: the subnet is private"
	}
	return WayDefault, ""
}

// senders returns a function that says what there is to leave by for a NIC's IP configuration.
func (n *Network) senders() func(NIC, IPConfig) Sender {
	pools := map[IPConfigRef]Sender{}
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		for _, pool := range lb.BackendPools {
			byOutboundRule, byRule := lb.hasOutboundRule(pool.Name), len(lb.translating(pool.Name)) > 0
			for _, m := range pool.Members {
				s := pools[m]
				s.Standard = s.Standard || lb.SKU == SKUStandard
				s.OutboundRule, s.BalancingRule = s.OutboundRule || byOutboundRule, s.BalancingRule || byRule
				pools[m] = s
			}
		}
	}
	return func(nic NIC, c IPConfig) Sender {
		subnet, _ := n.Subnet(nic.VNet, nic.Subnet)
		s := pools[IPConfigRef{nic.Name, c.Name}]
		s.Gateway, s.Instance, s.Secondary, s.Private = subnet.NATGateway != "", c.PublicIP != "", !c.Primary, subnet.Private
		return s
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
