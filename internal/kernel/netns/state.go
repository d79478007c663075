package netns

import "packetwalk.dev/internal/model/desired"

// State and its parts are what Apply brings a namespace to.
type (
	State     = desired.State
	Sysctl    = desired.Sysctl
	Address   = desired.Address
	Route     = desired.Route
	Rule      = desired.Rule
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
