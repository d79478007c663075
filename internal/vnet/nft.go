package vnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The fabric's nft table, "ip azure". A packet meets its chains in this order:
//
//	raw         inside a virtual network (or to a peered one), from an address of its own: not tracked, nothing else happens to it
//	lb          a flow for a front end gets a back end, kept as the connection's mark, which chooses the routing table
//	nat-pre     instances' own public addresses, rules without floating IP
//	input       what the host itself answers, forward what may pass
//	nat-post    the source of what leaves for the internet
//
// The whole table is replaced at once. Connections keep their marks and translations: those live in conntrack.

// nftWriter writes a script; the methods keep it readable and the order of elements stable.
type nftWriter struct{ strings.Builder }

func (w *nftWriter) line(format string, a ...any) { fmt.Fprintf(w, "\t"+format+"\n", a...) }

// set writes a named set or map; elements are sorted by the caller.
func (w *nftWriter) set(kind, name, typ, flags string, elements []string) {
	w.line("%s %s {", kind, name)
	w.line("\ttype %s", typ)
	if flags != "" {
		w.line("\tflags %s", flags)
	}
	if len(elements) > 0 {
		w.line("\telements = {")
		for _, e := range elements {
			w.line("\t\t%s,", e)
		}
		w.line("\t}")
	}
	w.line("}")
}

// chain writes a chain; hook is "" for one that is jumped to.
func (w *nftWriter) chain(name, hook string, rules ...string) {
	w.line("chain %s {", name)
	if hook != "" {
		w.line("\t%s", hook)
	}
	for _, r := range rules {
		if r != "" {
			w.line("\t%s", r)
		}
	}
	w.line("}")
}

func nftScript(n Network, h Health) string {
	var w nftWriter
	w.WriteString("add table ip azure\ndelete table ip azure\ntable ip azure {\n")
	out := outbound(n)
	w.sets(n, out)
	w.vnets(n)
	rules := balancedRules(n, h)
	w.loadBalancer(rules)
	w.translate(n, rules)
	w.filter()
	w.source(out)
	w.WriteString("}\n")
	return w.String()
}

// sets are what more than one chain looks at.
func (w *nftWriter) sets(n Network, out outboundPlan) {
	var prefixes, own []string
	for _, v := range n.VNets {
		for _, p := range v.AddressPrefixes {
			prefixes = append(prefixes, p.Masked().String())
		}
	}
	for _, nic := range n.NICs {
		own = append(own, nicElements(nic)...)
	}
	w.set("set", "vnets", "ipv4_addr", "interval; auto-merge", prefixes)
	w.set("set", "own", "ifname . ipv4_addr", "", own)
	w.set("set", "outbound", "ifname . ipv4_addr", "", out.allowed)
	var in, outward []string
	for _, i := range out.instances {
		in = append(in, fmt.Sprintf("%s : %s", i.public, i.private))
		outward = append(outward, fmt.Sprintf("%s : %s", i.private, i.public))
	}
	w.set("map", "instance-in", "ipv4_addr : ipv4_addr", "", in)
	w.set("map", "instance-out", "ipv4_addr : ipv4_addr", "", outward)
}

func nicElements(nic NIC) []string {
	var e []string
	for _, c := range nic.IPConfigs {
		e = append(e, fmt.Sprintf("%q . %s", nic.Link(), c.Address))
	}
	return e
}

// vnets lets machines of a virtual network, and of peered ones, reach each other, and leaves that traffic untracked: nothing
// translates it, and it is most of what a cluster sends.
func (w *nftWriter) vnets(n Network) {
	var rules []string
	for i, v := range n.VNets {
		var own, reach []string
		for _, nic := range n.NICs {
			if nic.VNet == v.Name {
				own = append(own, nicElements(nic)...)
			}
			if nic.VNet == v.Name || peered(n, v.Name, nic.VNet) {
				for _, c := range nic.IPConfigs {
					reach = append(reach, c.Address.String())
				}
			}
		}
		if len(own) == 0 {
			continue
		}
		w.set("set", fmt.Sprintf("own-%d", i+1), "ifname . ipv4_addr", "", own)
		w.set("set", fmt.Sprintf("reach-%d", i+1), "ipv4_addr", "", reach)
		rules = append(rules, fmt.Sprintf("iifname . ip saddr @own-%d ip daddr @reach-%d notrack accept comment %q", i+1, i+1, v.Name))
	}
	w.chain("raw", "type filter hook prerouting priority raw; policy accept;", rules...)
}

// peered tells whether two virtual networks have a peering each with the other: one side alone carries nothing.
func peered(n Network, a, b string) bool {
	to := func(from, to string) bool {
		for _, v := range n.VNets {
			if v.Name == from && slices.ContainsFunc(v.Peerings, func(p Peering) bool { return p.RemoteVNet == to }) {
				return true
			}
		}
		return false
	}
	return to(a, b) && to(b, a)
}

// balanced is one load balancing rule with what it refers to.
type balanced struct {
	lb       *LoadBalancer
	rule     Rule
	frontend netip.Addr
	up       []member
}

type member struct {
	nic     NIC
	address netip.Addr
}

func (b balanced) id() string { return b.lb.Name + "/" + b.rule.Name }

func (b balanced) chain() string { return "rule/" + nftName(b.id()) }

func (b balanced) l4() string { return strings.ToLower(b.rule.Protocol) }

func (b balanced) protocol() uint8 {
	if b.rule.Protocol == ProtocolUDP {
		return 17
	}
	return 6
}

// nftName keeps the letters that an nft identifier may have.
func nftName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/-_.", r) {
			return r
		}
		return '_'
	}, s)
}

// balancedRules are all load balancing rules with the back ends that take new flows, in a stable order.
func balancedRules(n Network, h Health) []balanced {
	var all []balanced
	for i := range n.LoadBalancers {
		lb := &n.LoadBalancers[i]
		for _, r := range sortedBy(lb.Rules, func(r Rule) string { return r.Name }) {
			b := balanced{lb: lb, rule: r}
			for _, f := range lb.Frontends {
				if f.Name == r.Frontend {
					b.frontend = f.Address
				}
			}
			for _, m := range lb.poolMembers(n, r.BackendPool) {
				if r.Probe == "" || h[ProbeTarget{lb.Name, r.Probe, m.ref}] {
					b.up = append(b.up, m.member)
				}
			}
			all = append(all, b)
		}
	}
	return all
}

type poolMember struct {
	member
	ref IPConfigRef
}

// poolMembers resolves a pool's members, by the NICs' IDs.
func (lb *LoadBalancer) poolMembers(n Network, pool string) []poolMember {
	var members []poolMember
	for _, p := range lb.BackendPools {
		if p.Name != pool {
			continue
		}
		for _, ref := range p.Members {
			nic, ok := n.NIC(ref.NIC)
			if !ok {
				continue
			}
			for _, c := range nic.IPConfigs {
				if c.Name == ref.IPConfig {
					members = append(members, poolMember{member{nic, c.Address}, ref})
				}
			}
		}
	}
	return sortedBy(members, func(m poolMember) int { return m.nic.ID })
}

// hash chooses a back end. The seed is fixed, so that source affinity outlives a change of the rules.
func (b balanced) hash() string {
	fields := "ip saddr . ip daddr . ip protocol . th sport . th dport"
	if b.rule.LoadDistribution == DistributionSourceIP {
		fields = "ip saddr . ip daddr"
	}
	return fmt.Sprintf("jhash %s mod %d seed 0x617a", fields, len(b.up))
}

func (w *nftWriter) loadBalancer(rules []balanced) {
	var floating []string
	for _, b := range rules {
		if !b.rule.FloatingIP {
			continue
		}
		floating = append(floating, fmt.Sprintf("%s . %s . %d : goto %s", b.frontend, b.l4(), b.rule.FrontendPort, b.chain()))
		if len(b.up) == 0 {
			w.chain(b.chain(), "", `drop comment "no back end is up"`)
			continue
		}
		var marks []string
		for i, m := range b.up {
			marks = append(marks, fmt.Sprintf("%d : %d", i, m.nic.ID))
		}
		w.chain(b.chain(), "", fmt.Sprintf("ct mark set %s map { %s }", b.hash(), strings.Join(marks, ", ")), "meta mark set ct mark")
	}
	w.set("map", "rules", "ipv4_addr . inet_proto . inet_service : verdict", "", floating)
	w.chain("lb", "type filter hook prerouting priority mangle; policy accept;",
		`ct direction original ct mark != 0 meta mark set ct mark accept comment "a flow keeps its back end"`,
		"ct state new meta l4proto { tcp, udp } ip daddr . meta l4proto . th dport vmap @rules",
	)
}

// translate are the destinations: an instance's own public address, and rules without floating IP.
func (w *nftWriter) translate(n Network, rules []balanced) {
	var plain []string
	for _, b := range rules {
		if b.rule.FloatingIP {
			continue
		}
		plain = append(plain, fmt.Sprintf("%s . %s . %d : goto %s", b.frontend, b.l4(), b.rule.FrontendPort, b.chain()))
		if len(b.up) == 0 {
			w.chain(b.chain(), "", `drop comment "no back end is up"`)
			continue
		}
		var ends []string
		for i, m := range b.up {
			ends = append(ends, fmt.Sprintf("%d : %s . %d", i, m.address, b.rule.BackendPort))
		}
		w.chain(b.chain(), "", fmt.Sprintf("meta l4proto %s dnat ip to %s map { %s }", b.l4(), b.hash(), strings.Join(ends, ", ")))
	}
	w.set("map", "plain-rules", "ipv4_addr . inet_proto . inet_service : verdict", "", plain)
	w.chain("nat-pre", "type nat hook prerouting priority dstnat; policy accept;",
		"meta l4proto { tcp, udp } ip daddr . meta l4proto . th dport vmap @plain-rules",
		"dnat ip to ip daddr map @instance-in",
	)
}

// filter says what may pass. What is for an address that nobody owns, and what leaves from an address without outbound, is
// dropped without a word, as Azure does.
func (w *nftWriter) filter() {
	w.chain("egress", "",
		`iifname . ip saddr != @outbound drop comment "a secondary address has no outbound of its own"`,
		`ip saddr @instance-out return`,
		`meta l4proto != { tcp, udp } drop comment "port translation needs ports"`,
	)
	w.chain("forward", "type filter hook forward priority filter; policy drop;",
		"ct state untracked,established,related accept",
		`iifname "nic*" iifname . ip saddr != @own drop comment "not the NIC's address"`,
		`iifname "nic*" ct original ip daddr != @vnets jump egress`,
		`ct mark != 0 accept comment "chosen by the load balancer"`,
		"ct status dnat accept",
		fmt.Sprintf(`iifname "nic*" oifname %q ip daddr != @vnets accept`, uplinkInside),
	)
	w.chain("input", "type filter hook input priority filter; policy drop;",
		"ct state established,related accept",
		`iifname "lo" accept`,
		fmt.Sprintf(`iifname . ip saddr @own ip daddr %s meta l4proto { tcp, udp } th dport { 53, 80 } accept`, ProbeSource),
	)
}

// outboundPlan is who leaves how.
type outboundPlan struct {
	allowed   []string   // elements "link" . address that may leave
	instances []instance // one to one
	pools     []outboundPool
	fallback  netip.Addr
	others    []string // addresses that leave by the fallback
}

type instance struct{ private, public netip.Addr }

// outboundPool is a load balancer's pool, whose members leave by its front ends with a block of ports each.
type outboundPool struct {
	frontends []netip.Addr
	members   []netip.Addr
	ports     int
}

// OutboundPorts is how many source ports each member of a back-end pool of this size has towards one destination and port
// ("Outbound rules", default SNAT port allocation, learn.microsoft.com). Above 1,000 members it is 0.
func OutboundPorts(poolSize int) int {
	for _, t := range []struct{ size, ports int }{{50, 1024}, {100, 512}, {200, 256}, {400, 128}, {800, 64}, {1000, 32}} {
		if poolSize <= t.size {
			return t.ports
		}
	}
	return 0
}

// firstOutboundPort is where the first block begins; those below are the well-known ones.
const firstOutboundPort = 1024

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

func (p *outboundPlan) addPools(n Network, lb *LoadBalancer, taken map[netip.Addr]bool) {
	var frontends []netip.Addr
	for _, f := range lb.Frontends {
		if !f.Address.IsPrivate() {
			frontends = append(frontends, f.Address)
		}
	}
	if len(frontends) == 0 {
		return
	}
	for _, bp := range lb.BackendPools {
		members := lb.poolMembers(n, bp.Name)
		pool := outboundPool{frontends: frontends, ports: OutboundPorts(len(members))}
		for _, m := range members {
			if !taken[m.address] && pool.ports > 0 {
				pool.members = append(pool.members, m.address)
				taken[m.address] = true
			}
		}
		if len(pool.members) > 0 {
			p.pools = append(p.pools, pool)
		}
	}
}

// source translates the source of what leaves for the internet, and of what comes back in by a public address of the lab's own.
func (w *nftWriter) source(out outboundPlan) {
	var rules []string
	for i, pool := range out.pools {
		var members, chains []string
		for _, m := range pool.members {
			members = append(members, m.String())
		}
		for j, f := range pool.frontends {
			name := fmt.Sprintf("out-%d-%d", i+1, j+1)
			var blocks []string
			for k, m := range pool.members {
				first := firstOutboundPort + k*pool.ports
				blocks = append(blocks, fmt.Sprintf("%s : %s . %d-%d", m, f, first, first+pool.ports-1))
			}
			w.set("map", name, "ipv4_addr : interval ipv4_addr . inet_service", "", blocks)
			w.chain(name, "", "meta l4proto { tcp, udp } snat ip to ip saddr map @"+name)
			chains = append(chains, fmt.Sprintf("%d : goto %s", j, name))
		}
		set := fmt.Sprintf("pool-%d", i+1)
		w.set("set", set, "ipv4_addr", "", members)
		rules = append(rules, fmt.Sprintf("ip saddr @%s numgen random mod %d vmap { %s }", set, len(pool.frontends), strings.Join(chains, ", ")))
	}
	w.set("set", "default-out", "ipv4_addr", "", out.others)
	if len(out.others) > 0 {
		rules = append(rules, fmt.Sprintf("ip saddr @default-out snat ip to %s", out.fallback))
	}
	head := []string{"ct original ip daddr @vnets accept", "snat ip to ip saddr map @instance-out"}
	w.chain("nat-post", "type nat hook postrouting priority srcnat; policy accept;", append(head, rules...)...)
}
