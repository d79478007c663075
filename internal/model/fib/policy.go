package fib

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
)

// rules walks the policy rules in order (fib_rules_lookup, net/core/fib_rules.c) and leaves the route, its rule and its type in the answer.
func (l *search) rules() {
	list := l.x.rules[l.fam]
	if l.fam == 0 && !l.x.customRules[0] {
		l.withoutRules(list)
		return
	}
	if len(list) == 0 {
		l.lookupUsualRules()
		return
	}
	// Jumps go forward only: a rule's target has a higher priority (fib_nl_newrule), so this ends.
	for i := 0; i < len(list); i++ {
		r := list[i]
		why := l.match(r)
		if why != "" {
			l.considered(r, why)
			continue
		}
		if r.Action == "goto" {
			if to := position(list, r.Goto); to > i {
				l.considered(r, "goes on at the rule of its target")
				i = to - 1
				continue
			}
		}
		if why = l.act(r); why == "" {
			return
		}
		l.considered(r, why)
	}
}

// position returns the first rule of a priority; -1 for none.
func position(list []*Rule, priority int) int {
	for i, r := range list {
		if r.Priority == priority {
			return i
		}
	}
	return -1
}

// lookupUsualRules looks up the tables of the usual rules, for states without rules.
func (l *search) lookupUsualRules() {
	for i := range usualRules[l.fam] {
		r := &usualRules[l.fam][i]
		if l.act(r) == "" {
			l.a.Rule = nil
			return
		}
	}
}

// withoutRules does what fib_lookup does (include/net/ip_fib.h) while a namespace never had a policy rule of its own: the tables local and
// main are then one, in which the longest prefix of both wins.
func (l *search) withoutRules(list []*Rule) {
	route := l.table(l.x.merged)
	way, ways := l.way, l.ways
	if route == nil || refuses(route.Type) {
		if t := l.x.tables[0][TableDefault]; t != nil {
			route = l.table(t)
			way, ways = l.way, l.ways
		}
	}
	if l.x.mergeMatters {
		apart := l.table(l.x.tables[0][TableLocal])
		if apart != nil && apart != route && !refuses(apart.Type) {
			l.unknown("the tables local and main are looked up as one unless the namespace ever had a policy rule of its own: then the route is " +
				apart.Type + " " + apart.Destination.String())
		}
	}
	l.way, l.ways = way, ways
	table := TableDefault
	if route != nil {
		table = route.Table
	}
	for _, r := range list {
		if r.Table == table && route != nil {
			l.a.Rule = r
			break
		}
		l.considered(r, noRoute)
	}
	if route != nil && route.Type != "throw" {
		l.a.Route, l.a.Type = route, route.Type
		l.deadDefault(l.x.tables[0][route.Table])
	} else {
		l.a.Rule = nil
	}
}

// Reasons why a rule did not decide.
const (
	noRoute    = "its table has no route to the destination"
	throws     = "the route in its table is of type throw: the next rule is asked"
	suppressed = "the route in its table is suppressed"
)

// act does what a rule that matches says. It returns why the next rule is asked; "" when this one decided.
func (l *search) act(r *Rule) string {
	switch r.Action {
	case "lookup":
	case "goto", "nop":
		return "has no effect"
	case "unreachable", "prohibit", "blackhole":
		l.a.Rule, l.a.Type = r, r.Action
		return ""
	default:
		l.unknown(fmt.Sprintf("policy rule %d: action %q", r.Priority, r.Action))
		return "its action is not understood"
	}
	t := l.x.tables[l.fam][r.Table]
	route := l.table(t)
	switch {
	case route == nil:
		return noRoute
	case route.Type == "throw":
		return throws
	case !refuses(route.Type) && l.suppress(r, route):
		return suppressed
	}
	l.a.Rule, l.a.Route, l.a.Type = r, route, route.Type
	if l.fam == 0 {
		l.deadDefault(t)
	}
	return ""
}

// suppress reports whether a rule suppresses a route: fib4_rule_suppress, which looks at a route's first next hop, and fib6_rule_suppress,
// which looks at the one that the hash has picked by then.
func (l *search) suppress(r *Rule, route *Route) bool {
	if r.SuppressPrefixLength >= 0 && route.Destination.Bits() <= r.SuppressPrefixLength {
		return true
	}
	if r.SuppressGroup < 0 {
		return false
	}
	member := func(n Nexthop) bool {
		link := l.x.links[n.Link]
		return link != nil && link.Group == r.SuppressGroup
	}
	if l.fam == 0 {
		return member(route.hops()[0])
	}
	if len(l.ways) == 0 {
		return member(l.way)
	}
	left := slices.DeleteFunc(slices.Clone(l.ways), member)
	if len(left) > 0 && len(left) < len(l.ways) {
		l.unknown(fmt.Sprintf("policy rule %d suppresses some of the ways of the route to %s: the kernel's hash picks the way first", r.Priority,
			route.Destination))
		l.ways = left
	}
	return len(left) == 0
}

// deadDefault says that among default routes of one metric the kernel takes one whose gateway answers (fib_select_default): that is not
// in the tables.
func (l *search) deadDefault(t *table) {
	r := l.a.Route
	if r == nil || l.q.In != "" || l.q.Out != "" || r.Destination.Bits() != 0 || r.Type != "unicast" || len(r.Nexthops) > 0 {
		return
	}
	for _, other := range t.routes[r.Destination] {
		if other != r && other.Metric == r.Metric && other.TOS == r.TOS && other.Type == "unicast" && other.Gateway.IsValid() &&
			r.Gateway.IsValid() {
			l.unknown("several default routes have one metric: the kernel takes one whose gateway answers")
			return
		}
	}
}

// match reports whether a rule is for the packet: "" if it is, otherwise why not (fib_rule_match, fib4_rule_match, fib6_rule_match).
func (l *search) match(r *Rule) string {
	why := l.differs(r)
	if r.Unknown && (why == "") != r.Not || r.L3MDev && l.x.hasVRF {
		l.unknown(fmt.Sprintf("policy rule %d: %s", r.Priority, r.Text))
		return "it is not understood"
	}
	if !r.Not {
		return why
	}
	if why == "" {
		return "it is for all packets but such as this"
	}
	return ""
}

// differs gives the first selector of a rule that the packet does not meet.
func (l *search) differs(r *Rule) string {
	q := &l.q
	in := q.In
	if in == "" {
		in = loopback // local output comes from the loopback device (LOOPBACK_IFINDEX)
	}
	switch {
	case r.In != "" && r.In != in:
		return "the packet comes in by another interface"
	case r.Out != "" && r.Out != q.Out:
		return "the packet's socket is not bound to its interface"
	case (r.Mark^q.Mark)&r.Mask != 0:
		return "the mark is another"
	case r.L3MDev && !l.x.hasVRF:
		return "there is no VRF"
	case r.HasUIDs && (q.UID < r.UIDs[0] || q.UID > r.UIDs[1]):
		return "the user is another"
	case r.To.IsValid() && !r.To.Contains(q.Destination):
		return "the destination is another"
	case r.From.IsValid() && !l.from(r):
		return "the source is another"
	case r.TOS != 0 && r.TOS != l.ruleTOS():
		return "the TOS is another"
	case (r.DSCP^q.TOS>>2)&r.DSCPMask != 0:
		return "the DSCP is another"
	case r.Protocol != 0 && r.Protocol != q.Protocol:
		return "the protocol is another"
	case !l.portIn(q.SourcePort, r.SourcePorts, r):
		return "the source port is another"
	case !l.portIn(q.DestinationPort, r.DestinationPorts, r):
		return "the destination port is another"
	}
	return ""
}

// from compares the source. One that is not chosen yet is 0.0.0.0 in IPv4, and meets no prefix but that of length 0 in IPv6.
func (l *search) from(r *Rule) bool {
	if r.From.Bits() == 0 {
		return true
	}
	if l.q.Source.IsValid() {
		return r.From.Contains(l.q.Source)
	}
	return l.fam == 0 && r.From.Contains(netip.IPv4Unspecified())
}

func (l *search) ruleTOS() uint8 {
	if l.fam == 0 {
		return legacyTOS(l.q.TOS)
	}
	return l.q.TOS &^ 3
}

func (l *search) portIn(p packet.Port, want RulePorts, r *Rule) bool {
	if want == (RulePorts{}) {
		return true
	}
	if !l.q.Protocol.HasPorts() {
		return false
	}
	low, high := p.Span()
	if want.Mask != 0 {
		if low != high {
			l.unknown(fmt.Sprintf("policy rule %d matches ports %#x/%#x: the packet's is one out of %s", r.Priority, want.First, want.Mask, p))
		}
		return (p.Number^want.First)&want.Mask == 0
	}
	in := p.Number >= want.First && p.Number <= want.Last
	if within := low >= want.First && high <= want.Last; !within && high >= want.First && low <= want.Last {
		if l.q.PortIn != nil {
			return l.q.PortIn(PortTest{p, want.First, want.Last})
		}
		l.unknown(fmt.Sprintf("policy rule %d asks for ports %d-%d: the packet's is one out of %s", r.Priority, want.First, want.Last, p))
	}
	return in
}

// Dissects reports whether the kernel looks at protocol and ports of IPv4 packets that come in before it looks up routes, because a policy
// rule tests them (fib_rule_requires_fldissect, include/net/fib_rules.h); otherwise it takes them for 0.
func (s *State) Dissects() bool {
	return slices.ContainsFunc(s.Rules, func(r Rule) bool {
		return !r.IPv6 && r.In != "lo" && (r.Protocol != 0 || r.SourcePorts != RulePorts{} || r.DestinationPorts != RulePorts{})
	})
}
