package fib

import (
	"math/bits"
	"net/netip"
	"strconv"
)

// Scopes as numbers (RT_SCOPE_…, include/uapi/linux/rtnetlink.h): the higher, the narrower.
const (
	scopeLink = 253
	scopeHost = 254
)

var scopeNumbers = map[string]int{"global": 0, "site": 200, "link": scopeLink, "host": scopeHost, "nowhere": 255}

// scopeNumber of a scope that is not known is the widest: no address is too narrow for it.
func scopeNumber(name string) int {
	if n, ok := scopeNumbers[name]; ok {
		return n
	}
	n, _ := strconv.ParseUint(name, 0, 8) // as iproute2 prints one without a name
	return int(n)
}

// selectAddress does what inet_select_addr does (net/ipv4/devinet.c). It returns the first primary address of the link whose scope is wide
// enough, and prefers one in the subnet of the gateway. Where the link has none, it returns an address of another link.
func (s *State) selectAddress(link string, gateway netip.Addr, scope int) netip.Addr {
	var found netip.Addr
	for _, a := range s.indexed().onLink[link] {
		if !a.Prefix.Addr().Is4() || a.Secondary || scopeNumber(a.Scope) > scope {
			continue
		}
		if !gateway.IsValid() || a.subnet().Contains(gateway) {
			return a.Prefix.Addr()
		}
		if !found.IsValid() {
			found = a.Prefix.Addr()
		}
	}
	if found.IsValid() {
		return found
	}
	for i := range s.Addresses {
		a := &s.Addresses[i]
		n := scopeNumber(a.Scope)
		if a.Prefix.Addr().Is4() && !a.Secondary && n != scopeLink && n <= scope {
			return a.Prefix.Addr()
		}
	}
	return netip.Addr{}
}

// SelectSource returns the address that the machine itself uses on a link towards a destination or next hop, as masquerading takes it: for
// IPv4 inet_select_addr with universal scope, for IPv6 ipv6_dev_get_saddr. The zero address where it has none.
func (s *State) SelectSource(link string, towards netip.Addr) netip.Addr {
	if towards.Is6() {
		return s.selectIPv6(link, towards)
	}
	return s.selectAddress(link, towards, 0)
}

// subnet returns what the address makes reachable on its link: the other end's, where it has one.
func (a *Address) subnet() netip.Prefix {
	if a.Peer.IsValid() {
		return a.Peer
	}
	return a.Prefix
}

// candidate is an address under consideration as a source, with its marks by the rules of RFC 6724, section 5, in their order.
type candidate struct {
	addr  netip.Addr
	marks [8]int
}

// selectIPv6 does what ipv6_dev_get_saddr does (net/ipv6/addrconf.c), RFC 6724. link is "" where none is known.
func (s *State) selectIPv6(link string, destination netip.Addr) netip.Addr {
	x := s.indexed()
	var best candidate
	consider := func(a *Address) {
		if !a.Prefix.Addr().Is6() || a.Tentative {
			return
		}
		c := candidate{a.Prefix.Addr(), marks(a, link, destination)}
		if !best.addr.IsValid() || c.isBetter(&best) {
			best = c
		}
	}
	if link != "" && (destination.IsMulticast() || scopeIPv6(destination) <= 2) {
		for _, a := range x.onLink[link] {
			consider(a)
		}
		return best.addr
	}
	for i := range s.Addresses {
		consider(&s.Addresses[i])
	}
	return best.addr
}

func (c *candidate) isBetter(other *candidate) bool {
	for i, m := range c.marks {
		if m != other.marks[i] {
			return m > other.marks[i]
		}
	}
	return false
}

// marks returns those of ipv6_get_saddr_eval: the address itself, scope, not deprecated, outgoing link, label, public, ORCHID, common
// prefix.
func marks(a *Address, link string, destination netip.Addr) [8]int {
	addr := a.Prefix.Addr()
	scope := scopeIPv6(addr)
	if scope >= scopeIPv6(destination) {
		scope = -scope
	} else {
		scope -= 128
	}
	return [8]int{
		mark(addr == destination), scope, mark(!a.Deprecated || addr.IsLoopback()), mark(link == "" || link == a.Link),
		mark(labelIPv6(addr) == labelIPv6(destination)), mark(!a.Temporary), mark(orchid.Contains(addr) == orchid.Contains(destination)),
		min(commonBits(addr, destination), a.subnet().Bits()),
	}
}

func mark(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scopeIPv6 returns an address's scope as in RFC 4291, section 2.7: 2 for link-local and loopback, 5 for site-local, 14 for all other.
func scopeIPv6(a netip.Addr) int {
	raw := a.As16()
	switch {
	case a.IsMulticast():
		return int(raw[1] & 0xf)
	case a.IsLinkLocalUnicast(), a.IsLoopback():
		return 2
	case raw[0] == 0xfe && raw[1]&0xc0 == 0xc0:
		return 5
	}
	return 14
}

// orchid are identifiers that are not routed (RFC 4843).
var orchid = netip.MustParsePrefix("2001:10::/28")

// labels are the kernel's policy table (net/ipv6/addrlabel.c), RFC 6724 section 2.1; the longest prefix first.
var labels = []netip.Prefix{
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("2001::/32"), orchid, netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3ffe::/16"),
	netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("::/0"),
}

func labelIPv6(a netip.Addr) int {
	for i, p := range labels {
		if p.Contains(a) {
			return i
		}
	}
	return len(labels) // an IPv4-mapped address: netip keeps it apart from ::/0
}

func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return i*8 + bits.LeadingZeros8(d)
		}
	}
	return 128
}
