package netns

import "packetwalk.dev/internal/model/desired"

type (
	// State is what Apply brings a namespace to.
	State = desired.State
	// Sysctl is one kernel setting of State.
	Sysctl = desired.Sysctl
	// Address is one address of a link in State.
	Address = desired.Address
	// Route is one route of State.
	Route = desired.Route
	// Rule is one policy routing rule of State.
	Rule = desired.Rule
	// Neighbour is one permanent neighbour entry of State.
	Neighbour = desired.Neighbour
)

// ownProtocol marks the routes and policy rules that Apply makes (rtm_protocol, include/uapi/linux/rtnetlink.h: numbers that the
// kernel and the known daemons do not use).
const ownProtocol = 142

// LinkEnd is one end of a veth pair.
type LinkEnd struct {
	Namespace *Namespace
	Name      string // at most 15 bytes
	MAC       string // aa:bb:cc:dd:ee:ff, "" for a random one
	Alias     string // shown by ip link, at most 255 bytes; "" for none
}
