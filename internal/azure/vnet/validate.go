package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Validate returns everything that is wrong with the network, joined, or nil. What it lets pass, NewPlan can plan.
func (n Network) Validate() error {
	v := validator{names: map[string]bool{}, addresses: map[netip.Addr]string{}}
	v.vnets(n)
	v.routeTables(n)
	v.overlay(n)
	v.nics(n)
	v.securityGroups(n)
	for _, p := range n.PublicIPs {
		v.unique("public address", p.Name)
		v.check(p.Address.IsValid(), "public address %s: no address", p.Name)
	}
	for _, h := range n.Hosts {
		v.unique("host", h.Name)
		v.address("host "+h.Name, h.Address)
		v.check(len(h.Name) >= 1 && len(h.Name) <= 15, "host %q: a name has 1 to 15 bytes: it is a link's", h.Name)
		v.check(h.Name != "lo" && h.Name != uplinkOutside, "host %s: the name is the router's own", h.Name)
	}
	v.gateways(n)
	for i := range n.LoadBalancers {
		v.loadBalancer(n, &n.LoadBalancers[i])
	}
	return errors.Join(v.errs...)
}

type validator struct {
	names     map[string]bool
	addresses map[netip.Addr]string
	errs      []error
}

func (v *validator) check(ok bool, format string, a ...any) {
	if !ok {
		v.errs = append(v.errs, fmt.Errorf(format, a...))
	}
}

func (v *validator) unique(kind, name string) {
	key := kind + " " + name
	v.check(name != "", "%s: no name", kind)
	v.check(!v.names[key], "%s: the name is taken", key)
	v.names[key] = true
}

func (v *validator) address(what string, a netip.Addr) {
	v.check(a.IsValid(), "%s: no address", what)
	other, taken := v.addresses[a]
	v.check(!taken, "%s: %s is %s's", what, a, other)
	v.addresses[a] = what
}

func (v *validator) vnets(n Network) {
	type subnetPrefix struct {
		what   string
		prefix netip.Prefix
	}
	var subnets []subnetPrefix
	for _, net := range n.VNets {
		v.unique("virtual network", net.Name)
		for _, s := range net.Subnets {
			what := fmt.Sprintf("subnet %s/%s", net.Name, s.Name)
			v.unique("subnet", net.Name+"/"+s.Name)
			inside := slices.ContainsFunc(net.AddressPrefixes, func(p netip.Prefix) bool {
				return p.Bits() <= s.Prefix.Bits() && p.Contains(s.Prefix.Addr())
			})
			v.check(inside, "%s: %s is outside the network's address space", what, s.Prefix)
			v.check(s.Prefix.Bits() <= 29, "%s: %s is smaller than /29", what, s.Prefix)
			for _, o := range subnets {
				v.check(!o.prefix.Overlaps(s.Prefix), "%s: %s overlaps %s %s", what, s.Prefix, o.what, o.prefix)
			}
			subnets = append(subnets, subnetPrefix{what, s.Prefix})
		}
	}
}

// routeTables checks the tables, and that the tables of subnets exist. A next hop that is unassigned, or that does not forward, is not an
// error. Azure accepts such a route, and drops the packets that follow it.
func (v *validator) routeTables(n Network) {
	for _, t := range n.RouteTables {
		v.unique("route table", t.Name)
		prefixes := map[netip.Prefix]string{}
		for _, r := range t.Routes {
			what := fmt.Sprintf("route %s/%s", t.Name, r.Name)
			v.unique("route", t.Name+"/"+r.Name)
			if !r.Prefix.IsValid() || !r.Prefix.Addr().Is4() {
				v.check(false, "%s: no IPv4 prefix", what)
				continue
			}
			v.check(r.Prefix == r.Prefix.Masked(), "%s: %s is not aligned", what, r.Prefix)
			v.check(prefixes[r.Prefix] == "", "%s: %s is route %s's", what, r.Prefix, prefixes[r.Prefix])
			prefixes[r.Prefix] = r.Name
			known := slices.Contains([]string{NextHopAppliance, NextHopVNetLocal, NextHopInternet, NextHopNone}, r.NextHopType)
			v.check(known, "%s: unknown next hop type %q", what, r.NextHopType)
			v.check(r.NextHop.IsValid() == (r.NextHopType == NextHopAppliance), "%s: the next hop's address goes with %s, and only with it", what,
				NextHopAppliance)
		}
	}
	for _, net := range n.VNets {
		for _, s := range net.Subnets {
			v.check(s.RouteTable == "" || v.names["route table "+s.RouteTable], "subnet %s/%s: no route table %s", net.Name, s.Name, s.RouteTable)
		}
		for _, p := range net.Peerings {
			v.check(v.names["virtual network "+p.RemoteVNet], "peering %s/%s: no virtual network %s", net.Name, p.Name, p.RemoteVNet)
		}
	}
}

func (v *validator) nics(n Network) {
	ids := map[int]string{}
	for _, nic := range n.NICs {
		v.unique("NIC", nic.Name)
		v.check(nic.ID >= 1 && nic.ID <= 0xffff, "NIC %s: ID %d is not from 1 to 65535", nic.Name, nic.ID)
		v.check(ids[nic.ID] == "", "NIC %s: ID %d is %s's", nic.Name, nic.ID, ids[nic.ID])
		ids[nic.ID] = nic.Name
		s, ok := n.Subnet(nic.VNet, nic.Subnet)
		v.check(ok, "NIC %s: no subnet %s/%s", nic.Name, nic.VNet, nic.Subnet)
		v.check(len(nic.IPConfigs) > 0, "NIC %s: no IP configuration", nic.Name)
		v.overlayPart(n, nic)
		for i, c := range nic.IPConfigs {
			what := fmt.Sprintf("NIC %s/%s", nic.Name, c.Name)
			v.address(what, c.Address)
			v.check(!ok || s.usable(c.Address), "%s: %s is not one of %s to give out", what, c.Address, s.Prefix)
			v.check(c.Primary == (i == 0), "%s: the first IP configuration is the primary one, and no other", what)
			if c.PublicIP != "" {
				_, known := n.PublicIP(c.PublicIP)
				v.check(known, "%s: no public address %s", what, c.PublicIP)
			}
		}
	}
}

func (v *validator) loadBalancer(n Network, lb *LoadBalancer) {
	v.unique("load balancer", lb.Name)
	v.check(lb.SKU == SKUBasic || lb.SKU == SKUStandard, "load balancer %s: SKU %q is neither %s nor %s", lb.Name, lb.SKU, SKUBasic,
		SKUStandard)
	has := map[string]bool{"probe ": true}
	for _, f := range lb.Frontends {
		v.unique("front end", lb.Name+"/"+f.Name)
		v.address(fmt.Sprintf("front end %s/%s", lb.Name, f.Name), f.Address)
		if f.Internal() {
			s, ok := n.Subnet(f.VNet, f.Subnet)
			v.check(ok, "front end %s/%s: no subnet %s/%s", lb.Name, f.Name, f.VNet, f.Subnet)
			v.check(!ok || s.usable(f.Address), "front end %s/%s: %s is not one of %s to give out", lb.Name, f.Name, f.Address, s.Prefix)
		}
		has["front end "+f.Name] = true
	}
	for _, p := range lb.BackendPools {
		v.unique("back-end pool", lb.Name+"/"+p.Name)
		has["back-end pool "+p.Name] = true
		for _, m := range p.Members {
			nic, ok := n.NIC(m.NIC)
			ok = ok && slices.ContainsFunc(nic.IPConfigs, func(c IPConfig) bool { return c.Name == m.IPConfig })
			v.check(ok, "back-end pool %s/%s: no IP configuration %s/%s", lb.Name, p.Name, m.NIC, m.IPConfig)
		}
	}
	for _, p := range lb.Probes {
		v.unique("probe", lb.Name+"/"+p.Name)
		v.check(p.Protocol == ProtocolTCP || p.Protocol == ProtocolHTTP, "probe %s/%s: protocol %q is neither Tcp nor Http", lb.Name, p.Name,
			p.Protocol)
		v.check(p.Port > 0 && p.IntervalSeconds > 0 && p.Count > 0, "probe %s/%s: port, interval and count must be above 0", lb.Name, p.Name)
		has["probe "+p.Name] = true
	}
	v.outboundRules(n, lb, has)
	flows := map[string]string{}
	for _, r := range lb.Rules {
		v.unique("rule", lb.Name+"/"+r.Name)
		what := fmt.Sprintf("rule %s/%s", lb.Name, r.Name)
		v.check(r.Protocol == ProtocolTCP || r.Protocol == ProtocolUDP, "%s: protocol %q is neither Tcp nor Udp", what, r.Protocol)
		v.check(r.FrontendPort > 0 && r.BackendPort > 0, "%s: ports must be above 0", what)
		v.check(!r.FloatingIP || r.FrontendPort == r.BackendPort, "%s: with floating IP the ports are the same", what)
		for _, ref := range []string{"front end " + r.Frontend, "back-end pool " + r.BackendPool, "probe " + r.Probe} {
			v.check(has[ref], "%s: no %s", what, ref)
		}
		key := fmt.Sprintf("%s %s %d", r.Frontend, r.Protocol, r.FrontendPort)
		v.check(flows[key] == "", "%s: front end %s has rule %s for the same protocol and port", what, r.Frontend, flows[key])
		flows[key] = r.Name
	}
}

func (v *validator) outboundRules(n Network, lb *LoadBalancer, has map[string]bool) {
	v.check(lb.SKU == SKUStandard || len(lb.OutboundRules) == 0, "load balancer %s: only SKU %s has outbound rules", lb.Name, SKUStandard)
	for _, r := range lb.OutboundRules {
		what := fmt.Sprintf("outbound rule %s/%s", lb.Name, r.Name)
		v.unique("outbound rule", lb.Name+"/"+r.Name)
		v.check(len(r.Frontends) > 0, "%s: no front end", what)
		v.check(slices.Contains([]string{"", ProtocolTCP, ProtocolUDP}, r.Protocol), "%s: protocol %q is neither Tcp nor Udp", what, r.Protocol)
		for _, name := range r.Frontends {
			v.check(has["front end "+name], "%s: no front end %s", what, name)
			f, _ := find(lb.Frontends, func(f Frontend) bool { return f.Name == name })
			v.check(!f.Internal(), "%s: front end %s is internal", what, name)
		}
		v.check(has["back-end pool "+r.BackendPool], "%s: no back-end pool %s", what, r.BackendPool)
		v.check(r.IdleTimeoutMinutes >= 4 && r.IdleTimeoutMinutes <= 120, "%s: idle time-out %d min is not from 4 to 120", what,
			r.IdleTimeoutMinutes)
		v.check(r.AllocatedOutboundPorts >= 0, "%s: %d ports", what, r.AllocatedOutboundPorts)
		if need, most := r.AllocatedOutboundPorts*len(lb.poolMembers(n, r.BackendPool)), outboundPortsPerFrontend*len(r.Frontends); need > most {
			v.check(false, "%s: %d ports are needed and %d front ends have %d", what, need, len(r.Frontends), most)
		}
	}
}
