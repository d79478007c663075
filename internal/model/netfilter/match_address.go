package netfilter

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// MatchAddress tests the source or destination address (-s, -d; kernel: ip_packet_match in net/ipv4/netfilter/ip_tables.c).
type MatchAddress struct {
	Source bool // otherwise the destination
	Not    bool
	Prefix netip.Prefix
	// Mask is set where the mask is no prefix ("10.0.0.1/255.0.0.255"); Prefix then has the whole address.
	Mask netip.Addr
}

// Eval compares the address.
func (m *MatchAddress) Eval(c *Context) Verdict { return c.hold(m.match(c), m) }

func (m *MatchAddress) match(c *Context) truth {
	a := c.Packet.Destination
	if m.Source {
		a = c.Packet.Source
	}
	switch {
	case c.Packet.Frame.ARP != nil:
		return no // whatever else is asked: the test is for packets of IP
	case packet.IsUnknown(a) && (m.Prefix.Bits() != 0 || m.Mask.IsValid()):
		return maybe
	}
	if m.Mask.IsValid() {
		mask := AddressValue(m.Mask)
		return truthOf(a.Is4() == m.Mask.Is4() && AddressValue(a).and(mask) == AddressValue(m.Prefix.Addr()).and(mask)).xor(m.Not)
	}
	return truthOf(m.Prefix.Contains(a)).xor(m.Not)
}

// Key returns the address under the prefix's mask.
func (m *MatchAddress) Key() (Key, []Value, bool) {
	if m.Not || m.Mask.IsValid() || m.Prefix.Bits() <= 0 {
		return Key{}, nil, false
	}
	field := KeyDestination
	if m.Source {
		field = KeySource
	}
	mask := PrefixMask(m.Prefix.Bits(), m.Prefix.Addr().Is6())
	return Key{field, mask}, []Value{AddressValue(m.Prefix.Addr()).and(mask)}, true
}

func (m *MatchAddress) String() string {
	text := side(m.Source)
	switch {
	case m.Mask.IsValid():
		return text + " " + negated(m.Not, "is", "is not") + " " + m.Prefix.Addr().String() + " under mask " + m.Mask.String()
	case m.Prefix.IsSingleIP():
		return text + " " + negated(m.Not, "is", "is not") + " " + m.Prefix.Addr().String()
	}
	return text + " " + negated(m.Not, "in", "not in") + " " + m.Prefix.String()
}

// side names the end of a packet that a test looks at.
func side(source bool) string {
	if source {
		return "source"
	}
	return "destination"
}

// negated chooses between two wordings.
func negated(not bool, plain, other string) string {
	if not {
		return other
	}
	return plain
}

// MatchRange tests whether an address lies between two others (xt_iprange.c).
type MatchRange struct {
	Source, Not bool
	Low, High   netip.Addr
}

// Eval compares the address.
func (m *MatchRange) Eval(c *Context) Verdict {
	a := c.Packet.Destination
	if m.Source {
		a = c.Packet.Source
	}
	if packet.IsUnknown(a) {
		return c.hold(maybe, m)
	}
	return c.hold(truthOf(m.Low.Compare(a) <= 0 && a.Compare(m.High) <= 0).xor(m.Not), m)
}

// Key returns the address, where the range has one only.
func (m *MatchRange) Key() (Key, []Value, bool) {
	if m.Not || m.Low != m.High {
		return Key{}, nil, false
	}
	one := MatchAddress{Source: m.Source, Prefix: netip.PrefixFrom(m.Low, m.Low.BitLen())}
	return one.Key()
}

func (m *MatchRange) String() string {
	if m.Low == m.High {
		return side(m.Source) + " " + negated(m.Not, "is", "is not") + " " + m.Low.String()
	}
	return side(m.Source) + " " + negated(m.Not, "in", "not in") + " " + m.Low.String() + "-" + m.High.String()
}
