package netfilter

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
)

// truth is the answer of a test where it need not be certain.
type truth uint8

const (
	no truth = iota
	yes
	maybe
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// and returns yes where both are, and no where one is.
func (t truth) and(u truth) truth {
	switch {
	case t == no || u == no:
		return no
	case t == yes && u == yes:
		return yes
	}
	return maybe
}

// or returns no where both are, and yes where one is.
func (t truth) or(u truth) truth { return t.not().and(u.not()).not() }

func (t truth) not() truth {
	switch t {
	case yes:
		return no
	case no:
		return yes
	}
	return maybe
}

// xor turns the answer round where not is set: for tests with "!".
func (t truth) xor(not bool) truth {
	if not {
		return t.not()
	}
	return t
}

// compare reports whether a number out of [low, high] lies in [from, to].
func compare[N uint8 | uint16 | uint32 | int](low, high, from, to N) truth {
	switch {
	case from <= low && high <= to:
		return yes
	case high < from || to < low:
		return no
	}
	return maybe
}

// hold makes the verdict of a test: Continue, Break, or what the Chooser says where the answer is not known.
func (c *Context) hold(t truth, test fmt.Stringer) Verdict {
	switch t {
	case yes:
		return Verdict{Kind: Continue}
	case no:
		return Verdict{Kind: Break}
	}
	return c.askTest(Unknown, test, 0, 0)
}

// askTest asks whether a test holds: in matches cases out of total, where that is known, else 0 and 0.
func (c *Context) askTest(kind ChoiceKind, test fmt.Stringer, matches, total uint64) Verdict {
	if c.probing {
		c.uncertain = true
		return Verdict{Kind: Continue}
	}
	answer := c.ask(kind, test, Option{Label: "matches", Weight: matches}, Option{Label: "does not match", Weight: total - matches})
	if answer == 0 {
		return Verdict{Kind: Continue}
	}
	return Verdict{Kind: Break}
}

// ask puts a question to the Chooser and returns the index of the option that it took.
func (c *Context) ask(kind ChoiceKind, about fmt.Stringer, options ...Option) int {
	if c.probing {
		c.uncertain = true
		return 0
	}
	return c.put(Choice{Kind: kind, About: about, What: about.String(), Options: options})
}

// put gives a question to the Chooser.
func (c *Context) put(q Choice) int {
	c.choices++
	q.Chain, q.Rule = c.Chain, c.Rule
	return min(max(c.Chooser.Choose(q), 0), len(q.Options)-1)
}

// routeLink returns the interface of a route that was found. Of several next hops, who asks in IPv4 gets the one with the interface that it
// names, or the first (fib_info_nh_uses_dev, fib_table_lookup); in IPv6 the one that the kernel's hash gives (fib6_select_path).
func (c *Context) routeLink(a *RouteAnswer, named string, test fmt.Stringer) string {
	if len(a.Ways) == 0 {
		return a.Link
	}
	if c.Packet.IsIPv6() {
		return a.Ways[c.ask(Hash, test, a.Ways...)].Label
	}
	if slices.ContainsFunc(a.Ways, func(o Option) bool { return o.Label == named }) {
		return named
	}
	return a.Ways[0].Label
}

// ipSet asks the host for a set.
func (c *Context) ipSet(name string) (*Set, bool) {
	if c.Host == nil {
		return nil, false
	}
	return c.Host.IPSet(name)
}

// addressType asks the host for an address's type.
func (c *Context) addressType(a netip.Addr, link string) (AddressType, bool) {
	if c.Host == nil {
		return Unspec, false
	}
	return c.Host.AddressType(a, link)
}

// route asks the host for a route.
func (c *Context) route(q RouteQuery) (RouteAnswer, bool) {
	if c.Host == nil {
		return RouteAnswer{}, false
	}
	return c.Host.Route(q)
}

// connection returns the packet's flow as the rule sees it. A packet that a rule has put into a zone has a template until conntrack looks
// at it, of which matches of iptables see a new connection, and nft's nothing but the state (nft_ct_get_eval).
func (c *Context) connection() *packet.Flow {
	if c.Chain != nil && c.Chain.Table.Dialect == NFTables {
		return c.Packet.Track.Flow
	}
	return c.Packet.Connection()
}

// link asks the host for an interface.
func (c *Context) link(name string) (Link, bool) {
	if c.Host == nil {
		return Link{}, false
	}
	return c.Host.Link(name)
}

// inUnknown reports that the packet came in by an unknown interface.
func (c *Context) inUnknown() bool {
	return c.Packet.In == "" && (c.Hook == Prerouting || c.Hook == Input || c.Hook == Forward || c.Hook == Ingress)
}

// outUnknown reports that the packet goes out by an unknown interface.
func (c *Context) outUnknown() bool {
	return c.Packet.Out == "" && (c.Hook == Forward || c.Hook == Output || c.Hook == Postrouting || c.Hook == Egress)
}
