package excerpt

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iproute"
)

// routes reads the routes of the table that the command names, else of main, or of the tables that the lines name. Lines that cannot be
// read are said.
func (rd *reader) routes(b pastedtext.Block) {
	text := viaName.ReplaceAllStringFunc(b.Routes(), func(via string) string {
		m := viaName.FindStringSubmatch(via)
		if a := rd.redacted(m[2], b.IPv6()); a.IsValid() {
			return m[1] + a.String()
		}
		return via
	})
	routes, bad := iproute.ParseRoutesText(text, b.IPv6())
	for _, e := range bad {
		if e.Unread {
			rd.account.NotRead(b.Numbers()[e.Line-1], "the route cannot be read")
		}
		rd.Assume("line %d: the route cannot be read, so where it leads is unknown: %v", b.Line+e.Line-1, e.Err)
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

// ofJSON reads what "ip -j" lists.
func (rd *reader) ofJSON(b pastedtext.Block) (snapshot.Part, error) {
	s := rd.Host.FIB
	switch b.Kind {
	case pastedtext.IPRule:
		rules, err := iproute.ParseRules(b.Text, b.IPv6())
		s.Rules = append(s.Rules, rules...)
		return snapshot.Policy, err
	case pastedtext.IPAddress:
		links, err := iproute.ParseLinks(b.Text)
		if err != nil {
			return snapshot.Addresses, err
		}
		addresses, err := iproute.ParseAddresses(b.Text)
		s.Links, s.Addresses = append(s.Links, links...), append(s.Addresses, addresses...)
		return snapshot.Addresses, err
	}
	routes, err := iproute.ParseRoutes(b.Text)
	if of, _ := iproute.ParseRoutesText("default table "+cmp.Or(b.Table(), "all"), false); len(of) == 1 && b.Table() != "" {
		for i := range routes { // the JSON does not name the table that was asked for
			routes[i].Table, routes[i].TableName = of[0].Table, of[0].TableName
		}
	}
	s.Routes = append(s.Routes, routes...)
	return snapshot.Routes, err
}

// policy reads policy rules of the family that the command names, else of IPv6 if one has such an address, else of IPv4.
func (rd *reader) policy(b pastedtext.Block) error {
	rules, err := iproute.ParseRulesText(string(b.Text), b.IPv6())
	isIPv6 := func(r fib.Rule) bool { return r.From.Addr().Is6() || r.To.Addr().Is6() }
	if slices.ContainsFunc(rules, isIPv6) { // no command says so
		for i := range rules {
			rules[i].IPv6 = true
		}
	}
	rd.Host.FIB.Rules = append(rd.Host.FIB.Rules, rules...)
	return err
}

// addresses reads links and their addresses.
func (rd *reader) addresses(b pastedtext.Block) error {
	text := addressName.ReplaceAllStringFunc(string(b.Text), func(found string) string {
		m := addressName.FindStringSubmatch(found)
		if a := rd.redacted(m[2], m[1] == "inet6 "); a.IsValid() {
			rd.hidden = true
			return m[1] + a.String() + hiddenBroadcast.ReplaceAllString(m[3], "")
		}
		return found
	})
	links, addresses, err := iproute.ParseLinksText(text)
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

// linksOfRoutes makes the interfaces that routes name and the text does not list; they are assumed up.
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

// usualRules adds the policy rules that every machine has, where the text shows only some.
func (rd *reader) usualRules() {
	s := rd.Host.FIB
	if rd.Host.Missing[snapshot.Policy] == "" || len(s.Rules) == 0 {
		return
	}
	for _, six := range []bool{false, true} {
		if !slices.ContainsFunc(s.Rules, func(r fib.Rule) bool { return r.IPv6 == six }) {
			continue
		}
		for _, usual := range []fib.Rule{{Table: fib.TableLocal}, {Priority: 32766, Table: fib.TableMain},
			{Priority: 32767, Table: fib.TableDefault}} {
			usual.Action, usual.SuppressPrefixLength, usual.SuppressGroup, usual.IPv6 = "lookup", -1, -1, six
			if !slices.ContainsFunc(s.Rules, func(r fib.Rule) bool { return r.Priority == usual.Priority && r.IPv6 == six }) {
				s.Rules = append(s.Rules, usual)
			}
		}
	}
	slices.SortStableFunc(s.Rules, func(a, b fib.Rule) int { return a.Priority - b.Priority })
}

// mainNotShown gives table main an unknown route, for each family of which the text shows only routes of other tables or none.
func (rd *reader) mainNotShown() {
	s := rd.Host.FIB
	for i, of := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		shown := func(r fib.Route) bool { return r.Table == fib.TableMain && r.Destination.Addr().Is6() == of.Is6() }
		if len(s.Routes) > 0 && !slices.ContainsFunc(s.Routes, shown) {
			s.Routes = append(s.Routes, fib.Route{Table: fib.TableMain, Type: "unicast", Destination: netip.PrefixFrom(of, 0),
				Unknown: fmt.Sprintf("the text shows no routes of IPv%d in table main", 4+2*i)})
		}
	}
}

// tablesNotShown gives each table that a policy rule names, and of which the text shows no route, an unknown one.
func (rd *reader) tablesNotShown() {
	s := rd.Host.FIB
	for _, r := range s.Rules {
		usual := r.Table == fib.TableLocal || r.Table == fib.TableMain || r.Table == fib.TableDefault
		if r.Action != "lookup" || r.L3MDev || usual || slices.ContainsFunc(s.Routes, func(o fib.Route) bool {
			return o.Table == r.Table && o.Destination.Addr().Is6() == r.IPv6
		}) {
			continue
		}
		any := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.IPv6 {
			any = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		s.Routes = append(s.Routes, fib.Route{Table: r.Table, TableName: r.TableName, Type: "unicast", Destination: any,
			Unknown: "the text shows no routes of table " + cmp.Or(r.TableName, strconv.Itoa(r.Table))})
	}
}

// addressName is the place of "ip addr" where an address stands. Its broadcast address is redacted with it.
var (
	addressName     = regexp.MustCompile(`(?m)^(inet6? )([^\s/]+)(.*)$`)
	hiddenBroadcast = regexp.MustCompile(` brd \S*[^\d.\s]\S*`)
)

// viaName are the places of a route where an address stands.
var viaName = regexp.MustCompile(`(\b(?:via|src)\s+)(\S+)`)

// redacted returns the unknown address that stands for a name, or for what a text shows in place of an address. It is invalid for an
// address, and for a word that belongs to the syntax.
func (rd *reader) redacted(name string, ipv6 bool) netip.Addr {
	if _, err := netip.ParseAddr(name); err == nil || name == "inet6" || name == "inet" {
		return netip.Addr{}
	}
	for a, known := range rd.Host.Redacted {
		if known == name && a.Is6() == ipv6 {
			return a
		}
	}
	if len(rd.Host.Redacted) >= packet.MaxRedacted {
		return netip.Addr{}
	}
	if rd.Host.Redacted == nil {
		rd.Host.Redacted = map[netip.Addr]string{}
	}
	a := packet.Redacted(len(rd.Host.Redacted), ipv6)
	rd.Host.Redacted[a] = name
	return a
}
