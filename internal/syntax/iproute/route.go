package iproute

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
)

// routeJSON is one route of "ip -j route show table all" (iproute2: ip/iproute.c, print_route).
type routeJSON struct {
	Type, Dst, From, Gateway, Dev, PrefSrc, Scope, Protocol, Pref string
	Table, TOS, Encap                                             text
	Via                                                           *viaJSON
	Metric                                                        uint32
	Flags                                                         []string
	Nexthops                                                      []nexthopJSON
}

type viaJSON struct{ Family, Host string }

type nexthopJSON struct {
	Gateway, Dev string
	Via          *viaJSON
	Weight       int
	Flags        []string
	Encap        text
}

// ParseRoutes reads "ip -j route show table all" or its -6 form, with or without -d. Cached clones (flag "cloned") are left out.
func ParseRoutes(data []byte) ([]fib.Route, error) {
	list, err := decode[routeJSON](data, "routes")
	if err != nil {
		return nil, err
	}
	routes := make([]fib.Route, 0, len(list))
	for i := range list {
		j := &list[i]
		if slices.Contains(j.Flags, "cloned") {
			continue
		}
		r, err := j.route()
		if err != nil {
			return nil, fmt.Errorf("route to %q (number %d): %w", j.Dst, i+1, err)
		}
		routes = append(routes, r)
	}
	return routes, nil
}

func (j *routeJSON) route() (fib.Route, error) {
	r := fib.Route{
		Type: routeType(j.Type), Link: j.Dev, Metric: int(j.Metric), Protocol: j.Protocol, Scope: scopeName(j.Scope), Preference: j.Pref,
	}
	r.Table, r.TableName = tableNumber(string(j.Table))
	if j.Encap != "" {
		r.Unknown = "encap " + string(j.Encap)
	}
	var err error
	if j.TOS != "" {
		if r.TOS, err = tosNumber(string(j.TOS)); err != nil {
			r.Unknown = "tos " + string(j.TOS)
		}
	}
	r.OnLink, r.Dead = slices.Contains(j.Flags, "onlink"), slices.Contains(j.Flags, "dead")
	if r.Gateway, err = gateway(j.Gateway, j.Via); err != nil {
		return r, err
	}
	if j.PrefSrc != "" {
		if r.Source, err = netip.ParseAddr(j.PrefSrc); err != nil {
			return r, err
		}
	}
	if j.From != "" && j.From != "all" && j.From != "default" {
		if r.From, err = parsePrefix(j.From); err != nil {
			return r, err
		}
	}
	for _, n := range j.Nexthops {
		way, err := n.nexthop()
		if err != nil {
			return r, err
		}
		if n.Encap != "" {
			r.Unknown = "encap " + string(n.Encap)
		}
		r.Nexthops = append(r.Nexthops, way)
	}
	if j.Dst == "default" || j.Dst == "" {
		// "via" stands where the gateway is of the other family: only IPv4 routes have such.
		r.Destination = defaultPrefix(j.Via == nil && isIPv6(&r))
		return r, nil
	}
	r.Destination, err = parsePrefix(j.Dst)
	return r, err
}

func (n nexthopJSON) nexthop() (fib.Nexthop, error) {
	g, err := gateway(n.Gateway, n.Via)
	way := fib.Nexthop{Gateway: g, Link: n.Dev, Weight: max(n.Weight, 1), OnLink: slices.Contains(n.Flags, "onlink")}
	way.Dead = slices.Contains(n.Flags, "dead")
	return way, err
}

// isIPv6 tells the family of a default route, whose destination does not show it: from its other addresses, or from what only IPv6
// routes have.
func isIPv6(r *fib.Route) bool {
	switch {
	case r.Source.IsValid():
		return r.Source.Is6()
	case r.From.IsValid():
		return r.From.Addr().Is6()
	case r.Preference != "":
		return true
	case r.Gateway.IsValid():
		return r.Gateway.Is6()
	case len(r.Nexthops) > 0 && r.Nexthops[0].Gateway.IsValid():
		return r.Nexthops[0].Gateway.Is6()
	}
	return false
}

func gateway(plain string, via *viaJSON) (netip.Addr, error) {
	if via != nil {
		plain = via.Host
	}
	if plain == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(plain)
	return a.WithZone(""), err
}

func defaultPrefix(ipv6 bool) netip.Prefix {
	if ipv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// parsePrefix reads a prefix as iproute2 prints it: without a length it is one address. Host bits are cleared.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		a = a.WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}

// tableNumber gives a table's number. A name that only the machine's rt_tables knows gets a negative number of its own, the same
// wherever the name stands.
func tableNumber(s string) (number int, name string) {
	switch s {
	case "", "main":
		return fib.TableMain, ""
	case "local":
		return fib.TableLocal, ""
	case "default":
		return fib.TableDefault, ""
	}
	if n, err := strconv.ParseUint(s, 0, 32); err == nil {
		return int(n), ""
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return -1 - int(h.Sum32()), s
}

func routeType(s string) string {
	if s == "" {
		return "unicast"
	}
	return s
}

func scopeName(s string) string {
	switch s {
	case "", "0":
		return "global"
	case "253":
		return "link"
	case "254":
		return "host"
	}
	return s
}

// tosNames are the names that iproute2's rt_dsfield gives to values of the TOS field (etc/iproute2/rt_dsfield); newer versions print
// only those that the file has.
var tosNames = map[string]uint8{
	"default": 0, "AF11": 0x28, "AF12": 0x30, "AF13": 0x38, "AF21": 0x48, "AF22": 0x50, "AF23": 0x58, "AF31": 0x68, "AF32": 0x70,
	"AF33": 0x78, "AF41": 0x88, "AF42": 0x90, "AF43": 0x98, "CS1": 0x20, "CS2": 0x40, "CS3": 0x60, "CS4": 0x80, "CS5": 0xa0,
	"CS6": 0xc0, "CS7": 0xe0, "EF": 0xb8,
}

// tosNumber reads a TOS as ip prints it. A name that only the machine's rt_dsfield has is an error.
func tosNumber(s string) (uint8, error) {
	if n, ok := tosNames[s]; ok {
		return n, nil
	}
	return value[uint8](text(s), "", 8)
}

// dscpNumber reads a DSCP: the upper six bits of a TOS, by the same names.
func dscpNumber(s text) (uint8, error) {
	if n, ok := tosNames[string(s)]; ok {
		return n >> 2, nil
	}
	return value[uint8](s, "", 6)
}
