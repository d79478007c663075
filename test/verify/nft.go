package verify

import (
	"fmt"
	"net/netip"
	"strings"
)

// nftRules is a rule set of nft in the making: one command a line.
type nftRules struct {
	*generator
	site   *site
	family string // "ip", "ip6" or "inet"
	table  string
	six    bool // of the rule at hand
}

// nft makes tables of nft: like those of kube-proxy, our service proxy's, and random ones.
func (g *generator) nft(s *site) {
	if s.forwards && g.chance(0.25) {
		g.serviceProxy(s)
	}
	if s.forwards && g.chance(0.4) {
		for _, six := range g.families() {
			(&nftRules{generator: g, site: s, family: nftFamily(six), table: "kube-proxy", six: six}).kubeProxy()
		}
	}
	for i := range 1 + g.IntN(2) {
		family := pick(g, []string{"ip", "inet", "inet"})
		if g.six {
			family = pick(g, []string{"ip", "ip6", "inet", "inet"})
		}
		n := &nftRules{generator: g, site: s, family: family, table: fmt.Sprintf("t%d", i), six: family == "ip6"}
		n.random()
	}
}

// devices makes chains at the site's links, before all others and behind them.
func (g *generator) devices(s *site) {
	n := &nftRules{generator: g, site: s, family: "netdev", table: "wires"}
	s.Add("nft", "add table netdev wires")
	for i, link := range some(g, 0.6, s.links) {
		for _, hook := range some(g, 0.7, []string{"ingress", "egress"}) {
			b := baseChain{kind: "filter", hook: hook, name: fmt.Sprintf("%s%d", hook, i)}
			n.add("chain", "%s { type filter hook %s device %q priority %d ; policy accept ; }", b.name, hook, link, g.IntN(3))
			g.guarded[g.far(s, link)] = g.guarded[g.far(s, link)] || hook == "egress"
			for range 1 + g.IntN(3) {
				n.six = g.six && g.chance(0.4)
				if g.chance(0.06) {
					n.add("rule", "%s meta protocol arp drop", b.name)
					continue
				}
				statement := pick(g, []string{"drop", "accept", "counter", fmt.Sprintf("meta mark set %#x", pick(g, marks)), "meta priority set 1:2",
					"numgen random mod 2 vmap { 0 : accept, 1 : return }", fmt.Sprintf("%s dscp set %d", n.proto(), g.IntN(64))})
				matches := n.deviceMatch(hook)
				if second := n.deviceMatch(hook); statement == "drop" && !clash(matches, second) {
					matches += " " + second
				}
				if statement == "drop" { // questions for neighbours are asked again, so that chance drops them seldom
					matches = fmt.Sprintf("meta protocol %s %s", n.proto(), matches)
				}
				n.add("rule", "%s %s %s", b.name, matches, statement)
			}
		}
	}
	if len(s.links) > 0 && g.chance(0.3) {
		s.Add("nft", "add table inet wires")
		s.Add("nft", "add chain inet wires ingress { type filter hook ingress device %q priority 5 ; policy accept ; }", pick(g, s.links))
		s.Add("nft", "add rule inet wires ingress %s counter", n.deviceMatch("ingress"))
	}
}

// deviceMatch returns one test that a chain at a link can make: not of connections or routes, nor with sets of other tables.
func (n *nftRules) deviceMatch(hook string) string {
	m := n.match(baseChain{kind: "filter", hook: hook})
	if strings.HasPrefix(m, "ct ") || strings.HasPrefix(m, "fib ") || strings.Contains(m, "@") {
		return ""
	}
	return m
}

func nftFamily(six bool) string {
	if six {
		return "ip6"
	}
	return "ip"
}

func (n *nftRules) add(what, format string, args ...any) {
	n.site.Add("nft", "add %s %s %s %s", what, n.family, n.table, fmt.Sprintf(format, args...))
}

// of turns a rule's network expressions to the family: "ip" is "ip6".
func (n *nftRules) proto() string { return nftFamily(n.six) }

// kubeProxy makes the chains and maps of kube-proxy's nftables mode.
func (n *nftRules) kubeProxy() {
	n.site.Add("nft", "add table %s %s", n.family, n.table)
	address := map[bool]string{false: "ipv4_addr", true: "ipv6_addr"}[n.six]
	n.add("map", "service-ips { type %s . inet_proto . inet_service : verdict ; }", address)
	n.add("chain", "nat-prerouting { type nat hook prerouting priority -100 ; }")
	n.add("chain", "nat-output { type nat hook output priority -100 ; }")
	n.add("chain", "nat-postrouting { type nat hook postrouting priority 100 ; }")
	for _, c := range []string{"services", "mark-for-masquerade", "masquerading"} {
		n.add("chain", "%s", c)
	}
	n.add("rule", "nat-prerouting jump services")
	n.add("rule", "nat-output jump services")
	n.add("rule", "nat-postrouting jump masquerading")
	n.add("rule", "mark-for-masquerade meta mark set mark or 0x4000")
	n.add("rule", "masquerading mark and 0x4000 == 0 return")
	n.add("rule", "masquerading mark set mark xor 0x4000")
	n.add("rule", "masquerading masquerade%s", pick(n.generator, []string{"", " fully-random"}))
	n.add("rule", "services %s daddr . meta l4proto . th dport vmap @service-ips", n.proto())
	for i, v := range n.vips {
		if v.address.Is6() != n.six || len(v.backs) == 0 {
			continue
		}
		n.service(i, v)
	}
}

func (n *nftRules) service(i int, v vip) {
	svc, protocol := fmt.Sprintf("svc-%d", i), v.backs[0].protocol
	n.add("chain", "%s", svc)
	n.add("element", "service-ips { %s . %s . %d : goto %s }", v.address, protocol, v.port, svc)
	if n.chance(0.6) {
		n.add("rule", "%s %s daddr %s %s dport %d %s saddr != %s jump mark-for-masquerade", svc, n.proto(), v.address, protocol, v.port,
			n.proto(),
			prefixOf(1+n.IntN(n.nets), n.six))
	}
	if n.chance(0.4) { // a map of the endpoints
		var ends []string
		for k, e := range v.backs {
			ends = append(ends, fmt.Sprintf("%d : %s . %d", k, e.address, e.port))
		}
		n.add("rule", "%s meta l4proto %s dnat %s to numgen random mod %d map { %s }", svc, protocol, n.proto(), len(ends),
			strings.Join(ends, ", "))
		return
	}
	var jumps []string
	for k, e := range v.backs {
		end := fmt.Sprintf("endpoint-%d-%d", i, k)
		n.add("chain", "%s", end)
		n.add("rule", "%s %s saddr %s jump mark-for-masquerade", end, n.proto(), e.address)
		n.add("rule", "%s meta l4proto %s dnat to %s", end, protocol, netip.AddrPortFrom(e.address, uint16(e.port)))
		jumps = append(jumps, fmt.Sprintf("%d : goto %s", k, end))
	}
	n.add("rule", "%s numgen random mod %d vmap { %s }", svc, len(jumps), strings.Join(jumps, ", "))
}

// baseChain is a place for random rules.
type baseChain struct{ name, kind, hook, priority string }

var nftBases = []baseChain{
	{"raw-pre", "filter", "prerouting", "-300"}, {"raw-out", "filter", "output", "-300"}, {"mangle-pre", "filter", "prerouting", "-150"},
	{"nat-pre", "nat", "prerouting", "-100"},
	{"inp", "filter", "input", "0"}, {"forw", "filter", "forward", "0"}, {"outp", "filter", "output", "0"},
	{"nat-out", "nat", "output", "-100"},
	{"route-out", "route", "output", "-150"}, {"mangle-post", "filter", "postrouting", "-150"}, {"nat-post", "nat", "postrouting", "100"},
}

// random makes a table with random chains, sets and maps.
func (n *nftRules) random() {
	n.site.Add("nft", "add table %s %s", n.family, n.table)
	bases := some(n.generator, 0.45, nftBases)
	n.sets()
	if n.chance(0.1) {
		for i := range 2 {
			n.add("chain", "round%d", i)
		}
		for i := range 2 {
			n.add("rule", "round%d jump round%d", i, 1-i) // let through: no base chain leads there
		}
	}
	for i := range 3 {
		n.add("chain", "user%d", i)
	}
	for _, b := range bases {
		policy := "accept"
		if b.kind == "filter" && n.chance(0.04) {
			policy = "drop"
		}
		n.add("chain", "%s { type %s hook %s priority %s ; policy %s ; }", b.name, b.kind, b.hook, b.priority, policy)
	}
	for _, b := range bases {
		for range 1 + n.IntN(5) {
			n.rule(b.name, b, 0)
		}
	}
	for i := range 3 {
		for range n.IntN(4) {
			n.rule(fmt.Sprintf("user%d", i), baseChain{kind: "filter"}, i+1)
		}
	}
}

// sets makes the table's named sets.
func (n *nftRules) sets() {
	for _, six := range []bool{false, true} {
		if six && (!n.generator.six || n.family == "ip") || !six && n.family == "ip6" {
			continue
		}
		n.six = six
		kind, tail := "ipv4_addr", "4"
		if six {
			kind, tail = "ipv6_addr", "6"
		}
		timed := n.chance(0.3)
		flags, own := "", func() string { return "" }
		if timed {
			flags, own = ", timeout", func() string { return pick(n.generator, []string{"", " timeout 20m", " timeout 1d"}) }
		}
		n.add("set", "nets%s { type %s ; flags interval%s ; auto-merge ; }", tail, kind, flags)
		for range 1 + n.IntN(3) {
			n.add("element", "nets%s { %s%s }", tail, n.prefix(six), own())
		}
		flags = ""
		if timed {
			flags = pick(n.generator, []string{"flags timeout ;", "timeout 1h ;"})
		}
		n.add("set", "ends%s { type %s . inet_service ; %s }", tail, kind, flags)
		for range 1 + n.IntN(3) {
			n.add("element", "ends%s { %s . %d%s }", tail, pick(n.generator, n.allAddresses(six)), pick(n.generator, ports), own())
		}
	}
}

// rule adds one rule; users from the given one on may be called.
func (n *nftRules) rule(chain string, b baseChain, users int) {
	n.six = n.family == "ip6" || n.family == "inet" && n.generator.six && n.chance(0.4)
	statement, least := n.statement(b, users)
	var parts []string
	for range least {
		if m := n.match(b); m != "" && !clash(strings.Join(append(parts, statement), " "), m) {
			parts = append(parts, m)
		}
	}
	if n.chance(0.3) {
		parts = append(parts, "counter")
	}
	parts = append(parts, statement)
	n.add("rule", "%s %s", chain, strings.Join(parts, " "))
}

// clash reports whether two parts of a rule are about different transport protocols.
func clash(a, b string) bool {
	of := func(text string) string {
		for _, w := range strings.Fields(text) {
			switch w {
			case "tcp", "udp", "sctp", "icmp", "icmpv6", "tcp,": // the last begins a set of several
				return w
			}
		}
		return ""
	}
	return of(a) != "" && of(b) != "" && of(a) != of(b)
}

// statement returns a rule's statement, and how many matches the rule should have.
func (n *nftRules) statement(b baseChain, users int) (string, int) {
	mark := pick(n.generator, marks)
	if users < 3 && n.chance(0.25) {
		user := users + n.IntN(3-users)
		return pick(n.generator, []string{fmt.Sprintf("jump user%d", user), fmt.Sprintf("goto user%d", user),
			fmt.Sprintf("meta l4proto vmap { tcp : jump user%d, udp : accept }", user),
			fmt.Sprintf("ct state vmap { established : accept, new : jump user%d }", user)}), n.IntN(2)
	}
	if b.kind == "nat" {
		return n.translation(b)
	}
	switch k := n.IntN(14); {
	case k < 2:
		return "accept", n.IntN(3)
	case k < 3:
		return "drop", 2
	case k < 4 && (b.hook == "input" || b.hook == "forward" || b.hook == "output"):
		return n.reject(), 2
	case k < 5:
		return "return", 1
	case k < 7 && strings.HasPrefix(b.name, "raw-"):
		zone := 1 + n.IntN(3)
		return pick(n.generator, []string{"notrack", fmt.Sprintf("ct zone set %d", zone), fmt.Sprintf("ct original zone set %d", zone),
			fmt.Sprintf("ct reply zone set %d", zone), fmt.Sprintf("ct zone set meta mark map { 0x0 : %d, 0x1 : 2 }", zone)}), 1
	}
	return pick(n.generator, []string{
		fmt.Sprintf("meta mark set %#x", mark), fmt.Sprintf("meta mark set mark or %#x", mark), fmt.Sprintf("meta mark set mark and %#x", mark),
		fmt.Sprintf("ct mark set %#x", mark), "ct mark set meta mark", "meta mark set ct mark", fmt.Sprintf("meta mark set ct mark or %#x", mark),
		fmt.Sprintf("meta mark set numgen random mod %d offset %d", 2+n.IntN(2), n.IntN(20)), "counter", "meta priority set 1:2",
		fmt.Sprintf("meta mark set jhash %s saddr . %s daddr mod %d", n.proto(), n.proto(), 2+n.IntN(3)),
		fmt.Sprintf("meta mark set tcp dport map { %d : 0x1, %d : 0x2 }", ports[0], ports[1]),
		fmt.Sprintf("%s dscp set %d", n.proto(), n.IntN(64)),
		fmt.Sprintf("meta mark set numgen inc mod %d offset %d", 2+n.IntN(2), n.IntN(20)), "numgen inc mod 3 vmap { 0 : accept, 1 : return }",
		"numgen random mod 3 vmap { 0 : accept, 1 : return }", fmt.Sprintf("numgen random mod 10 < %d meta mark set %#x", 1+n.IntN(9), mark),
	}), n.IntN(2)
}

func (n *nftRules) reject() string {
	if n.chance(0.3) {
		return "meta l4proto tcp reject with tcp reset"
	}
	if n.chance(0.3) {
		return "reject"
	}
	if n.family == "inet" && n.chance(0.5) {
		return "reject with icmpx type " + pick(n.generator, []string{"port-unreachable", "admin-prohibited", "no-route", "host-unreachable"})
	}
	if n.six {
		return n.only("ipv6") + "reject with icmpv6 type " +
			pick(n.generator, []string{"no-route", "admin-prohibited", "addr-unreachable", "port-unreachable"})
	}
	return n.only("ipv4") + "reject with icmp type " +
		pick(n.generator, []string{"net-unreachable", "host-unreachable", "port-unreachable", "admin-prohibited", "host-prohibited"})
}

// only returns the match of one protocol, where a table has both.
func (n *nftRules) only(protocol string) string {
	if n.family != "inet" {
		return ""
	}
	return "meta nfproto " + protocol + " "
}

func (n *nftRules) translation(b baseChain) (string, int) {
	source, destination := pick(n.generator, n.allAddresses(n.six)), pick(n.generator, n.allAddresses(n.six))
	if own := ofFamily(n.site.addresses, n.six); len(own) > 0 && n.chance(0.7) {
		source = pick(n.generator, own)
	}
	p, port := n.proto(), pick(n.generator, ports)
	l4 := "meta l4proto " + pick(n.generator, []string{"tcp", "udp", "sctp"})
	if b.name == "nat-post" {
		return pick(n.generator, []string{
			"masquerade", "masquerade random", l4 + " masquerade to :2000-2010", fmt.Sprintf("snat %s to %s", p, source),
			fmt.Sprintf("%s snat %s to %s:3000-3005", l4, p, bracket(source)),
			fmt.Sprintf("snat %s to %s saddr map { %s : %s }", p, p, pick(n.generator, n.allAddresses(n.six)), source),
			n.netmap("snat", "saddr"), fmt.Sprintf("snat %s to %s-%s", p, source, source.Next().Next()),
			fmt.Sprintf("snat %s prefix to %s saddr map { %s : %s }", p, p, prefixOf(1, n.six), prefixOf(3, n.six)),
		}), n.IntN(2)
	}
	var choices []string
	for i := range 2 {
		choices = append(choices, fmt.Sprintf("%d : %s", i, pick(n.generator, n.allAddresses(n.six))))
	}
	return pick(n.generator, []string{
		fmt.Sprintf("dnat %s to %s", p, destination), fmt.Sprintf("%s dnat %s to %s:%d", l4, p, bracket(destination), port),
		n.netmap("dnat", "daddr"), fmt.Sprintf("dnat %s to %s-%s", p, destination, destination.Next().Next()),
		fmt.Sprintf("%s redirect to :%d", l4, port), fmt.Sprintf("dnat %s to numgen random mod 2 map { %s }", p, strings.Join(choices, ", ")),
		fmt.Sprintf("dnat %s to jhash %s saddr mod 2 map { %s }", p, p, strings.Join(choices, ", ")),
		fmt.Sprintf("%s dnat %s to %s daddr . th dport map { %s . %d : %s . %d }", l4, p, p, destination, port,
			pick(n.generator, n.allAddresses(n.six)), pick(n.generator, ports)),
	}), 1 + n.IntN(2)
}

// netmap maps a prefix onto another. It leaves out what is there already: of an IPv4 address that stays, whether the kernel takes the
// connection for translated depends on what was on its stack (nft_nat_setup_netmap leaves bytes of the new address as they are).
func (n *nftRules) netmap(kind, end string) string {
	to := n.prefix(n.six).Masked()
	return fmt.Sprintf("%s %s != %s %s %s prefix to %s", n.proto(), end, to, kind, n.proto(), to)
}

func (n *nftRules) interfaces() string {
	return pick(n.generator, append(append([]string{"lo"}, n.site.links...), n.site.bridges...))
}

// match returns one test of a rule.
func (n *nftRules) match(b baseChain) string {
	g, p, port := n.generator, n.proto(), pick(n.generator, ports)
	not := ""
	if g.chance(0.2) {
		not = "!= "
	}
	in := b.hook == "prerouting" || b.hook == "input" || b.hook == "forward"
	out := b.hook == "output" || b.hook == "forward" || b.hook == "postrouting"
	tail := "4"
	if n.six {
		tail = "6"
	}
	switch g.IntN(23) {
	case 0, 1:
		return fmt.Sprintf("%s saddr %s%s", p, not, g.prefix(n.six))
	case 2, 3:
		return fmt.Sprintf("%s daddr %s%s", p, not, g.prefix(n.six))
	case 4:
		return fmt.Sprintf("%s dport %s%d", pick(g, []string{"tcp", "udp"}), not, port)
	case 5:
		return fmt.Sprintf("tcp dport { %d, 8000-9000 }", ports[g.IntN(3)])
	case 6:
		if in {
			return fmt.Sprintf("iifname %s%q", not, n.interfaces())
		}
	case 7:
		if out {
			return fmt.Sprintf("oifname %s%q", not, n.interfaces())
		}
	case 8:
		return fmt.Sprintf("meta mark and %#x %s%#x", pick(g, []int{0xff, 0xffff, 0xffffffff}), not, pick(g, marks))
	case 9:
		return fmt.Sprintf("ct mark %s%#x", not, pick(g, marks))
	case 10:
		return "ct state " + pick(g, []string{"new", "established", "{ established, related }", "invalid", "established,related",
			"new,untracked"})
	case 11:
		switch b.hook {
		case "prerouting":
			return pick(g, []string{"fib daddr type local", "fib saddr type != local", "fib daddr type { local, unicast }",
				"fib saddr . iif oif missing", "fib saddr . iif oif exists"})
		case "output":
			return "fib daddr type local"
		}
		return "fib daddr type != local"
	case 12:
		return fmt.Sprintf("%s saddr %s@nets%s", p, not, tail)
	case 13:
		return fmt.Sprintf("meta l4proto { tcp, udp } %s daddr . th dport @ends%s", p, tail)
	case 14:
		return fmt.Sprintf("numgen random mod %d %d", 2+g.IntN(3), g.IntN(2))
	case 15:
		hops := "ip ttl"
		if n.six {
			hops = "ip6 hoplimit"
		}
		return pick(g, []string{fmt.Sprintf("%s < %d", hops, 60+g.IntN(6)), fmt.Sprintf("%s dscp %d", p, pick(g, []int{0, 2, 4, 46})),
			"tcp flags & (syn | ack) == syn",
			"meta l4proto { tcp, udp }", "meta pkttype host", n.only(map[bool]string{false: "ipv4", true: "ipv6"}[n.six]), "meta skuid 0"})
	case 16:
		return pick(g, []string{"ct direction original", "ct direction reply", "ct status dnat", "ct status snat",
			fmt.Sprintf("ct original %s daddr %s", p, g.prefix(n.six)),
			"ct protocol tcp"})
	case 17:
		if !n.six {
			return pick(g, []string{"icmp type echo-request", "icmp type { echo-request, echo-reply, destination-unreachable }"})
		}
		return "icmpv6 type { echo-request, echo-reply }"
	case 18:
		return pick(g, []string{"limit rate 1/minute burst 2 packets", "limit rate over 2/minute burst 1 packets",
			"limit rate 200 bytes/minute burst 100 bytes",
			"ct count 1", "ct count over 1", "quota 150 bytes", "quota over 150 bytes"})
	case 19:
		return fmt.Sprintf("%s sport %s", pick(g, []string{"tcp", "udp", "sctp", "meta l4proto { tcp, udp } th"}),
			pick(g, []string{fmt.Sprint(port), not + "1024-65535", "20000-20001", "{ 20000, 32768-50000 }"}))
	case 20:
		return fmt.Sprintf("sctp dport %s%d", not, port)
	case 21:
		lengths := []string{"meta length < 61", "meta length 60-84", "meta length != 60", fmt.Sprintf("meta length >= %d", 41+g.IntN(60))}
		if !n.six {
			lengths = append(lengths, "ip length < 61", "ip length 84")
		}
		return pick(g, lengths)
	case 22:
		if in {
			return fmt.Sprintf("iifgroup %s%d", not, pick(g, []int{0, 5, 6}))
		}
		return fmt.Sprintf("oifgroup %s%d", not, pick(g, []int{0, 5, 6}))
	}
	return ""
}
