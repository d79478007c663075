// Package desired is what a network namespace should have, and which of its connections are meant, as plain data: for who decides it and
// who brings it about.
package desired

import (
	"fmt"
	"net/netip"
	"strings"
)

// State is what a namespace should have, as plain data. The zero State wants nothing. kernel.Namespace.Apply makes the namespace agree.
type State struct {
	// Sysctls are set in order; a key is a path below /proc/sys/, for example "net/ipv4/ip_forward".
	Sysctls []Sysctl
	// Links names the links whose addresses and neighbours the State owns: what is on them and not listed is taken away
	// (except loopback and link-local addresses, and neighbours that the kernel learnt by itself).
	Links []string
	// Addresses, Routes, Rules and Neighbours are ensured. Routes and rules that an earlier Apply made (they carry the Protocol)
	// and that are not listed are taken away; those of others are left alone.
	Addresses  []Address
	Routes     []Route
	Rules      []Rule
	Neighbours []Neighbour
	// Protocol is the origin (rtm_protocol) of the routes and rules, 0 for Apply's own. Two States with different ones, in one
	// namespace, leave each other's routes and rules alone.
	Protocol int
}

// Sysctl is one kernel setting of a network namespace.
type Sysctl struct {
	Key, Value string
	Link       string // that it is of, for On; "" for the namespace's
}

// Address is an address on a link.
type Address struct {
	Link   string
	Prefix netip.Prefix // the address, not masked, and its prefix length
	Scope  string       // "", "link" or "host"; "" is global
}

// Route is one route. Exactly one of Link and Kind is set.
type Route struct {
	Table       int // 0 is main
	Destination netip.Prefix
	Gateway     netip.Addr // zero for a destination on the link
	Link        string
	OnLink      bool       // the gateway is on Link though no route says so
	Kind        string     // "" for unicast, "blackhole", "unreachable", "prohibit"
	Source      netip.Addr // preferred source address, zero for the kernel's choice
}

// Rule is one policy rule (ip-rule(8)).
type Rule struct {
	Priority   int
	From, To   netip.Prefix // zero for any
	Mark, Mask uint32       // Mask 0 means that the mark is not looked at
	Table      int
}

// Neighbour is a permanent neighbour: a link-layer address that is known without asking for it.
type Neighbour struct {
	Link    string
	Address netip.Addr
	MAC     string // aa:bb:cc:dd:ee:ff
}

// FlowFilter chooses flows by their original tuple; zero fields match everything.
type FlowFilter struct {
	Protocol            uint8
	Source, Destination netip.Prefix
	SourcePort          uint16
	DestinationPort     uint16
	Mark, Mask          uint32 // Mask 0 means that the mark is not looked at
}

// Add adds what another one wants; the protocol stays.
func (s *State) Add(t State) {
	s.Sysctls = append(s.Sysctls, t.Sysctls...)
	s.Links = append(s.Links, t.Links...)
	s.Addresses = append(s.Addresses, t.Addresses...)
	s.Routes = append(s.Routes, t.Routes...)
	s.Rules = append(s.Rules, t.Rules...)
	s.Neighbours = append(s.Neighbours, t.Neighbours...)
}

// On returns the part of the state that can be had with only these links there: without the settings, addresses, routes and
// neighbours of others, and without the rules whose table would be empty.
func (s State) On(links func(string) bool) State {
	there := func(l string) bool { return l == "" || links(l) }
	t := State{Protocol: s.Protocol}
	tables := map[int]bool{}
	keep(&t.Sysctls, s.Sysctls, func(x Sysctl) bool { return there(x.Link) })
	keep(&t.Links, s.Links, there)
	keep(&t.Addresses, s.Addresses, func(x Address) bool { return there(x.Link) })
	keep(&t.Neighbours, s.Neighbours, func(x Neighbour) bool { return there(x.Link) })
	keep(&t.Routes, s.Routes, func(x Route) bool { tables[x.Table] = tables[x.Table] || there(x.Link); return there(x.Link) })
	keep(&t.Rules, s.Rules, func(x Rule) bool { return tables[x.Table] })
	return t
}

func keep[T any](to *[]T, from []T, want func(T) bool) {
	for _, x := range from {
		if want(x) {
			*to = append(*to, x)
		}
	}
}

// String returns the state for people, in the words of ip(8).
func (s State) String() string {
	var b strings.Builder
	for _, x := range s.Sysctls {
		fmt.Fprintf(&b, "sysctl %s=%s\n", x.Key, x.Value)
	}
	for _, x := range s.Addresses {
		fmt.Fprintf(&b, "address %s dev %s\n", x.Prefix, x.Link)
	}
	for _, x := range s.Routes {
		fmt.Fprintf(&b, "route %s\n", x)
	}
	for _, x := range s.Rules {
		fmt.Fprintf(&b, "rule %d fwmark %#x/%#x lookup %d\n", x.Priority, x.Mark, x.Mask, x.Table)
	}
	for _, x := range s.Neighbours {
		fmt.Fprintf(&b, "neighbour %s lladdr %s dev %s\n", x.Address, x.MAC, x.Link)
	}
	return b.String()
}

// mainTable is the number of the main routing table (RT_TABLE_MAIN).
const mainTable = 254

// String returns the route as ip-route(8) writes it.
func (r Route) String() string {
	var b strings.Builder
	if r.Kind != "" {
		fmt.Fprintf(&b, "%s ", r.Kind)
	}
	fmt.Fprint(&b, r.Destination)
	if r.Gateway.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Gateway)
	}
	if r.Link != "" {
		fmt.Fprintf(&b, " dev %s", r.Link)
	}
	if r.OnLink {
		b.WriteString(" onlink")
	}
	if r.Source.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Source)
	}
	if r.Table != 0 && r.Table != mainTable {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	return b.String()
}
