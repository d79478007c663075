package verify

import (
	"fmt"
	"strings"
)

// setName returns the name of a site's ipset of a kind and family.
func setName(kind string, six bool) string {
	family := 4
	if six {
		family = 6
	}
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(kind, ",", "-"), family)
}

// set returns the name of an ipset of the site, or "" without one.
func (t *tables) set(kind string) string {
	name := setName(kind, t.six)
	for _, l := range *t.site.lines("ipset") {
		if strings.HasPrefix(l, "create "+name+" ") {
			return name
		}
	}
	return ""
}

// ipsets makes sets of what occurs in the world.
func (g *generator) ipsets(s *site) {
	if !g.chance(0.4) {
		return
	}
	timed := g.chance(0.3)
	timeout := func() string {
		if !timed {
			return ""
		}
		return " timeout " + pick(g, []string{"0", "900", "86400"})
	}
	own := func() string { // of an element that does not have its set's
		if !g.chance(0.3) {
			return ""
		}
		return timeout()
	}
	for _, six := range g.families() {
		family := "inet"
		if six {
			family = "inet6"
		}
		name := setName("net", six)
		s.Add("ipset", "create %s hash:net family %s%s", name, family, timeout())
		seen := map[string]bool{}
		for range 1 + g.IntN(4) {
			p := g.prefix(six)
			if p.Bits() == 0 || seen[p.String()] {
				continue
			}
			seen[p.String()] = true
			nomatch := ""
			if g.chance(0.2) {
				nomatch = " nomatch"
			}
			s.Add("ipset", "add %s %s%s%s", name, p, nomatch, own())
		}
		name = setName("ip,port", six)
		s.Add("ipset", "create %s hash:ip,port family %s%s", name, family, timeout())
		for range g.IntN(4) {
			entry := fmt.Sprintf("add %s %s,%s:%d", name, pick(g, g.allAddresses(six)), pick(g, []string{"tcp", "udp"}), pick(g, ports))
			if !seen[entry] {
				seen[entry] = true
				s.Add("ipset", "%s%s", entry, own())
			}
		}
		if g.chance(0.5) {
			list := setName("list", six)
			s.Add("ipset", "create %s list:set", list)
			for _, member := range some(g, 0.7, []string{setName("net", six), name}) {
				s.Add("ipset", "add %s %s", list, member)
			}
		}
	}
}
