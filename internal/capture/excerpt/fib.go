package excerpt

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iproute"
)

// routes reads the routes of the table that the command names, else of main, or of the tables that the lines name. Lines that cannot be
// read are said.
func (rd *reader) routes(b block) {
	routes, bad := iproute.ParseRoutesText(b.command.withTable(string(b.Text)), b.command.ipv6)
	for _, e := range bad {
		rd.Assume("line %d: the route cannot be read, so it is not known where it leads: %v", b.Line+e.Line-1, e.Err)
		rd.Host.Partial[snapshot.Routes] = "a line of them cannot be read"
	}
	for i := range routes {
		r := &routes[i]
		if r.Destination.Bits() == 0 && (r.Gateway.Is6() || r.Source.Is6()) {
			r.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	rd.Host.FIB.Routes = append(rd.Host.FIB.Routes, routes...)
}

// ipRouteOf is what an "ip route" command asked for.
type ipRouteOf struct {
	table string // "" for main
	ipv6  bool
}

// ipRouteCommand is "ip -4 route show table 2", and its short forms (iproute2 takes a word's beginning for the word).
var ipRouteCommand = regexp.MustCompile(`(?:^|[\s/])ip\s(.*?)\b(?:r|ro|rou|rout|route)\b(?:.*?\s(?:t|ta|tab|tabl|table)\s+([\w.-]+))?`)

// parseIPRoute reads a command line; the zero value is for any other command.
func parseIPRoute(command string) ipRouteOf {
	m := ipRouteCommand.FindStringSubmatch(command)
	if m == nil || m[2] == "all" || m[2] == "cache" {
		return ipRouteOf{ipv6: m != nil && strings.Contains(m[1], "-6")}
	}
	return ipRouteOf{m[2], strings.Contains(m[1], "-6")}
}

// withTable writes the table into each line with a route that names none.
func (c ipRouteOf) withTable(text string) string {
	if c.table == "" {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		if len(words) > 0 && words[0] != "nexthop" && !slices.Contains(words, "table") {
			at := len(words[0])
			if iproute.IsRouteType(words[0]) && len(words) > 1 {
				at += 1 + len(words[1])
			}
			joined := strings.Join(words, " ")
			line = joined[:at] + " table " + c.table + joined[at:]
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// policy reads policy rules: IPv4's where nothing in them says otherwise.
func (rd *reader) policy(b block) error {
	rules, err := iproute.ParseRulesText(string(b.Text), false)
	for i := range rules {
		rules[i].IPv6 = rules[i].From.Addr().Is6() || rules[i].To.Addr().Is6()
	}
	rd.Host.FIB.Rules = append(rd.Host.FIB.Rules, rules...)
	return err
}

// addresses reads links and their addresses.
func (rd *reader) addresses(b block) error {
	links, addresses, err := iproute.ParseLinksText(string(b.Text))
	rd.Host.FIB.Links = append(rd.Host.FIB.Links, links...)
	rd.Host.FIB.Addresses = append(rd.Host.FIB.Addresses, addresses...)
	return err
}

// sources makes addresses of the sources that routes prefer, and names them.
func (rd *reader) sources() string {
	s := rd.Host.FIB
	var names []string
	for i := range s.Routes {
		r := &s.Routes[i]
		if !r.Source.IsValid() || slices.Contains(names, r.Source.String()) {
			continue
		}
		names = append(names, r.Source.String())
		bits := r.Source.BitLen()
		if r.Scope == "link" && r.Destination.Contains(r.Source) {
			bits = r.Destination.Bits()
		}
		s.Addresses = append(s.Addresses, fib.Address{Link: r.Link, Prefix: netip.PrefixFrom(r.Source, bits), Scope: "global"})
	}
	return strings.Join(names, ", ")
}

// localRoutes adds the routes of table local, which "ip route" does not show, for the addresses that are known and for loopback.
func (rd *reader) localRoutes() {
	s := rd.Host.FIB
	if len(s.Routes) == 0 || slices.ContainsFunc(s.Routes, func(r fib.Route) bool { return r.Table == fib.TableLocal }) {
		return
	}
	local := func(prefix netip.Prefix, link, kind string) {
		r := fib.Route{Table: fib.TableLocal, Type: kind, Destination: prefix, Link: link, Scope: "host", Protocol: "kernel"}
		if kind == "broadcast" {
			r.Scope = "link"
		}
		s.Routes = append(s.Routes, r)
	}
	local(netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8), "lo", "local")
	local(netip.PrefixFrom(netip.IPv6Loopback(), 128), "lo", "local")
	for _, a := range s.Addresses {
		if a.Prefix.Addr().IsLoopback() {
			continue
		}
		local(netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen()), a.Link, "local")
		if a.Broadcast.IsValid() {
			local(netip.PrefixFrom(a.Broadcast, a.Broadcast.BitLen()), a.Link, "broadcast")
		}
	}
}

// linksOfRoutes makes the interfaces that routes name and the text does not list; they are taken to be up.
func (rd *reader) linksOfRoutes() {
	s := rd.Host.FIB
	there := map[string]bool{"": true}
	for _, l := range s.Links {
		there[l.Name] = true
	}
	add := func(name string) {
		if there[name] {
			return
		}
		there[name] = true
		l := fib.Link{Index: 1000 + len(s.Links), Name: name, Type: "ether", MTU: 1500, Up: true, LowerUp: true, PeerNetNS: -1}
		if name == "lo" {
			l.Index, l.Type, l.MTU = 1, "loopback", 65536
		}
		s.Links = append(s.Links, l)
	}
	for i := range s.Routes {
		add(s.Routes[i].Link)
		for _, hop := range s.Routes[i].Nexthops {
			add(hop.Link)
		}
	}
}
