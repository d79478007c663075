package netfilter

import (
	"fmt"
	"net/netip"
	"strings"
)

// MatchAddressType tests the kind of an address in the machine's routing tables (xt_addrtype.c).
type MatchAddressType struct {
	Source bool
	Not    bool
	Types  []AddressType
	Limit  LinkLimit
}

// LinkLimit restricts the look-up of an address's type to an interface of the packet.
type LinkLimit uint8

// The limits.
const (
	AnyLink LinkLimit = iota
	InLink
	OutLink
)

var addressTypeNames = [...]string{"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE",
	"PROHIBIT"}

// String returns the type's name as iptables has it: "LOCAL".
func (t AddressType) String() string {
	if int(t) >= len(addressTypeNames) {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return addressTypeNames[t]
}

// ParseAddressType reads a name as iptables prints it.
func ParseAddressType(name string) (AddressType, bool) {
	for t, n := range addressTypeNames {
		if n == name {
			return AddressType(t), true
		}
	}
	return 0, false
}

// Eval asks the host.
func (m *MatchAddressType) Eval(c *Context) Verdict {
	a := c.Packet.Destination
	if m.Source {
		a = c.Packet.Source
	}
	link, unknown := "", false
	switch m.Limit {
	case InLink:
		link, unknown = c.Packet.In, c.inUnknown()
	case OutLink:
		link, unknown = c.Packet.Out, c.outUnknown()
	}
	if !a.IsValid() || unknown {
		return c.hold(maybe, m)
	}
	holds := m.match4
	if a.Is6() {
		holds = m.match6
	}
	t := holds(c, a, link).xor(m.Not)
	if t == maybe {
		return c.askTest(Unknown, addressQuestion{m, a}, 0, 0)
	}
	return c.hold(t, m)
}

// match4 does what inet_dev_addr_type does (net/ipv4/fib_frontend.c): some types follow from the address alone.
func (m *MatchAddressType) match4(c *Context, a netip.Addr, link string) truth {
	switch {
	case a.As4()[0] == 0 || a == broadcast:
		return truthOf(m.has(BroadcastAddress))
	case a.IsMulticast():
		return truthOf(m.has(MulticastAddress))
	}
	t, ok := c.addressType(a, link)
	if !ok {
		return maybe
	}
	return truthOf(m.has(t))
}

// match6 does what match_type6 of xt_addrtype.c does: of MULTICAST, UNICAST and UNSPEC, which follow from the address, all have to hold; of
// the others one.
func (m *MatchAddressType) match6(c *Context, a netip.Addr, link string) truth {
	if m.has(MulticastAddress) && !a.IsMulticast() || m.has(UnicastAddress) && (a.IsMulticast() || a.IsUnspecified()) ||
		m.has(Unspec) && !a.IsUnspecified() {
		return no
	}
	if !m.has(LocalAddress) && !m.has(AnycastAddress) && !m.has(UnreachableAddress) {
		return yes
	}
	t, ok := c.addressType(a, link)
	if !ok {
		return maybe
	}
	return truthOf(t != UnicastAddress && t != MulticastAddress && t != Unspec && m.has(t))
}

func (m *MatchAddressType) has(t AddressType) bool {
	for _, u := range m.Types {
		if t == u {
			return true
		}
	}
	return false
}

// addressQuestion is a test with the address that it is asked about.
type addressQuestion struct {
	test    fmt.Stringer
	address netip.Addr
}

func (q addressQuestion) String() string { return q.test.String() + " (" + q.address.String() + ")" }

func (m *MatchAddressType) String() string {
	names := make([]string, len(m.Types))
	for i, t := range m.Types {
		names[i] = t.String()
	}
	text := side(m.Source) + " is " + negated(m.Not, "", "not ") + strings.Join(names, " or ")
	return text + [...]string{"", " on the incoming interface", " on the outgoing interface"}[m.Limit]
}
