package vnet

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// maxIPConfigs is how many IP configurations a NIC can have (Azure's limit of private addresses per NIC).
const maxIPConfigs = 256

// Gateway returns the subnet's gateway: its second address.
func (s Subnet) Gateway() netip.Addr { return s.Prefix.Masked().Addr().Next() }

// usable reports whether Azure gives out addr in the subnet: not the first four and not the last (the network, the gateway, two
// for Azure DNS, the broadcast address).
func (s Subnet) usable(addr netip.Addr) bool {
	p := s.Prefix.Masked()
	if !p.Contains(addr) || !p.Contains(addr.Next()) {
		return false
	}
	first := p.Addr()
	for range 4 {
		if addr == first {
			return false
		}
		first = first.Next()
	}
	return true
}

// AllocateNIC gives a machine a NIC named "<machine>-nic" with n addresses of a subnet, taken in a row from the lowest place
// where so many are free, and returns it. The first is the primary one. An unknown network or subnet, a machine that has a NIC,
// and a subnet without n free addresses in a row are errors, and nothing is changed.
func (n *Network) AllocateNIC(machine, vnet, subnet string, count int) (NIC, error) {
	return n.allocateNIC(machine, vnet, subnet, count, netip.Addr{})
}

// AllocateNICAt does what AllocateNIC does with a given first address.
func (n *Network) AllocateNICAt(machine, vnet, subnet string, first netip.Addr, count int) (NIC, error) {
	return n.allocateNIC(machine, vnet, subnet, count, first)
}

func (n *Network) allocateNIC(machine, vnet, subnet string, count int, first netip.Addr) (NIC, error) {
	fail := func(format string, a ...any) (NIC, error) {
		return NIC{}, fmt.Errorf("allocate NIC for %s in %s/%s: %w", machine, vnet, subnet, fmt.Errorf(format, a...))
	}
	if count < 1 || count > maxIPConfigs {
		return fail("%d addresses: a NIC has 1 to %d", count, maxIPConfigs)
	}
	s, ok := n.Subnet(vnet, subnet)
	if !ok {
		return fail("no such subnet")
	}
	name := machine + "-nic"
	if _, ok := n.NIC(name); ok {
		return fail("NIC %s is there already", name)
	}
	if !first.IsValid() {
		if first, ok = n.findFree(s, count); !ok {
			return fail("%s has no %d free addresses in a row", s.Prefix, count)
		}
	} else if at, ok := n.runBlocked(s, first, count); ok {
		return fail("%s is not free", at)
	}
	nic := NIC{Name: name, Machine: machine, VNet: vnet, Subnet: subnet, ID: n.freeID(),
		MAC: macFor(n.Subscription, n.NodeResourceGroup, name)}
	for i, addr := 0, first; i < count; i, addr = i+1, addr.Next() {
		nic.IPConfigs = append(nic.IPConfigs, IPConfig{Name: fmt.Sprintf("ipconfig%d", i+1), Address: addr, Primary: i == 0})
	}
	n.NICs = append(n.NICs, nic)
	return nic, nil
}

// findFree returns the lowest address of the subnet from which count addresses are free.
func (n *Network) findFree(s Subnet, count int) (netip.Addr, bool) {
	used := n.privateInUse()
	var first netip.Addr
	run := 0
	for a := s.Prefix.Masked().Addr(); s.Prefix.Contains(a); a = a.Next() {
		if used[a] || !s.usable(a) {
			run = 0
			continue
		}
		if run == 0 {
			first = a
		}
		if run++; run == count {
			return first, true
		}
	}
	return netip.Addr{}, false
}

// runBlocked returns the first address of a run that is taken or not to be given out.
func (n *Network) runBlocked(s Subnet, first netip.Addr, count int) (netip.Addr, bool) {
	used := n.privateInUse()
	for a := first; count > 0; a, count = a.Next(), count-1 {
		if used[a] || !s.usable(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func (n *Network) privateInUse() map[netip.Addr]bool {
	used := map[netip.Addr]bool{}
	for _, nic := range n.NICs {
		for _, c := range nic.IPConfigs {
			used[c.Address] = true
		}
	}
	for _, lb := range n.LoadBalancers {
		for _, f := range lb.Frontends {
			used[f.Address] = true
		}
	}
	return used
}

// freeID returns the lowest number that no NIC has.
func (n *Network) freeID() int {
	used := map[int]bool{}
	for _, nic := range n.NICs {
		used[nic.ID] = true
	}
	id := 1
	for used[id] {
		id++
	}
	return id
}

// macFor derives a NIC's link-layer address from its identity, under one of Microsoft's prefixes, so that it is the same in
// every run.
func macFor(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	sum := h.Sum(nil)
	return fmt.Sprintf("00:0d:3a:%02x:%02x:%02x", sum[0], sum[1], sum[2])
}

// ReleaseNIC takes a NIC and its addresses, public ones too, out of the network, and out of every back-end pool. One that is not there is no
// error.
func (n *Network) ReleaseNIC(name string) {
	if nic, ok := n.NIC(name); ok {
		for _, c := range nic.IPConfigs {
			if c.PublicIP != "" {
				n.ReleasePublicIP(c.PublicIP)
			}
		}
	}
	n.NICs = slices.DeleteFunc(n.NICs, func(nic NIC) bool { return nic.Name == name })
	n.LeavePools(name)
}

// LeavePools takes a NIC out of every back-end pool.
func (n *Network) LeavePools(name string) {
	for i := range n.LoadBalancers {
		pools := n.LoadBalancers[i].BackendPools
		for j := range pools {
			pools[j].Members = slices.DeleteFunc(pools[j].Members, func(m IPConfigRef) bool { return m.NIC == name })
		}
	}
}

// publicPrefix is the range that public addresses of the lab's Azure come from (TEST-NET-3, RFC 5737): .1 is the API server, .2
// default outbound, front ends and instances' own addresses from .10 on.
var publicPrefix = netip.MustParsePrefix("203.0.113.0/24")

// Well-known addresses of publicPrefix.
var (
	APIServerAddress       = netip.MustParseAddr("203.0.113.1")
	DefaultOutboundAddress = netip.MustParseAddr("203.0.113.2")
	firstPublicAddress     = netip.MustParseAddr("203.0.113.10")
	// fabricAddress is the fabric's own on the internet side, where the internet's router sends what is for publicPrefix.
	fabricAddress = netip.MustParseAddr("203.0.113.254")
)

// AllocatePublicIP takes the first free public address, or want when that is valid, for a PublicIP of this name. A name that is
// taken, an address that is taken or not the lab's, and an exhausted range are errors.
func (n *Network) AllocatePublicIP(name string, want netip.Addr) (PublicIP, error) {
	fail := func(format string, a ...any) (PublicIP, error) {
		return PublicIP{}, fmt.Errorf("allocate public address %s: %w", name, fmt.Errorf(format, a...))
	}
	used := n.publicInUse()
	if _, taken := n.PublicIP(name); taken {
		return fail("the name is taken")
	}
	all := n.publicAddresses()
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return used[a] == "" && (!want.IsValid() || a == want) })
	switch {
	case i >= 0:
		p := PublicIP{Name: name, Address: all[i]}
		n.PublicIPs = append(n.PublicIPs, p)
		return p, nil
	case !want.IsValid():
		return fail("all %d are in use", len(all))
	case slices.Contains(all, want):
		return fail("%s is in use by %s; ask for another, or for none", want, used[want])
	default:
		return fail("%s is not one of the lab's, %s to %s", want, all[0], all[len(all)-1])
	}
}

func (n *Network) publicAddresses() []netip.Addr {
	all := n.PublicAddresses
	if len(all) == 0 {
		for a := firstPublicAddress; a.Less(fabricAddress); a = a.Next() {
			all = append(all, a)
		}
	}
	return all
}

func (n *Network) publicInUse() map[netip.Addr]string {
	used := map[netip.Addr]string{fabricAddress: "the fabric", n.DefaultOutbound: "default outbound access"}
	for _, lb := range n.LoadBalancers {
		for _, f := range lb.Frontends {
			used[f.Address] = "front end " + f.Name
		}
	}
	for _, p := range n.PublicIPs {
		used[p.Address] = "public IP " + p.Name
	}
	return used
}

// ReleasePublicIP takes a public address from what has it and gives it back. It is no error if it does not exist.
func (n *Network) ReleasePublicIP(name string) {
	n.PublicIPs = slices.DeleteFunc(n.PublicIPs, func(p PublicIP) bool { return p.Name == name })
	for i := range n.NICs {
		for j := range n.NICs[i].IPConfigs {
			if c := &n.NICs[i].IPConfigs[j]; c.PublicIP == name {
				c.PublicIP = ""
			}
		}
	}
	for i, g := range n.NATGateways {
		n.NATGateways[i].PublicIPs = slices.DeleteFunc(slices.Clone(g.PublicIPs), func(p string) bool { return p == name })
	}
}

// find returns the first element of which is says so.
func find[T any](list []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i], true
	}
	return found, false
}

// Subnet finds a subnet.
func (n *Network) Subnet(vnet, name string) (Subnet, bool) {
	v, _ := find(n.VNets, func(v VNet) bool { return v.Name == vnet })
	return find(v.Subnets, func(s Subnet) bool { return s.Name == name })
}

// NIC finds a NIC.
func (n *Network) NIC(name string) (NIC, bool) {
	return find(n.NICs, func(nic NIC) bool { return nic.Name == name })
}

// Host finds an internet host.
func (n *Network) Host(name string) (Host, bool) {
	return find(n.Hosts, func(h Host) bool { return h.Name == name })
}

// PublicIP finds a public address.
func (n *Network) PublicIP(name string) (PublicIP, bool) {
	return find(n.PublicIPs, func(p PublicIP) bool { return p.Name == name })
}

// LoadBalancer finds a load balancer; the pointer is into the network.
func (n *Network) LoadBalancer(name string) (*LoadBalancer, bool) {
	for i := range n.LoadBalancers {
		if n.LoadBalancers[i].Name == name {
			return &n.LoadBalancers[i], true
		}
	}
	return nil, false
}

// Primary returns the NIC's primary IP configuration.
func (n NIC) Primary() IPConfig { return n.IPConfigs[0] }

// Clone returns a copy that shares nothing with the network.
func (n Network) Clone() Network {
	n.Attributes = maps.Clone(n.Attributes)
	n.VNets = slices.Clone(n.VNets)
	for i := range n.VNets {
		v := &n.VNets[i]
		v.AddressPrefixes, v.Subnets, v.Peerings = slices.Clone(v.AddressPrefixes), slices.Clone(v.Subnets), slices.Clone(v.Peerings)
	}
	n.RouteTables = slices.Clone(n.RouteTables)
	for i := range n.RouteTables {
		n.RouteTables[i].Routes = slices.Clone(n.RouteTables[i].Routes)
	}
	n.SecurityGroups = slices.Clone(n.SecurityGroups)
	for i := range n.SecurityGroups {
		n.SecurityGroups[i].Rules = slices.Clone(n.SecurityGroups[i].Rules) // the lists in a rule are never changed in place
	}
	n.NICs = slices.Clone(n.NICs)
	for i := range n.NICs {
		n.NICs[i].IPConfigs = slices.Clone(n.NICs[i].IPConfigs)
	}
	n.PublicIPs, n.PublicAddresses, n.Hosts = slices.Clone(n.PublicIPs), slices.Clone(n.PublicAddresses), slices.Clone(n.Hosts)
	n.PrivateEndpoints = slices.Clone(n.PrivateEndpoints)
	n.NATGateways = slices.Clone(n.NATGateways)
	for i := range n.NATGateways {
		n.NATGateways[i].PublicIPs = slices.Clone(n.NATGateways[i].PublicIPs)
	}
	n.LoadBalancers = slices.Clone(n.LoadBalancers)
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		lb.Frontends, lb.Rules, lb.Probes = slices.Clone(lb.Frontends), slices.Clone(lb.Rules), slices.Clone(lb.Probes)
		lb.BackendPools, lb.OutboundRules = slices.Clone(lb.BackendPools), slices.Clone(lb.OutboundRules)
		for j := range lb.BackendPools {
			lb.BackendPools[j].Members = slices.Clone(lb.BackendPools[j].Members)
		}
		for j := range lb.OutboundRules {
			lb.OutboundRules[j].Frontends = slices.Clone(lb.OutboundRules[j].Frontends)
		}
	}
	return n
}
