package fib

import (
	"net/netip"

	"packetwalk.dev/internal/packet"
)

// Query is what a route is looked up for (kernel: struct flowi4, flowi6).
type Query struct {
	Source, Destination         netip.Addr // Source is zero while the sender has not chosen one
	In                          string     // interface that the packet came in by; "" for local output
	Out                         string     // bound interface; ""
	Mark                        uint32
	TOS                         uint8
	Protocol                    packet.Protocol
	SourcePort, DestinationPort packet.Port
	UID                         uint32
}

// Answer is where a packet goes and why.
type Answer struct {
	Type    string // as Route.Type; "none" when no route fits (network is unreachable)
	Route   *Route // that decided; nil for none
	Rule    *Rule  // policy rule that led to it; nil where there are no rules in the state (then the usual three are assumed)
	Link    string
	Gateway netip.Addr // zero: the destination is on the link
	Source  netip.Addr // preferred source for local output
	// Ways are the possible next hops of a multipath route, each with its weight; Link and Gateway are those of the first.
	Ways []Nexthop
	// Considered are the policy rules that were met before, with why each did not decide.
	Considered []Considered
	// Unknown is not empty where something that is not understood could have decided otherwise: what it is.
	Unknown string
}

// Considered is a policy rule that did not decide.
type Considered struct {
	Rule *Rule
	Why  string
}
