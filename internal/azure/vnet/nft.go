package vnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The fabric's nft table, "ip azure". A packet meets its chains in this order:
//
//	raw         from a machine: the routes of its subnet; what stays inside virtual networks is not tracked, nothing else happens to it
//	lb          a new flow is asked about by its sender's security groups; one for a front end gets a back end, kept as the connection's
//	            mark, which chooses the routing table
//	nat-pre     instances' own public addresses, rules without floating IP
//	input       what the host itself answers, forward what may pass
//	nat-post    the source of what leaves for the internet
//	nsg-in      a new flow is asked about by its receiver's security groups
//
// The whole table is replaced at once. Connections keep their marks and translations: those live in conntrack.

// nftWriter writes a script; the methods keep it readable and the order of elements stable.
type nftWriter struct{ strings.Builder }

func (w *nftWriter) line(format string, a ...any) { fmt.Fprintf(w, "\t"+format+"\n", a...) }

// because adds what a rule is there for; Signed reads it. A comment has at most 127 bytes (NFTNL_UDATA_COMMENT_MAXLEN, libnftnl).
func because(rule, why string) string { return fmt.Sprintf("%s comment %q", rule, why) }

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
	f := newFirewall(n)
	w.sets(n, out)
	w.vnets(n, f)
	rules := n.balancing(h)
	w.security(f)
	w.loadBalancer(rules, f)
	w.translate(rules, f)
	w.filter(n, out, f)
	w.source(out, f)
	w.WriteString("}\n")
	return w.String() + idleScript(n, out, rules)
}

// sets writes the sets that more than one chain looks at.
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
		if i.leaves {
			outward = append(outward, fmt.Sprintf("%s : %s", i.private, i.public))
		}
	}
	w.set("map", "instance-in", "ipv4_addr : ipv4_addr", "", in)
	w.set("map", "instance-out", "ipv4_addr : ipv4_addr", "", outward)
	w.internalFrontends(n)
}

func nicElements(nic NIC) []string {
	var e []string
	for _, c := range nic.IPConfigs {
		e = append(e, fmt.Sprintf("%q . %s", nic.Link(), c.Address))
	}
	return e
}

// vnets takes each packet of a machine by the routes of its subnet. Traffic inside a virtual network, to a peered one and to a virtual
// appliance stays untracked: nothing translates it, and it is most of what a cluster sends. What is left after this goes to the internet.
func (w *nftWriter) vnets(n Network, f *firewall) {
	var subnets, forwarders []string
	routed := map[string]bool{}
	hops := map[int]bool{}
	for _, nic := range n.NICs {
		s, _ := n.Subnet(nic.VNet, nic.Subnet)
		name := "routes/" + nftName(nic.VNet)
		if s.RouteTable != "" {
			name += "/" + nftName(s.RouteTable)
		}
		subnets = append(subnets, fmt.Sprintf("%q : goto %s", nic.Link(), name))
		if nic.IPForwarding {
			forwarders = append(forwarders, fmt.Sprintf("%q", nic.Link()))
		}
		if !routed[name] {
			routed[name] = true
			w.routes(n, name, nic.VNet, s.RouteTable, hops)
		}
	}
	w.set("set", "forwarders", "ifname", "", forwarders)
	w.overlaySets(n)
	w.securitySets(f)
	for _, v := range n.VNets {
		w.vnet(n, v.Name, f)
	}
	w.overlay(n, f)
	var answers []string
	if len(hops) > 0 {
		answers, f.fromBackEnd = w.answers(n)
	}
	for _, nic := range sortedBy(n.NICs, func(nic NIC) int { return nic.ID }) {
		if hops[nic.ID] {
			w.chain("hop/"+nic.Link(), "", slices.Concat(ownPods(nic),
				[]string{fmt.Sprintf("meta mark set %d comment %q", nic.ID, "to "+nic.Name)}, answers, f.answers, f.toHop(nic))...)
		}
	}
	w.chain("none", "", `drop comment "the route leads nowhere"`)
	w.chain("no-hop", "", `drop comment "the route's next hop does not forward"`)
	w.set("map", "subnets", "ifname : verdict", "", subnets)
	w.chain("raw", "type filter hook prerouting priority raw; policy accept;",
		fmt.Sprintf("ip daddr %s accept comment %q", ProbeSource, "Azure's host, next to every machine"),
		fmt.Sprintf("ip daddr %s accept comment %q", MetadataService, "the Instance Metadata Service, next to every machine"),
		toOverlay(n), because("iifname vmap @subnets", "by the routes of the sender's subnet"))
}

// vnet writes the rules of a virtual network.
func (w *nftWriter) vnet(n Network, name string, f *firewall) {
	var there []string
	for _, nic := range n.NICs {
		if nic.VNet == name {
			for _, c := range nic.IPConfigs {
				there = append(there, c.Address.String())
			}
		}
	}
	id := "vnet/" + nftName(name)
	w.set("set", id, "ipv4_addr", "", there)
	w.chain(id, "", slices.Concat(f.toFrontend, []string{fmt.Sprintf(`ip daddr != @%s drop comment "no NIC has the address"`, id)}, f.answers,
		f.toOwner())...)
}

// routes writes the effective routes of a virtual network's subnets with a route table; hops learns the IDs of the NICs that they lead to.
func (w *nftWriter) routes(n Network, name, vnet, table string, hops map[int]bool) {
	var elements []string
	for _, i := range intervals(n.EffectiveRoutes(vnet, table)) {
		to := "none"
		switch i.route.NextHopType {
		case NextHopInternet:
			continue
		case NextHopVNetLocal, NextHopPeering:
			to = "vnet/" + nftName(i.route.VNet)
		case NextHopAppliance:
			to = "no-hop"
			if nic, ok := n.takes(vnet, i.route.NextHop); ok {
				to, hops[nic.ID] = "hop/"+nic.Link(), true
			}
		}
		elements = append(elements, fmt.Sprintf("%s : goto %s", i, to))
	}
	w.set("map", name, "ipv4_addr : verdict", "interval", elements)
	w.chain(name, "", because("ip daddr vmap @"+name, "by the destination's route"))
}

// Peered reports whether two virtual networks have a peering each with the other: one side alone carries nothing.
func (n Network) Peered(a, b string) bool { return peered(n, a, b) }

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

type member struct {
	nic     NIC
	address netip.Addr
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

const findsRule = "has the load balancer a rule for this address and port?"

func (w *nftWriter) loadBalancer(rules []BalancingRule, f *firewall) {
	w.balance(rules, true)
	head := append([]string{`ct direction original ct mark != 0 meta mark set ct mark accept comment "a flow keeps its back end"`},
		f.outboundRules()...)
	w.chain("lb", "type filter hook prerouting priority mangle; policy accept;",
		append(head, because("ct state new meta l4proto { tcp, udp } ip daddr . meta l4proto . th dport vmap @rules", findsRule))...)
}

// translate writes the destinations: an instance's own public address, and rules without floating IP.
func (w *nftWriter) translate(rules []BalancingRule, f *firewall) {
	w.balance(rules, false)
	w.chain("nat-pre", "type nat hook prerouting priority dstnat; policy accept;",
		f.acceptInside(),
		because("meta l4proto { tcp, udp } ip daddr . meta l4proto . th dport vmap @plain-rules", findsRule),
		because("dnat ip to ip daddr map @instance-in", "the machine's own public address"),
	)
}

// balance writes the rules with floating IP, or those without, and the map that leads to them.
func (w *nftWriter) balance(rules []BalancingRule, floating bool) {
	var elements []string
	for _, b := range rules {
		if b.Rule.FloatingIP != floating {
			continue
		}
		elements = append(elements, fmt.Sprintf("%s . %s . %d : goto %s", b.Frontend.Address, b.l4(), b.Rule.FrontendPort, b.chain()))
		var ends []string
		for i, m := range b.Up() {
			end := fmt.Sprintf("%d : %s . %d", i, m.Address, b.Rule.BackendPort)
			if floating {
				end = fmt.Sprintf("%d : %d", i, m.Mark)
			}
			ends = append(ends, end)
		}
		choice := fmt.Sprintf("%s map { %s }", b.hash(), strings.Join(ends, ", "))
		switch {
		case len(ends) == 0:
			w.chain(b.chain(), "", because("drop", b.whyDown()))
		case floating:
			w.chain(b.chain(), "", because("ct mark set "+choice, "a back end that is up"),
				because("meta mark set ct mark", "the back end's routing table"))
		default:
			w.chain(b.chain(), "", because(fmt.Sprintf("meta l4proto %s dnat ip to %s", b.l4(), choice), "a back end that is up"))
		}
	}
	name := "plain-rules"
	if floating {
		name = "rules"
	}
	w.set("map", name, "ipv4_addr . inet_proto . inet_service : verdict", "", elements)
}

// filter says what may pass. What is for an unknown address, and what leaves from an address without outbound, is
// dropped without a word, as Azure does.
func (w *nftWriter) filter(n Network, out outboundPlan, f *firewall) {
	w.chain("egress", "", slices.Concat([]string{
		`iifname . ip saddr != @outbound drop comment "a secondary address has no outbound"`,
		because("ip saddr @instance-out return", "the machine has its own public address"),
		`meta l4proto != { tcp, udp } drop comment "port translation needs ports"`,
	}, w.egressDrops(out))...)
	own := `iifname "nic*" iifname . ip saddr != @own drop comment "not the NIC's address"`
	if len(f.toFrontend) > 0 {
		own = strings.Replace(own, " drop", " ct original ip daddr != @front-ends drop", 1) // chain front-end has asked about the others
	}
	late := w.resets(n, out)
	w.chain("forward", "type filter hook forward priority filter; policy drop;",
		f.fromBackEnd,
		because("ct state untracked,established,related accept", "inside virtual networks, or of a flow that was let through"),
		f.acceptInside(),
		late,
		`ct state invalid drop comment "of no flow that is known: idle for too long"`,
		podsStay(n),
		own,
		because(`iifname "nic*" ct original ip daddr != @vnets jump egress`, "leaves for the internet: may it?"),
		`ct mark != 0 accept comment "chosen by the load balancer"`,
		because("ct status dnat accept", "for a machine's public address, or a back end"),
		because(fmt.Sprintf(`iifname "nic*" oifname %q ip daddr != @vnets accept`, uplinkInside), "leaves for the internet"),
	)
	w.chain("input", "type filter hook input priority filter; policy drop;",
		because("ct state established,related accept", "of a flow that was let through"),
		because(`iifname "lo" accept`, "from Azure's host itself"),
		because(fmt.Sprintf(`iifname . ip saddr @own ip daddr %s meta l4proto { tcp, udp } th dport { 53, 80 } accept`, ProbeSource),
			"Azure's name server and wire server, for machines"),
		because(fmt.Sprintf("iifname . ip saddr @own ip daddr %s tcp dport 80 accept", MetadataService), "Azure's Instance Metadata Service, for machines"),
	)
}
