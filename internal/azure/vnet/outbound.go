package vnet

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// outboundPlan is who leaves how.
type outboundPlan struct {
	allowed   []string   // elements "link" . address that may leave
	instances []instance // one to one
	pools     []outboundPool
	fallback  netip.Addr
	others    []string            // addresses that leave by the fallback
	none      map[string][]string // addresses that nothing translates, by why
	endpoints []string            // addresses that are reached by private endpoints
}

// instance is a machine's own public address. What begins at the machine leaves by it unless its subnet has a NAT gateway.
type instance struct {
	private, public netip.Addr
	leaves          bool
}

// outboundPool are machines that leave by the same public addresses: a load balancer's pool, each member with a block of ports on each
// front end; or those of a NAT gateway, which share all ports.
type outboundPool struct {
	frontends []netip.Addr
	members   []member
	ports     []int  // of each member on each front end
	idle      int    // minutes that a flow may be idle
	inTurn    bool   // the next front end when the ports of the one before are used up; else one at random
	reset     bool   // TCP packets of a flow that was idle for too long are answered with a reset
	gateway   string // name of the NAT gateway, "" for a load balancer
	only      string // the only protocol that rules of a Standard load balancer translate, "" for both
}

// OutboundPorts returns how many source ports each member of a back-end pool of this size has on a front end towards one destination and
// port ("Outbound rules", default SNAT port allocation, learn.microsoft.com). Above 1,000 members it is 0.
func OutboundPorts(poolSize int) int {
	for _, t := range []struct{ size, ports int }{{50, 1024}, {100, 512}, {200, 256}, {400, 128}, {800, 64}, {1000, 32}} {
		if poolSize <= t.size {
			return t.ports
		}
	}
	return 0
}

const (
	// FirstOutboundPort is where the first block begins; those below are the well-known ones.
	FirstOutboundPort = 1024
	// LastOutboundPort is the last one that a NAT gateway takes.
	LastOutboundPort = 65535
	// outboundPortsPerFrontend is how many source ports a front end has for all members ("Outbound rules", learn.microsoft.com).
	outboundPortsPerFrontend = 64000
)

// A portBlock is a member's share of a front end.
type portBlock struct {
	frontend netip.Addr
	member   member
	first    int
	ports    int
}

// block returns the share of the k-th member of the i-th front end.
func (p outboundPool) block(i, k int) portBlock {
	first := FirstOutboundPort
	if p.gateway == "" {
		first += k * p.ports[i]
	}
	return portBlock{p.frontends[i], p.members[k], first, p.ports[i]}
}

// outbound decides of each address of a machine how it leaves ([Sender.Way]).
func outbound(n Network) outboundPlan {
	p := outboundPlan{fallback: n.DefaultOutbound, none: map[string][]string{}}
	ways := map[Way]map[netip.Addr]bool{}
	senders := n.senders()
	for _, nic := range n.NICs {
		for _, c := range nic.IPConfigs {
			way, why := senders(nic, c).Way()
			if ways[way] == nil {
				ways[way] = map[netip.Addr]bool{}
			}
			ways[way][c.Address] = true
			if public, own := n.PublicIP(c.PublicIP); own {
				p.instances = append(p.instances, instance{c.Address, public.Address, way == WayInstance})
			}
			switch {
			case way == WayDefault && p.fallback.IsValid():
				p.others = append(p.others, c.Address.String())
			case way == WayNone && c.Primary:
				p.none[why] = append(p.none[why], c.Address.String())
			}
			if way != WayNone || c.Primary {
				p.allowed = append(p.allowed, fmt.Sprintf("%q . %s", nic.Link(), c.Address))
			}
		}
	}
	for _, a := range n.PrivateEndpoints {
		p.endpoints = append(p.endpoints, a.String())
	}
	for _, g := range n.NATGateways {
		p.addGateway(n, g)
	}
	for i := range n.LoadBalancers {
		p.addPools(n, &n.LoadBalancers[i], ways)
	}
	return p
}

// addGateway adds the machines of a NAT gateway's subnets, with all their addresses.
func (p *outboundPlan) addGateway(n Network, g NATGateway) {
	pool := outboundPool{idle: g.IdleTimeoutMinutes, reset: true, gateway: g.Name}
	for _, name := range g.PublicIPs {
		if ip, ok := n.PublicIP(name); ok {
			pool.frontends, pool.ports = append(pool.frontends, ip.Address), append(pool.ports, GatewayPorts)
		}
	}
	for _, nic := range n.NICs {
		if s, _ := n.Subnet(nic.VNet, nic.Subnet); s.NATGateway == g.Name {
			for _, c := range nic.IPConfigs {
				pool.members = append(pool.members, member{nic, c.Address})
			}
		}
	}
	if len(pool.members) > 0 {
		p.pools = append(p.pools, pool)
	}
}

// addPools adds what the outbound rules of a load balancer say, and its load balancing rules where no outbound rule does. An address is in
// the first pool that takes it.
func (p *outboundPlan) addPools(n Network, lb *LoadBalancer, ways map[Way]map[netip.Addr]bool) {
	for _, r := range lb.OutboundRules {
		pool := outboundPool{frontends: lb.public(r.Frontends), idle: r.IdleTimeoutMinutes, reset: r.TCPReset}
		p.addPool(n, lb, r.BackendPool, pool, r.AllocatedOutboundPorts, ways[WayOutboundRule])
	}
	for _, bp := range lb.BackendPools {
		rules := lb.translating(bp.Name)
		var names, protocols []string
		for _, f := range lb.Frontends {
			if slices.ContainsFunc(rules, func(r Rule) bool { return r.Frontend == f.Name }) {
				names = append(names, f.Name)
			}
		}
		for _, r := range rules {
			protocols = append(protocols, strings.ToLower(r.Protocol))
		}
		pool := outboundPool{frontends: lb.public(names), idle: idleMinutes}
		if slices.Sort(protocols); lb.SKU == SKUStandard && len(slices.Compact(protocols)) == 1 {
			pool.only = protocols[0]
		}
		p.addPool(n, lb, bp.Name, pool, 0, ways[WayBalancingRule])
	}
}

// hasOutboundRule reports whether an outbound rule has the pool.
func (lb *LoadBalancer) hasOutboundRule(pool string) bool {
	return slices.ContainsFunc(lb.OutboundRules, func(r OutboundRule) bool {
		return r.BackendPool == pool && len(lb.public(r.Frontends)) > 0
	})
}

// translating returns the load balancing rules by whose front ends the members of a pool leave.
func (lb *LoadBalancer) translating(pool string) []Rule {
	return slices.DeleteFunc(slices.Clone(lb.Rules), func(r Rule) bool {
		return r.BackendPool != pool || r.DisableOutboundSNAT || len(lb.public([]string{r.Frontend})) == 0
	})
}

// public returns the addresses of the named front ends that the internet can answer, each once.
func (lb *LoadBalancer) public(names []string) []netip.Addr {
	var all []netip.Addr
	for _, name := range names {
		f, ok := find(lb.Frontends, func(f Frontend) bool { return f.Name == name })
		if ok && !f.Internal() && !slices.Contains(all, f.Address) {
			all = append(all, f.Address)
		}
	}
	return all
}

// addPool adds those of a pool's members that leave this way and are in no pool yet, with so many ports each over all front ends; 0 means as
// many on each as the pool's size allows.
func (p *outboundPlan) addPool(n Network, lb *LoadBalancer, name string, pool outboundPool, ports int, leaving map[netip.Addr]bool) {
	members, frontends := lb.poolMembers(n, name), pool.frontends
	pool.inTurn = lb.SKU == SKUStandard
	for i := range frontends {
		share := OutboundPorts(len(members))
		if ports > 0 {
			share = (ports + len(frontends) - 1 - i) / len(frontends)
		}
		if share == 0 {
			pool.frontends = frontends[:i]
			break
		}
		pool.ports = append(pool.ports, share)
	}
	if len(pool.frontends) == 0 {
		return
	}
	for _, m := range members {
		if leaving[m.address] {
			pool.members = append(pool.members, m.member)
			delete(leaving, m.address)
		}
	}
	if len(pool.members) > 0 {
		p.pools = append(p.pools, pool)
	}
}

// outboundBlock is the share that a machine has of a front end's ports.
type outboundBlock struct {
	Machine   string
	Private   netip.Addr // what leaves from here is translated
	Frontend  netip.Addr
	FirstPort uint16
	Ports     int    // towards one destination and port
	InTurn    bool   // used when those of the machine's blocks before are used up
	Gateway   string // the NAT gateway, all whose machines share the block; "" for a load balancer
}

// outboundBlocks returns the shares of all machines that leave by a load balancer or NAT gateway.
func outboundBlocks(n Network) []outboundBlock {
	var all []outboundBlock
	for _, pool := range outbound(n).pools {
		for k := range pool.members {
			for i := range pool.frontends {
				b := pool.block(i, k)
				all = append(all, outboundBlock{b.member.nic.Machine, b.member.address, b.frontend, uint16(b.first), b.ports, pool.inTurn,
					pool.gateway})
			}
		}
	}
	return all
}

// source translates the source of what leaves for the internet, and of what comes back in by a public address of the lab's own.
func (w *nftWriter) source(out outboundPlan, f *firewall) {
	var rules []string
	for i, pool := range out.pools {
		if len(pool.frontends) == 0 {
			continue
		}
		for j := range pool.chosen() {
			w.frontend(fmt.Sprintf("out-%d-%d", i+1, j+1), pool, j)
		}
		set := fmt.Sprintf("pool-%d", i+1)
		w.set("set", set, "ipv4_addr", "", pool.addresses())
		rules = append(rules, because(fmt.Sprintf("ip saddr @%s %s", set, pool.choice(i+1)), pool.why()))
	}
	w.set("set", "default-out", "ipv4_addr", "", out.others)
	if len(out.others) > 0 {
		rules = append(rules, because(fmt.Sprintf("ip saddr @default-out snat ip to %s", out.fallback), "default outbound access"))
	}
	head := []string{
		f.acceptInside(), because("ct original ip daddr @vnets accept", "nothing inside virtual networks is translated"),
		because("snat ip to ip saddr map @instance-out", "the machine's own public address"),
	}
	if len(out.endpoints) > 0 && out.fallback.IsValid() {
		head = slices.Insert(head, 2, because(fmt.Sprintf("ip daddr @private-endpoints snat ip to %s", out.fallback), "as by a private endpoint"))
	}
	w.chain("nat-post", "type nat hook postrouting priority srcnat; policy accept;", slices.Concat(head, w.spareRules(), rules)...)
}

// frontend writes the chain of a pool's j-th front end.
func (w *nftWriter) frontend(name string, pool outboundPool, j int) {
	if pool.gateway != "" {
		w.chain(name, "", because(fmt.Sprintf("meta l4proto { tcp, udp } snat ip to %s:%d-%d fully-random", pool.frontends[j],
			FirstOutboundPort, LastOutboundPort), "NAT gateway "+pool.gateway+": any free port"))
		return
	}
	var blocks []string
	for k, m := range pool.members {
		b := pool.block(j, k)
		blocks = append(blocks, fmt.Sprintf("%s : %s . %d-%d", m.address, b.frontend, b.first, b.first+b.ports-1))
	}
	w.set("map", name, "ipv4_addr : interval ipv4_addr . inet_service", "", blocks)
	w.chain(name, "", because("meta l4proto { tcp, udp } snat ip to ip saddr map @"+name,
		"the load balancer's front end, the member's block of ports"))
}

// why says by what the pool leaves.
func (p outboundPool) why() string {
	if p.gateway != "" {
		return "NAT gateway " + p.gateway + " of the subnet"
	}
	return "one of the load balancer's front ends"
}

// egressDrops returns rules that drop what nothing translates, each with its reason.
func (w *nftWriter) egressDrops(out outboundPlan) []string {
	var rules []string
	if len(out.endpoints) > 0 {
		w.set("set", "private-endpoints", "ipv4_addr", "", out.endpoints)
		rules = append(rules, because("ip daddr @private-endpoints return", "as by a private endpoint"))
	}
	for i, why := range slices.Sorted(maps.Keys(out.none)) {
		set := fmt.Sprintf("no-out-%d", i+1)
		w.set("set", set, "ipv4_addr", "", out.none[why])
		rules = append(rules, because(fmt.Sprintf("ip saddr @%s drop", set), why))
	}
	for i, pool := range out.pools {
		set := fmt.Sprintf("pool-%d", i+1)
		switch {
		case len(pool.frontends) == 0:
			w.set("set", "gateway-"+set, "ipv4_addr", "", pool.addresses())
			rules = append(rules, because(fmt.Sprintf("ip saddr @gateway-%s drop", set), "NAT gateway "+pool.gateway+" has no public address"))
		case pool.only != "":
			w.set("set", "only-"+set, "ipv4_addr", "", pool.addresses())
			rules = append(rules, because(fmt.Sprintf("ip saddr @only-%s meta l4proto != %s drop", set, pool.only),
				"the load balancer's rules are not for this protocol"))
		}
	}
	return rules
}

func (p outboundPool) addresses() []string {
	var all []string
	for _, m := range p.members {
		all = append(all, m.address.String())
	}
	return all
}

// chosen returns the front ends that the table itself sends new flows to. Where they are used in turn it is the first: who finds that its
// ports are used up sends flows to the next (Spares). The kernel alone cannot tell that from other reasons for which it loses a first
// packet.
func (p outboundPool) chosen() []netip.Addr {
	if p.inTurn {
		return p.frontends[:1]
	}
	return p.frontends
}

// choice returns what sends a new flow of a pool to one of its front ends.
func (p outboundPool) choice(id int) string {
	chosen := p.chosen()
	if len(chosen) == 1 {
		return fmt.Sprintf("goto out-%d-1", id)
	}
	var chains []string
	for j := range chosen {
		chains = append(chains, fmt.Sprintf("%d : goto out-%d-%d", j, id, j+1))
	}
	return fmt.Sprintf("numgen random mod %d vmap { %s }", len(chosen), strings.Join(chains, ", "))
}
