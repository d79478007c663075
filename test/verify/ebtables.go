package verify

import (
	"fmt"
)

// ebtables makes rules for bridges, in the kernel nft tables of the family bridge.
func (g *generator) ebtables(s *site) {
	mac := func() string { return fmt.Sprintf("02:00:00:00:%02x:%02x", 1+g.IntN(len(g.Wires)), 1+g.IntN(2)) }
	match := func() string {
		own := g.allAddresses(false)
		return pick(g, []string{
			" -p IPv4", " -p ARP", fmt.Sprintf(" -p IPv4 --ip-dst %s", pick(g, own)), fmt.Sprintf(" -p IPv4 --ip-src %s", pick(g, own)),
			fmt.Sprintf(" -p IPv4 --ip-proto tcp --ip-dport %d", pick(g, ports)), " -s " + mac(), " -d " + mac(), " ! -s " + mac(),
		})
	}
	port := func(option string) string {
		if len(s.links) == 0 || g.chance(0.4) {
			return ""
		}
		return fmt.Sprintf(" %s %s", option, pick(g, s.links))
	}
	s.Add("ebtables", "*filter")
	for _, c := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		s.Add("ebtables", ":%s ACCEPT", c)
	}
	s.Add("ebtables", ":USER RETURN")
	for range 1 + g.IntN(4) {
		chain := pick(g, []string{"INPUT", "FORWARD", "OUTPUT"})
		option := "-i"
		if chain == "OUTPUT" {
			option = "-o"
		}
		target := pick(g, []string{"ACCEPT", "USER", "CONTINUE", "RETURN"})
		if g.chance(0.1) {
			target = "DROP"
		}
		s.Add("ebtables", "-A %s%s%s -j %s", chain, match(), port(option), target)
	}
	if g.chance(0.6) {
		s.Add("ebtables", "-A USER%s -j ACCEPT", match())
	}
	s.Add("ebtables", "*nat")
	for _, c := range []string{"PREROUTING", "OUTPUT", "POSTROUTING"} {
		s.Add("ebtables", ":%s ACCEPT", c)
	}
	if g.chance(0.3) {
		s.Add("ebtables", "-A PREROUTING%s%s -j CONTINUE", match(), port("-i"))
	}
	if g.chance(0.3) {
		s.Add("ebtables", "-A POSTROUTING -p IPv4%s -j snat --to-src %s --snat-target ACCEPT", port("-o"), mac())
	}
}
