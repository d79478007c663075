package verify

import (
	"fmt"
	"net/netip"
)

// mutate changes settings of a site, and adds addresses, routes and policy rules: some make sense, some do not.
func (g *generator) mutate(s *site) {
	g.settings(s)
	if g.chance(0.15) {
		for _, six := range g.families() {
			a := addressIn(150, 1+g.IntN(5), six)
			s.Add("ip", "address add %s dev lo", netip.PrefixFrom(a, a.BitLen()))
			s.addresses = append(s.addresses, a)
		}
	}
	for range g.few(0.35, 3) {
		g.extraRoute(s)
	}
	for range g.few(0.25, 3) {
		g.policy(s)
	}
}

// few returns a number up to most, which is more than 0 with probability p.
func (g *generator) few(p float64, most int) int {
	if !g.chance(p) {
		return 0
	}
	return 1 + g.IntN(most)
}

// settings adds sysctls that decide about packets.
func (g *generator) settings(s *site) {
	places := append([]string{"all"}, s.links...)
	places = append(places, s.bridges...)
	set := func(p float64, key string, values ...string) {
		if g.chance(p) {
			s.Add("sysctl", "net/ipv4/conf/%s/%s %s", pick(g, places), key, pick(g, values))
		}
	}
	set(0.3, "rp_filter", "1", "1", "2")
	set(0.1, "rp_filter", "1", "2")
	set(0.08, "accept_local", "1")
	set(0.08, "route_localnet", "1")
	set(0.08, "arp_ignore", "1", "2", "8")
	set(0.08, "proxy_arp", "1")
	set(0.05, "src_valid_mark", "1")
	set(0.05, "ignore_routes_with_linkdown", "1")
	if s.forwards {
		set(0.06, "forwarding", "0")
		if g.six && g.chance(0.05) {
			s.Add("sysctl", "net/ipv6/conf/%s/forwarding 0", pick(g, places))
		}
	}
	for _, l := range places[1:] {
		if g.chance(0.15) {
			s.Add("ip", "link set %s group %d", l, 5+g.IntN(2))
		}
	}
	one := func(p float64, key string, values ...string) {
		if g.chance(p) {
			s.Add("sysctl", "%s %s", key, pick(g, values))
		}
	}
	if len(s.bridges) > 0 {
		one(0.3, "net/bridge/bridge-nf-call-iptables", "0")
		one(0.2, "net/bridge/bridge-nf-call-ip6tables", "0")
	}
	one(0.06, "net/ipv4/ip_default_ttl", "32", "128", "255")
	one(0.05, "net/ipv4/ip_local_port_range", "20000 20100")
	one(0.06, "net/ipv4/fib_multipath_hash_policy", "1")
	one(0.04, "net/ipv4/icmp_echo_ignore_all", "1")
	one(0.04, "net/ipv4/ip_nonlocal_bind", "1")
	one(0.04, "net/ipv4/fwmark_reflect", "1")
	one(0.04, "net/ipv4/tcp_fwmark_accept", "1")
}

// prefix returns a prefix that occurs in the world, or that contains one that does.
func (g *generator) prefix(six bool) netip.Prefix {
	if g.chance(0.4) {
		return prefixOf(1+g.IntN(g.nets), six)
	}
	var a netip.Addr
	if all := ofFamily(g.vipAddresses(), six); len(all) > 0 && g.chance(0.3) {
		a = pick(g, all)
	} else {
		a = pick(g, g.allAddresses(six))
	}
	bits := []int{8, 16, 25, 28, 31, 32, 32, 32}
	if six {
		bits = []int{16, 32, 64, 112, 127, 128, 128, 128}
	}
	p, _ := a.Prefix(pick(g, bits))
	return p
}

func (g *generator) vipAddresses() []netip.Addr {
	var all []netip.Addr
	for _, v := range g.vips {
		all = append(all, v.address)
	}
	return all
}

// neighbour returns a station that the site has a link to; ok is false without any.
func (g *generator) neighbour(s *site, six bool) (link string, a netip.Addr, ok bool) {
	type choice struct {
		link string
		a    netip.Addr
	}
	var all []choice
	for _, own := range g.stations {
		if own.site != s || own.address.Is6() != six {
			continue
		}
		for _, far := range g.stations {
			if far.site != s && far.segment == own.segment && far.address.Is6() == six {
				all = append(all, choice{own.link, far.address})
			}
		}
	}
	if len(all) == 0 {
		return "", netip.Addr{}, false
	}
	c := pick(g, all)
	return c.link, c.a, true
}

func (g *generator) family() bool { return g.six && g.chance(0.3) }

// way returns the end of a route: by a neighbour, out of a link, or nowhere.
func (g *generator) way(s *site, six bool) string {
	link, a, ok := g.neighbour(s, six)
	switch n := g.IntN(10); {
	case n < 7 && ok:
		return fmt.Sprintf("via %s dev %s", a, link)
	case n < 8 && len(s.links) > 0:
		return "dev " + pick(g, s.links)
	}
	return ""
}

func (g *generator) extraRoute(s *site) {
	six := g.family()
	to := g.prefix(six).String()
	if g.chance(0.1) {
		to = "default"
	}
	way, kind := g.way(s, six), ""
	if way == "" {
		kind = pick(g, []string{"blackhole ", "unreachable ", "prohibit ", "throw "})
	}
	tail := ""
	if g.chance(0.3) {
		tail += fmt.Sprintf(" metric %d", 1+g.IntN(3)*100)
	}
	if g.chance(0.3) {
		tail += fmt.Sprintf(" table %d", pick(g, []int{50, 100}))
	}
	if own := ofFamily(s.addresses, six); kind == "" && len(own) > 0 && g.chance(0.2) {
		tail += fmt.Sprintf(" src %s", pick(g, own))
	}
	if !six && g.chance(0.05) {
		tail += " tos 16"
	}
	s.Add("ip", "route add %s%s %s%s", kind, to, way, tail)
}

// policy adds a policy rule, and sometimes what is in its table.
func (g *generator) policy(s *site) {
	six := g.family()
	line := "rule add"
	if six {
		line = "-6 rule add"
	}
	line += fmt.Sprintf(" priority %d", 100+g.IntN(400))
	if g.chance(0.1) {
		line += " not"
	}
	terms := 0
	term := func(p float64, format string, args ...any) {
		if g.chance(p) {
			line += fmt.Sprintf(" "+format, args...)
			terms++
		}
	}
	term(0.35, "from %s", g.prefix(six))
	term(0.25, "to %s", g.prefix(six))
	term(0.3, "fwmark %#x/%#x", pick(g, marks), pick(g, []int{0xff, 0xffff, 0x4000, 0xffffffff}))
	term(0.2, "iif %s", pick(g, append([]string{"lo"}, append(s.links, s.bridges...)...)))
	term(0.08, "tos 16")
	if g.chance(0.12) {
		line += fmt.Sprintf(" ipproto %s dport %d", pick(g, []string{"tcp", "udp"}), pick(g, ports))
		terms++
	}
	if terms == 0 {
		line += " fwmark 0x1"
	}
	switch n := g.IntN(20); {
	case n < 2:
		line += pick(g, []string{" prohibit", " blackhole", " unreachable"})
	case n < 4:
		line += " suppress_prefixlength 0 table main"
	case n < 5:
		line += " goto 600"
		s.Add("ip", "%s priority 600 table main", ruleAdd(six))
	default:
		table := pick(g, []int{50, 100})
		line += fmt.Sprintf(" table %d", table)
		for range g.few(0.8, 2) {
			to := "default"
			if g.chance(0.4) {
				to = g.prefix(six).String()
			}
			if way := g.way(s, six); way != "" {
				s.Add("ip", "route add %s %s table %d", to, way, table)
			} else {
				s.Add("ip", "route add %s %s table %d", pick(g, []string{"blackhole", "prohibit", "unreachable", "throw"}), to, table)
			}
		}
	}
	s.Add("ip", "%s", line)
}

func ruleAdd(six bool) string {
	if six {
		return "-6 rule add"
	}
	return "rule add"
}
