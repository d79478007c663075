package fib

import (
	"net/netip"
	"slices"
)

// AddressType returns what kind of address a is to this machine, in the words of Route.Type. link, where not "", restricts it to that
// interface (xt_addrtype's --limit-iface, nft's "fib daddr . iif type").
//
// IPv4 is inet_addr_type and inet_dev_addr_type (net/ipv4/fib_frontend.c): what the local table does not know is "unicast", also where
// no route leads to it. IPv6 is what xt_addrtype and nft_fib ask (net/netfilter/xt_addrtype.c, net/ipv6/netfilter/nft_fib_ipv6.c):
// "local", "anycast", "multicast", "unspec", "unicast", and, by the route to it, "blackhole", "prohibit", "throw" or "unreachable".
func (s *State) AddressType(a netip.Addr, link string) string {
	if a.Is6() {
		return s.addressTypeIPv6(a, link)
	}
	switch {
	case a.As4()[0] == 0, a == everyone:
		return "broadcast"
	case a.IsMulticast():
		return "multicast"
	}
	x := s.indexed()
	l := search{s: s, x: x, q: Query{Destination: a}}
	t := x.tables[0][TableLocal]
	if !x.customRules[0] {
		t = x.merged
	}
	r := l.table(t)
	if r == nil || refuses(r.Type) || link != "" && r.hops()[0].Link != link {
		return "unicast"
	}
	return r.Type
}

func (s *State) addressTypeIPv6(a netip.Addr, link string) string {
	switch {
	case a.IsMulticast():
		return "multicast"
	case a.IsUnspecified():
		return "unspec"
	}
	if link != "" {
		if own := s.HasAddress(a); own != nil && s.onLink(a, link) {
			return "local"
		}
	}
	answer := s.Lookup(Query{Destination: a, Out: link})
	switch {
	case answer.Type == "none":
		return "unreachable"
	case answer.Type == "local" && link != "":
		return "unicast"
	}
	return answer.Type
}

// HasAnycast reports whether an anycast address of IPv6 belongs to a link, as /proc/net/anycast6 lists them (ipv6_chk_acast_addr). Another
// link may have the same address for its own.
func (s *State) HasAnycast(link string, a netip.Addr) bool {
	local := s.indexed().tables[1][TableLocal]
	return a.Is6() && local != nil && slices.ContainsFunc(local.routes[netip.PrefixFrom(a, 128)], func(r *Route) bool {
		return r.Type == "anycast" && r.Link == link
	})
}

// onLink reports whether a link has an address.
func (s *State) onLink(a netip.Addr, link string) bool {
	for _, own := range s.indexed().onLink[link] {
		if own.Prefix.Addr() == a {
			return true
		}
	}
	return false
}
