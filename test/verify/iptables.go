package verify

import (
	"fmt"
	"net/netip"
	"strings"
)

// filter gives a site rule sets: those that route mostly, the others sometimes.
func (g *generator) filter(s *site) {
	p := 0.25
	if s.forwards {
		p = 0.85
	}
	if !g.chance(p) {
		return
	}
	g.ipsets(s)
	s.legacy = g.chance(0.25)
	kind := g.IntN(10)
	if kind < 6 {
		for _, six := range g.families() {
			g.iptables(s, six)
		}
	}
	if kind >= 4 && !s.legacy { // which of the legacy tables and nft's come first where priorities are equal no tool tells
		g.nft(s)
	}
	if len(s.links) > 0 && g.chance(0.15) {
		g.devices(s)
	}
	if len(s.bridges) > 0 && g.chance(0.35) {
		g.ebtables(s)
	}
}

// tables is a rule set in the making: lines by chain by table, for iptables-restore.
type tables struct {
	*generator
	site   *site
	six    bool
	policy map[string]string
	rules  map[string][]string // by table
	chains map[string][]string // user chains by table, in the order of their declaration
}

var builtins = map[string][]string{
	"raw": {"PREROUTING", "OUTPUT"}, "mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"nat": {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}, "filter": {"INPUT", "FORWARD", "OUTPUT"},
}

var tableNames = []string{"raw", "mangle", "nat", "filter"}

// iptables makes rules for one family: shapes that clusters have, and random ones.
func (g *generator) iptables(s *site, six bool) {
	t := &tables{generator: g, site: s, six: six, policy: map[string]string{}, rules: map[string][]string{}, chains: map[string][]string{}}
	if s.forwards && g.chance(0.45) {
		t.kubeProxy()
	}
	if s.forwards && g.chance(0.25) {
		t.calico()
	}
	if g.chance(0.35) {
		t.masqueradeAgent()
	}
	for _, name := range tableNames {
		if g.chance(map[string]float64{"raw": 0.15, "mangle": 0.3, "nat": 0.35, "filter": 0.5}[name]) {
			t.random(name)
		}
	}
	if g.chance(0.15) {
		t.chainsOfChains()
	}
	file := "iptables"
	if six {
		file = "ip6tables"
	}
	if s.legacy {
		file += "-legacy"
	}
	for _, name := range tableNames {
		if len(t.rules[name])+len(t.chains[name]) == 0 {
			continue
		}
		s.Add(file, "*%s", name)
		for _, c := range builtins[name] {
			policy := t.policy[name+c]
			if policy == "" {
				policy = "ACCEPT"
			}
			s.Add(file, ":%s %s [0:0]", c, policy)
		}
		for _, c := range t.chains[name] {
			s.Add(file, ":%s - [0:0]", c)
		}
		for _, r := range t.rules[name] {
			s.Add(file, "%s", r)
		}
		s.Add(file, "COMMIT")
	}
}

func (t *tables) chain(table, name string) { t.chains[table] = append(t.chains[table], name) }

func (t *tables) add(table, format string, args ...any) {
	t.rules[table] = append(t.rules[table], "-A "+fmt.Sprintf(format, args...))
}

// local returns a network that a cluster would call its own.
func (t *tables) local() netip.Prefix { return prefixOf(1+t.IntN(t.nets), t.six) }

// kubeProxy makes rules of kube-proxy's shape for the world's services. The chains' names are made up, since they mean nothing to a walk.
func (t *tables) kubeProxy() {
	for _, c := range []string{"SERVICES", "MARKED", "MARK-MASQ", "NODE-PORTS"} {
		t.chain("nat", c)
	}
	t.add("nat", `PREROUTING -m comment --comment "kubernetes service portals" -j SERVICES`)
	t.add("nat", `OUTPUT -m comment --comment "kubernetes service portals" -j SERVICES`)
	t.add("nat", `POSTROUTING -m comment --comment "kubernetes postrouting rules" -j MARKED`)
	t.add("nat", "MARK-MASQ -j MARK --set-xmark 0x4000/0x4000")
	t.add("nat", "MARKED -m mark ! --mark 0x4000/0x4000 -j RETURN")
	t.add("nat", "MARKED -j MARK --set-xmark 0x4000/0x0")
	t.add("nat", `MARKED -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE%s`,
		t.maybe(" --random-fully", 0.5))
	cluster := t.local()
	for i, v := range t.vips {
		if v.address.Is6() == t.six && len(v.backs) > 0 {
			t.service(i, v, cluster)
		}
	}
	if t.chance(0.5) {
		t.add("nat", "SERVICES -m addrtype --dst-type LOCAL -j NODE-PORTS")
	}
	t.chain("filter", "THROUGH")
	t.add("filter", "FORWARD -j THROUGH")
	t.add("filter", "THROUGH -m conntrack --ctstate INVALID -j DROP")
	t.add("filter", "THROUGH -m mark --mark 0x4000/0x4000 -j ACCEPT")
	t.add("filter", "THROUGH -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
}

func (t *tables) maybe(s string, p float64) string {
	if t.chance(p) {
		return s
	}
	return ""
}

func (t *tables) service(i int, v vip, cluster netip.Prefix) {
	svc := fmt.Sprintf("SVC-%d", i)
	t.chain("nat", svc)
	protocol := v.backs[0].protocol
	t.add("nat", `SERVICES -d %s -p %s -m comment --comment "default/s%d cluster IP" -m %s --dport %d -j %s`,
		netip.PrefixFrom(v.address, v.address.BitLen()), protocol, i, protocol, v.port, svc)
	if t.chance(0.4) {
		t.add("nat", "NODE-PORTS -p %s -m %s --dport %d -j %s", protocol, protocol, 30000+i, svc)
	}
	if t.chance(0.7) {
		t.add("nat", "%s ! -s %s -d %s -p %s -m %s --dport %d -j MARK-MASQ", svc, cluster, netip.PrefixFrom(v.address, v.address.BitLen()),
			protocol, protocol, v.port)
	}
	for n, e := range v.backs {
		sep := fmt.Sprintf("SEP-%d-%d", i, n)
		t.chain("nat", sep)
		choice := ""
		if left := len(v.backs) - n; left > 1 {
			choice = fmt.Sprintf(" -m statistic --mode random --probability %.11f", 1/float64(left))
		}
		t.add("nat", "%s%s -j %s", svc, choice, sep)
		t.add("nat", "%s -s %s -j MARK-MASQ", sep, netip.PrefixFrom(e.address, e.address.BitLen()))
		t.add("nat", "%s -p %s -m %s -j DNAT --to-destination %s", sep, protocol, protocol, netip.AddrPortFrom(e.address, uint16(e.port)))
	}
}

// calico makes chains as felix does.
func (t *tables) calico() {
	masq := t.set("net")
	t.chain("nat", "POOLS")
	t.chain("nat", "POOLS-OUT")
	t.rules["nat"] = append([]string{`-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j POOLS`}, t.rules["nat"]...)
	t.add("nat", "POOLS -j POOLS-OUT")
	if masq != "" {
		t.add("nat", "POOLS-OUT -m set --match-set %s src -m set ! --match-set %s dst -j MASQUERADE%s", masq, masq,
			t.maybe(" --random-fully", 0.3))
	}
	for _, c := range []string{"POLICY", "POLICY-FROM", "POLICY-TO"} {
		t.chain("filter", c)
	}
	t.rules["filter"] = append([]string{"-A FORWARD -j POLICY"}, t.rules["filter"]...)
	t.add("filter", "POLICY -j MARK --set-xmark 0x0/0xe0000")
	if len(t.site.links) > 0 {
		link := pick(t.generator, t.site.links)
		t.add("filter", "POLICY -i %s+ -j POLICY-FROM", link[:len(link)-1])
		t.add("filter", "POLICY -o %s+ -j POLICY-TO", link[:len(link)-1])
	}
	t.add("filter", "POLICY-FROM -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	t.add("filter", "POLICY-FROM -m conntrack --ctstate INVALID -j DROP")
	t.add("filter", "POLICY-FROM -j MARK --set-xmark 0x10000/0x10000")
	t.add("filter", "POLICY-FROM -m mark --mark 0x10000/0x10000 -j RETURN")
	t.add("filter", "POLICY-TO%s -g POLICY-FROM", t.matches("filter", "FORWARD", 1))
	t.add("filter", "POLICY -m mark --mark 0x10000/0x10000 -j ACCEPT")
}

// masqueradeAgent makes the chain of the ip-masq-agent, or kubenet's rule.
func (t *tables) masqueradeAgent() {
	if t.chance(0.3) {
		t.add("nat", "POSTROUTING ! -d %s -m addrtype ! --dst-type LOCAL -j MASQUERADE", t.local())
		return
	}
	t.chain("nat", "OUTSIDE")
	t.add("nat", "POSTROUTING -m addrtype ! --dst-type LOCAL -j OUTSIDE")
	for range 1 + t.IntN(3) {
		t.add("nat", `OUTSIDE -d %s -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN`,
			t.prefix(t.six))
	}
	t.add("nat", "OUTSIDE -j MASQUERADE%s", t.maybe(" --random-fully", 0.3))
}

// random makes random rules in a table, with user chains that call each other without loops.
func (t *tables) random(table string) {
	var users []string
	for i := range t.IntN(4) {
		name := fmt.Sprintf("%s-%d", strings.ToUpper(table[:1]), i)
		t.chain(table, name)
		users = append(users, name)
	}
	for range 1 + t.IntN(8) {
		base := pick(t.generator, builtins[table])
		t.rule(table, base, base, users)
	}
	for i, u := range users {
		base := pick(t.generator, builtins[table])
		if t.chance(0.8) {
			t.add(table, "%s%s -j %s", base, t.matches(table, base, t.IntN(2)), u)
		}
		for range t.IntN(5) {
			t.rule(table, u, "", users[i+1:])
		}
	}
	if table == "filter" && t.chance(0.08) {
		t.policy[table+pick(t.generator, builtins[table])] = "DROP"
	}
}

// chainsOfChains makes chains that jump as deep as nf_tables allows, and ones that jump in a circle, which the tools let through as long as
// no base chain leads there.
func (t *tables) chainsOfChains() {
	const deepest = 14 // one less than what nf_tables lets a base chain reach (NFT_JUMP_STACK_SIZE)
	depth := 1 + t.IntN(deepest)
	for i := range depth {
		t.chain("filter", fmt.Sprintf("DEEP-%d", i))
	}
	t.add("filter", "%s -j DEEP-0", pick(t.generator, builtins["filter"]))
	for i := range depth - 1 {
		t.add("filter", "DEEP-%d%s %s DEEP-%d", i, t.matches("filter", "", t.IntN(2)), pick(t.generator, []string{"-j", "-j", "-g"}), i+1)
	}
	t.rule("filter", fmt.Sprintf("DEEP-%d", depth-1), "", nil)
	t.chain("filter", "ROUND-0")
	t.chain("filter", "ROUND-1")
	t.add("filter", "ROUND-0%s -j ROUND-1", t.matches("filter", "", 1))
	t.add("filter", "ROUND-1%s -g ROUND-0", t.matches("filter", "", 1))
}

// rule adds one rule to a chain; base is "" in a user chain, which may be called from anywhere.
func (t *tables) rule(table, chain, base string, users []string) {
	if t.chance(0.004) {
		t.add(table, "%s%s -j ACCEPT", chain, t.odd(table))
		return
	}
	target, n := t.target(table, base, users)
	matches := t.matches(table, base, n)
	if fields := strings.Fields(target); len(fields) > 0 && fields[0] == "-p" {
		matches = without(matches, "-p")
	}
	t.add(table, "%s%s%s", chain, matches, target)
}

// without leaves out the matches that name an option, each of which begins with " -m", " -p" or so.
func without(matches, option string) string {
	var kept []string
	for _, m := range strings.Split(matches, "\t") {
		if !strings.Contains(m, option+" ") {
			kept = append(kept, m)
		}
	}
	return strings.Join(kept, "\t")
}

// target chooses what a rule does, and how many matches it should have at least: what ends a packet's life is rare.
func (t *tables) target(table, base string, users []string) (string, int) {
	var all []string
	if len(users) > 0 {
		all = append(all, " -j "+pick(t.generator, users), " -j "+pick(t.generator, users), " -g "+pick(t.generator, users))
	}
	mark := pick(t.generator, marks)
	all = append(all, " -j ACCEPT", " -j RETURN", "")
	switch n := t.IntN(10); {
	case n < 3:
		return pick(t.generator, all), t.IntN(3)
	case n == 3 && table != "nat":
		return " -j DROP", 2 + t.IntN(2)
	case n == 4 && table == "filter":
		return t.reject(), 2 + t.IntN(2)
	}
	switch table {
	case "raw":
		zone := 1 + t.IntN(3)
		return pick(t.generator, []string{" -j NOTRACK", fmt.Sprintf(" -j MARK --set-xmark %#x/0xffffffff", mark), " -j CT --notrack",
			fmt.Sprintf(" -j CT --zone %d", zone), fmt.Sprintf(" -j CT --zone-orig %d", zone), fmt.Sprintf(" -j CT --zone-reply %d", zone),
			" -j CT --zone mark",
		}), 1 + t.IntN(2)
	case "nat":
		return t.translation(base)
	case "mangle":
		return pick(t.generator, []string{
			fmt.Sprintf(" -j MARK --set-xmark %#x/%#x", mark, pick(t.generator, []int{0xff, 0xffff, 0xffffffff})),
			fmt.Sprintf(" -j MARK --or-mark %#x", mark),
			fmt.Sprintf(" -j MARK --and-mark %#x", mark), fmt.Sprintf(" -j MARK --xor-mark %#x", mark),
			fmt.Sprintf(" -j CONNMARK --set-xmark %#x/0xffffffff", mark), " -j CONNMARK --save-mark", " -j CONNMARK --restore-mark",
			" -j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xff",
			fmt.Sprintf(" -j TOS --set-tos %#x/0xff", pick(t.generator, []int{8, 16, 0x28})),
			fmt.Sprintf(" -j DSCP --set-dscp %d", t.IntN(64)), t.ttl(),
		}), t.IntN(2)
	}
	return pick(t.generator, all), t.IntN(3)
}

func (t *tables) ttl() string {
	name, option := "TTL", "ttl"
	if t.six {
		name, option = "HL", "hl"
	}
	return fmt.Sprintf(" -j %s --%s-%s %d", name, option, pick(t.generator, []string{"set", "inc", "dec"}), 1+t.IntN(3)*20)
}

func (t *tables) reject() string {
	kinds := []string{"icmp-port-unreachable", "icmp-host-unreachable", "icmp-net-unreachable", "icmp-admin-prohibited",
		"icmp-host-prohibited", "icmp-proto-unreachable"}
	if t.six {
		kinds = []string{"icmp6-port-unreachable", "icmp6-addr-unreachable", "icmp6-no-route", "icmp6-adm-prohibited"}
	}
	if t.chance(0.35) {
		return " -p tcp -j REJECT --reject-with tcp-reset"
	}
	return " -j REJECT --reject-with " + pick(t.generator, kinds)
}

func bracket(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// translation returns a rule of the table nat, where the chain allows it.
func (t *tables) translation(base string) (string, int) {
	destination, source := pick(t.generator, t.allAddresses(t.six)), pick(t.generator, t.allAddresses(t.six))
	if own := ofFamily(t.site.addresses, t.six); len(own) > 0 && t.chance(0.7) {
		source = pick(t.generator, own)
	}
	protocol := " -p " + pick(t.generator, []string{"tcp", "udp", "sctp"})
	if base != "" && t.chance(0.12) {
		return " -j NETMAP --to " + t.prefix(t.six).Masked().String(), 1 + t.IntN(2)
	}
	switch base {
	case "PREROUTING", "OUTPUT":
		return pick(t.generator, []string{
			" -j DNAT --to-destination " + destination.String(), fmt.Sprintf("%s -j DNAT --to-destination %s:%d", protocol, bracket(destination),
				pick(t.generator, ports)),
			fmt.Sprintf("%s -j REDIRECT --to-ports %d", protocol, pick(t.generator, ports)),
		}), 1 + t.IntN(2)
	case "POSTROUTING":
		return pick(t.generator, []string{
			" -j MASQUERADE", " -j MASQUERADE --random-fully", protocol + " -j MASQUERADE --to-ports 2000-2010",
			" -j SNAT --to-source " + source.String(),
			fmt.Sprintf("%s -j SNAT --to-source %s:3000-3010", protocol, bracket(source)),
		}), t.IntN(2)
	case "INPUT":
		return " -j SNAT --to-source " + source.String(), 2
	}
	return " -j RETURN", 1
}
