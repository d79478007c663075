package snapshot

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/fib"
	"packetwalk.dev/internal/iptables"
	"packetwalk.dev/internal/packet"
)

// Here the text of "ip route" and "ip addr" is read, as iproute2 and BusyBox print it for people; captures have iproute2's JSON instead.

var routeTypes = []string{"unicast", "local", "broadcast", "multicast", "blackhole", "unreachable", "prohibit", "throw"}

// routes reads the routes of table main.
func (p *partial) routes(b iptables.Block) error {
	var routes []fib.Route
	number := b.Line
	for line := range strings.Lines(string(b.Text)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "> "))
		if fields[0] == "nexthop" && len(routes) > 0 {
			r := &routes[len(routes)-1]
			hop := fib.Route{}
			weight, err := routeAttributes(&hop, fields[1:])
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			r.Nexthops = append(r.Nexthops, fib.Nexthop{Gateway: hop.Gateway, Link: hop.Link, Weight: weight, OnLink: hop.OnLink, LinkDown: hop.LinkDown})
		} else {
			r, err := parseRoute(fields)
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			routes = append(routes, r)
		}
		number++
	}
	p.host.FIB.Routes = append(p.host.FIB.Routes, routes...)
	return nil
}

func parseRoute(fields []string) (fib.Route, error) {
	r := fib.Route{Table: fib.TableMain, Type: "unicast", Scope: "global"}
	if slices.Contains(routeTypes, fields[0]) {
		r.Type = fields[0]
		if fields = fields[1:]; len(fields) == 0 {
			return r, fmt.Errorf("route without a destination")
		}
	}
	if fields[0] != "default" {
		prefix, err := parsePrefix(fields[0])
		if err != nil {
			return r, err
		}
		r.Destination = prefix.Masked()
	}
	if _, err := routeAttributes(&r, fields[1:]); err != nil {
		return r, err
	}
	if fields[0] == "default" {
		r.Destination = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Gateway.Is6() || r.Source.Is6() {
			r.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	return r, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// routeAttributes reads "via A dev L src S metric N …"; what does not decide about a packet's way is passed over.
func routeAttributes(r *fib.Route, words []string) (weight int, err error) {
	weight = 1
	for i := 0; i < len(words); i++ {
		flag := words[i]
		switch flag {
		case "onlink":
			r.OnLink = true
			continue
		case "linkdown", "dead":
			r.LinkDown = true
			continue
		case "pervasive", "offload", "trap", "notify", "cloned", "rt_trap", "rt_offload":
			continue
		}
		if i++; i == len(words) {
			return weight, fmt.Errorf("route with %q at its end", flag)
		}
		if flag == "via" && (words[i] == "inet6" || words[i] == "inet") && i+1 < len(words) {
			i++
		}
		if err := routeAttribute(r, &weight, flag, words[i]); err != nil {
			return weight, fmt.Errorf("route's %s: %w", flag, err)
		}
	}
	return weight, nil
}

func routeAttribute(r *fib.Route, weight *int, flag, value string) (err error) {
	switch flag {
	case "via":
		r.Gateway, err = netip.ParseAddr(value)
	case "dev":
		r.Link = value
	case "src":
		r.Source, err = netip.ParseAddr(value)
	case "from":
		r.From, err = parsePrefix(value)
	case "metric":
		r.Metric, err = strconv.Atoi(value)
	case "weight":
		*weight, err = strconv.Atoi(value)
	case "scope":
		r.Scope = value
	case "proto":
		r.Protocol = value
	case "tos":
		var tos uint64
		tos, err = strconv.ParseUint(value, 0, 8)
		r.TOS = uint8(tos)
	case "table":
		r.Table, err = routeTable(value)
	case "mtu", "advmss", "pref", "nhid", "hoplimit", "expires", "error", "initcwnd", "initrwnd", "rto_min", "window", "rtt":
	default:
		return fmt.Errorf("is not understood")
	}
	return err
}

func routeTable(name string) (int, error) {
	switch name {
	case "local":
		return fib.TableLocal, nil
	case "main":
		return fib.TableMain, nil
	case "default":
		return fib.TableDefault, nil
	}
	return strconv.Atoi(name)
}

// addresses reads links and their addresses.
func (p *partial) addresses(b iptables.Block) error {
	s := p.host.FIB
	var link *fib.Link
	number := b.Line - 1
	for line := range strings.Lines(string(b.Text)) {
		number++
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "> "))
		switch {
		case strings.HasSuffix(fields[0], ":"):
			l, err := parseLink(fields)
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			s.Links = append(s.Links, l)
			link = &s.Links[len(s.Links)-1]
		case link == nil:
			return fmt.Errorf("line %d: stands before the first interface", number)
		case strings.HasPrefix(fields[0], "link/"):
			link.Type = strings.TrimPrefix(fields[0], "link/")
			if len(fields) > 1 {
				link.MAC, _ = packet.ParseMAC(fields[1])
			}
		case (fields[0] == "inet" || fields[0] == "inet6") && len(fields) > 1:
			a, err := parseAddress(fields)
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			a.Link = link.Name
			s.Addresses = append(s.Addresses, a)
		case fields[0] == "veth" || fields[0] == "bridge":
			link.Kind = fields[0]
		}
	}
	return nil
}

// parseLink reads "9: eth0@if10: <BROADCAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master cbr0 state UP".
func parseLink(fields []string) (fib.Link, error) {
	index, err := strconv.Atoi(strings.TrimSuffix(fields[0], ":"))
	if err != nil || len(fields) < 3 {
		return fib.Link{}, fmt.Errorf("no interface: %s", strings.Join(fields, " "))
	}
	name, peer, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
	l := fib.Link{Index: index, Name: name, PeerNetNS: -1}
	l.Peer, _ = strconv.Atoi(strings.TrimPrefix(peer, "if"))
	flags := strings.Split(strings.Trim(fields[2], "<>"), ",")
	l.Up, l.LowerUp = slices.Contains(flags, "UP"), slices.Contains(flags, "LOWER_UP")
	for i := 3; i+1 < len(fields); i += 2 {
		switch fields[i] {
		case "mtu":
			l.MTU, _ = strconv.Atoi(fields[i+1])
		case "master":
			l.Master = fields[i+1]
		}
	}
	return l, nil
}

// parseAddress reads "inet 10.0.0.4/24 brd 10.0.0.255 scope global secondary eth0".
func parseAddress(fields []string) (fib.Address, error) {
	prefix, err := parsePrefix(fields[1])
	if err != nil {
		return fib.Address{}, err
	}
	a := fib.Address{Prefix: prefix, Scope: "global"}
	for i := 2; i < len(fields); i++ {
		value := ""
		if i+1 < len(fields) {
			value = fields[i+1]
		}
		switch fields[i] {
		case "brd":
			a.Broadcast, _ = netip.ParseAddr(value)
		case "peer":
			a.Peer, _ = parsePrefix(value)
		case "scope":
			a.Scope = value
		case "secondary":
			a.Secondary = true
		}
	}
	return a, nil
}

// sources makes addresses of the sources that routes prefer, and names them.
func (p *partial) sources() string {
	s := p.host.FIB
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
func (p *partial) localRoutes() {
	s := p.host.FIB
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
func (p *partial) linksOfRoutes() {
	s := p.host.FIB
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
