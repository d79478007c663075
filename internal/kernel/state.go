package kernel

import "net/netip"

// State is what a namespace should have, as plain data. The zero State wants nothing. Apply makes the namespace agree.
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
	// Protocol is the origin (rtm_protocol) of the routes and rules, 0 for Protocol. Two States with different ones, in one
	// namespace, leave each other's routes and rules alone.
	Protocol int
}

// ownProtocol marks the routes and policy rules that Apply makes (rtm_protocol, include/uapi/linux/rtnetlink.h: numbers that the
// kernel and the known daemons do not use).
const ownProtocol = 142

// Sysctl is one kernel setting of a network namespace.
type Sysctl struct{ Key, Value string }

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

// LinkEnd is one end of a veth pair.
type LinkEnd struct {
	Namespace *Namespace
	Name      string // at most 15 bytes
	MAC       string // aa:bb:cc:dd:ee:ff, "" for a random one
	Alias     string // shown by ip link, at most 255 bytes; "" for none
}
