package vnet

import (
	"fmt"
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
	others    []string // addresses that leave by the fallback
}

type instance struct{ private, public netip.Addr }

// outboundPool is a load balancer's pool, whose members leave by its front ends, with a block of ports on each.
type outboundPool struct {
	frontends []netip.Addr
	members   []member
	ports     []int // of each member on each front end
	idle      int   // minutes that a flow may be idle
	inTurn    bool  // the next front end when the ports of the one before are used up; else one at random
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
	// firstOutboundPort is where the first block begins; those below are the well-known ones.
	firstOutboundPort = 1024
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
	return portBlock{p.frontends[i], p.members[k], firstOutboundPort + k*p.ports[i], p.ports[i]}
}

// outbound decides for each primary address, and each with a public one of its own, how it leaves: by its own public address,
// else by the front ends of the public load balancer whose pool it is in, else by default outbound access.
func outbound(n Network) outboundPlan {
	p := outboundPlan{fallback: n.DefaultOutbound}
	taken := map[netip.Addr]bool{}
	for _, nic := range n.NICs {
		for _, c := range nic.IPConfigs {
			public, own := n.PublicIP(c.PublicIP)
			if own {
				p.instances = append(p.instances, instance{c.Address, public.Address})
				taken[c.Address] = true
			}
			if own || c.Primary {
				p.allowed = append(p.allowed, fmt.Sprintf("%q . %s", nic.Link(), c.Address))
			}
		}
	}
	for i := range n.LoadBalancers {
		p.addPools(n, &n.LoadBalancers[i], taken)
	}
	for _, nic := range n.NICs {
		if a := nic.Primary().Address; !taken[a] && p.fallback.IsValid() {
			p.others = append(p.others, a.String())
		}
	}
	return p
}

// addPools adds what the outbound rules say, or else every pool with all public front ends.
func (p *outboundPlan) addPools(n Network, lb *LoadBalancer, taken map[netip.Addr]bool) {
	for _, r := range lb.OutboundRules {
		p.addPool(n, lb, r.BackendPool, lb.public(r.Frontends), r.AllocatedOutboundPorts, r.IdleTimeoutMinutes, taken)
	}
	if len(lb.OutboundRules) > 0 {
		return
	}
	var all []string
	for _, f := range lb.Frontends {
		all = append(all, f.Name)
	}
	for _, bp := range lb.BackendPools {
		p.addPool(n, lb, bp.Name, lb.public(all), 0, idleMinutes, taken)
	}
}

// public returns the addresses of the named front ends that the internet can answer.
func (lb *LoadBalancer) public(names []string) []netip.Addr {
	var all []netip.Addr
	for _, name := range names {
		if f, ok := find(lb.Frontends, func(f Frontend) bool { return f.Name == name }); ok && !f.Address.IsPrivate() {
			all = append(all, f.Address)
		}
	}
	return all
}

// addPool adds a pool's members, with so many ports each over all front ends; 0 means as many on each as the pool's size allows.
func (p *outboundPlan) addPool(n Network, lb *LoadBalancer, name string, frontends []netip.Addr, ports, idle int,
	taken map[netip.Addr]bool) {
	members := lb.poolMembers(n, name)
	pool := outboundPool{frontends: frontends, idle: idle, inTurn: lb.SKU == SKUStandard}
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
		if !taken[m.address] {
			pool.members = append(pool.members, m.member)
			taken[m.address] = true
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
	Ports     int  // towards one destination and port
	InTurn    bool // used when those of the machine's blocks before are used up
}

// outboundBlocks returns the shares of all machines that leave by a load balancer.
func outboundBlocks(n Network) []outboundBlock {
	var all []outboundBlock
	for _, pool := range outbound(n).pools {
		for k := range pool.members {
			for i := range pool.frontends {
				b := pool.block(i, k)
				all = append(all, outboundBlock{b.member.nic.Machine, b.member.address, b.frontend, uint16(b.first), b.ports, pool.inTurn})
			}
		}
	}
	return all
}

// source translates the source of what leaves for the internet, and of what comes back in by a public address of the lab's own.
func (w *nftWriter) source(out outboundPlan, f *firewall) {
	var rules []string
	for i, pool := range out.pools {
		var members []string
		for _, m := range pool.members {
			members = append(members, m.address.String())
		}
		for j := range pool.chosen() {
			name := fmt.Sprintf("out-%d-%d", i+1, j+1)
			var blocks []string
			for k, m := range pool.members {
				b := pool.block(j, k)
				blocks = append(blocks, fmt.Sprintf("%s : %s . %d-%d", m.address, b.frontend, b.first, b.first+b.ports-1))
			}
			w.set("map", name, "ipv4_addr : interval ipv4_addr . inet_service", "", blocks)
			w.chain(name, "", because("meta l4proto { tcp, udp } snat ip to ip saddr map @"+name,
				"the load balancer's front end, the member's block of ports"))
		}
		set := fmt.Sprintf("pool-%d", i+1)
		w.set("set", set, "ipv4_addr", "", members)
		rules = append(rules, because(fmt.Sprintf("ip saddr @%s %s", set, pool.choice(i+1)), "one of the load balancer's front ends"))
	}
	w.set("set", "default-out", "ipv4_addr", "", out.others)
	if len(out.others) > 0 {
		rules = append(rules, because(fmt.Sprintf("ip saddr @default-out snat ip to %s", out.fallback), "default outbound access"))
	}
	head := []string{
		f.acceptInside(), because("ct original ip daddr @vnets accept", "nothing inside virtual networks is translated"),
		because("snat ip to ip saddr map @instance-out", "the machine's own public address"),
	}
	w.chain("nat-post", "type nat hook postrouting priority srcnat; policy accept;", slices.Concat(head, w.spareRules(), rules)...)
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
