package netfilter

import "net/netip"

// broadcast is the limited broadcast address (RFC 919).
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// MatchReversePath tests whether answers to the packet would go out of the interface that it came in by (ipt_rpfilter.c, ip6t_rpfilter.c).
type MatchReversePath struct {
	Invert      bool
	Loose       bool // any interface will do
	ValidMark   bool // the look-up uses the packet's mark
	AcceptLocal bool
}

// Eval asks the host for the route back.
func (m *MatchReversePath) Eval(c *Context) Verdict {
	p := c.Packet
	switch {
	case p.In == "lo" || p.In == "" && !c.inUnknown():
		return c.hold(yes.xor(m.Invert), m)
	case p.Source.Is4() && p.Source.IsUnspecified():
		return c.hold(truthOf(p.Destination == broadcast || p.Destination.IsLinkLocalMulticast()).xor(m.Invert), m)
	}
	q := RouteQuery{Destination: p.Source, Back: true}
	if !p.Destination.IsMulticast() && !p.Destination.IsUnspecified() {
		q.Source = p.Destination
	}
	if m.ValidMark {
		q.Mark = p.Mark
	}
	a, ok := c.route(q)
	if !ok {
		return c.askTest(Unknown, addressQuestion{m, p.Source}, 0, 0)
	}
	if a.Type != UnicastAddress && (a.Type != LocalAddress || !m.AcceptLocal) {
		return c.hold(no.xor(m.Invert), m)
	}
	if m.Loose || a.Back {
		return c.hold(yes.xor(m.Invert), m)
	}
	if c.inUnknown() {
		return c.hold(maybe, m)
	}
	return c.hold(truthOf(c.routeLink(&a, p.In, m) == p.In).xor(m.Invert), m)
}

func (m *MatchReversePath) String() string {
	return negated(m.Invert, "answers would go back", "answers would not go back") + negated(m.Loose, " out of the interface it came in by",
		"")
}
