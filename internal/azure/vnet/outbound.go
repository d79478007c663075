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
	partial   map[string][]string // addresses whose flows of a protocol nothing translates, by the protocol
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
	ports     []int    // of each member on each front end
	idle      int      // minutes that a flow may be idle
	inTurn    bool     // the next front end when the ports of the one before are used up; else one at random
	reset     bool     // TCP packets of a flow that was idle for too long are answered with a reset
	gateway   string   // name of the NAT gateway, "" for a load balancer
	exit      Exit     // of a load balancer
	protocols []string // "tcp", "udp"
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

// outboundBlock is the share that a machine has of a front end's ports.
type outboundBlock struct {
	Machine   string
	Private   netip.Addr // what leaves from here is translated
	Frontend  netip.Addr
	FirstPort uint16
	Ports     int      // towards one destination and port
	InTurn    bool     // used when those of the machine's blocks before are used up
	Gateway   string   // the NAT gateway, all whose machines share the block; "" for a load balancer
	Protocols []string // "tcp", "udp"
}

// block returns the share of the k-th member of the i-th front end.
func (p outboundPool) block(i, k int) outboundBlock {
	first, m := FirstOutboundPort, p.members[k]
	if p.gateway == "" {
		first += k * p.ports[i]
	}
	return outboundBlock{m.nic.Machine, m.address, p.frontends[i], uint16(first), p.ports[i], p.inTurn, p.gateway, p.protocols}
}

func (b outboundBlock) lastPort() int { return int(b.FirstPort) + b.Ports - 1 }

// outbound decides of each address of a machine how it leaves ([Sender.Outbound]).
func outbound(n Network) outboundPlan {
	p := outboundPlan{fallback: n.DefaultOutbound, none: map[string][]string{}, partial: map[string][]string{}}
	for _, g := range n.NATGateways {
		p.addGateway(n, g)
	}
	senders := n.senders()
	for _, nic := range sortedBy(n.NICs, func(nic NIC) int { return nic.ID }) {
		for _, c := range nic.IPConfigs {
			o := senders(nic, c).Outbound()
			if public, own := n.PublicIP(c.PublicIP); own {
				p.instances = append(p.instances, instance{c.Address, public.Address, o.Way == WayInstance})
			}
			switch {
			case len(o.Exits) > 0:
				p.addExits(n, o, member{nic, c.Address})
			case o.Way == WayDefault && p.fallback.IsValid():
				p.others = append(p.others, c.Address.String())
			case o.Way == WayNone && c.Primary:
				p.none[o.Why] = append(p.none[o.Why], c.Address.String())
			}
			if o.Way != WayNone || c.Primary {
				p.allowed = append(p.allowed, fmt.Sprintf("%q . %s", nic.Link(), c.Address))
			}
		}
	}
	for _, a := range n.PrivateEndpoints {
		p.endpoints = append(p.endpoints, a.String())
	}
	return p
}

// addExits has the flows of a member leave by the first exit of their protocol.
func (p *outboundPlan) addExits(n Network, o Outbound, m member) {
	without := map[string]bool{"tcp": true, "udp": true}
	for _, by := range o.ByProtocol() {
		e := by.Exits[0]
		e.Protocol = by.Protocol
		i := slices.IndexFunc(p.pools, func(pool outboundPool) bool { return pool.gateway == "" && pool.exit.same(e) })
		if i < 0 {
			i = len(p.pools)
			p.pools = append(p.pools, newPool(n, e))
		}
		if len(p.pools[i].frontends) == 0 {
			continue
		}
		p.pools[i].members = append(p.pools[i].members, m)
		for _, l4 := range p.pools[i].protocols {
			delete(without, l4)
		}
	}
	for l4 := range without {
		p.partial[l4] = append(p.partial[l4], m.address.String())
	}
}

func (e Exit) same(o Exit) bool {
	return e.Balancer == o.Balancer && e.Rule == o.Rule && e.Pool == o.Pool && e.Protocol == o.Protocol
}

// protocols returns those that an exit translates, as nft writes them.
func (e Exit) protocols() []string {
	if e.Protocol == "" {
		return []string{"tcp", "udp"}
	}
	return []string{strings.ToLower(e.Protocol)}
}

// newPool returns the pool of a load balancer's exit, without members. Each has the outbound rule's ports over all front ends, or as many on
// each as the pool's size allows.
func newPool(n Network, e Exit) outboundPool {
	pool := outboundPool{exit: e, protocols: e.protocols(), idle: idleMinutes, inTurn: e.Balancer.SKU == SKUStandard}
	share := func(int) int { return OutboundPorts(len(e.Balancer.poolMembers(n, e.Pool))) }
	if r := e.Rule; r != nil {
		pool.idle, pool.reset = r.IdleTimeoutMinutes, r.TCPReset && slices.Contains(pool.protocols, "tcp")
		if count := len(e.Frontends); r.AllocatedOutboundPorts > 0 {
			share = func(i int) int { return (r.AllocatedOutboundPorts + count - 1 - i) / count }
		}
	}
	for i, name := range e.Frontends {
		if ports := share(i); ports > 0 {
			pool.frontends = append(pool.frontends, e.Balancer.Frontends[e.Balancer.frontendIndex(name)].Address)
			pool.ports = append(pool.ports, ports)
		}
	}
	return pool
}

// addGateway adds the machines of a NAT gateway's subnets, with all their addresses.
func (p *outboundPlan) addGateway(n Network, g NATGateway) {
	pool := outboundPool{idle: g.IdleTimeoutMinutes, reset: true, gateway: g.Name, protocols: []string{"tcp", "udp"}}
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

// outboundBlocks returns the shares of all machines that leave by a load balancer or NAT gateway.
func outboundBlocks(n Network) []outboundBlock {
	var all []outboundBlock
	for _, pool := range outbound(n).pools {
		for k := range pool.members {
			for i := range pool.frontends {
				all = append(all, pool.block(i, k))
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
		rules = append(rules, because(fmt.Sprintf("ip saddr @%s %s%s", set, pool.match(), pool.choice(i+1)), pool.why()))
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
		blocks = append(blocks, fmt.Sprintf("%s : %s . %d-%d", m.address, b.Frontend, b.FirstPort, b.lastPort()))
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
	if why := p.exit.Why(); len(why) <= maxComment {
		return why
	}
	return "one of the load balancer's front ends"
}

// match returns the test for the pool's flows beside that of their addresses, "" for none.
func (p outboundPool) match() string {
	if len(p.protocols) > 1 {
		return ""
	}
	return "meta l4proto " + p.protocols[0] + " "
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
	for _, l4 := range slices.Sorted(maps.Keys(out.partial)) {
		w.set("set", "no-"+l4, "ipv4_addr", "", out.partial[l4])
		rules = append(rules, because(fmt.Sprintf("ip saddr @no-%s meta l4proto %[1]s drop", l4),
			"the load balancer's rules are not for this protocol"))
	}
	for i, pool := range out.pools {
		if len(pool.frontends) == 0 && pool.gateway != "" {
			set := fmt.Sprintf("gateway-pool-%d", i+1)
			w.set("set", set, "ipv4_addr", "", pool.addresses())
			rules = append(rules, because(fmt.Sprintf("ip saddr @%s drop", set), "NAT gateway "+pool.gateway+" has no public address"))
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
