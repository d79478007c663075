package fib

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// State is one namespace's links, addresses, routes, rules and neighbours. Look-ups need [State.Index] first.
type State struct {
	Links      []Link
	Addresses  []Address
	Routes     []Route
	Rules      []Rule
	Neighbours []Neighbour
	FDB        []FDBEntry
	// Kernel is the machine's release, as uname -r; "" where it is not known. Few look-ups depend on it.
	Kernel string
	index  *index
}

// Link is a network interface (ip -d -j link).
type Link struct {
	Index   int
	Name    string
	Kind    string // "veth", "bridge", "vlan", …; "" for loopback and hardware
	Type    string // link type: "ether", "loopback", "none"
	MAC     packet.MAC
	MTU     int
	Up      bool // administratively
	LowerUp bool // carrier
	NoARP   bool // neighbours are not asked for their addresses, and not answered (NOARP)
	// Promiscuous says that the link was set to promiscuous mode. It does not show the mode that a packet capture sets.
	Promiscuous bool
	Group       int
	Alias       string
	// Peer is a veth's other end: its index in its own namespace, which PeerNetNS names by this namespace's id for it; -1 in the same one.
	Peer      int
	PeerNetNS int
	Master    string  // the bridge (or VRF) it belongs to; ""
	VLAN      int     // of a vlan link
	Parent    string  // of a vlan, macvlan, …
	Bridge    *Bridge // settings of a bridge
	Port      *Port   // settings of a bridge port
	VXLAN     *VXLAN  // settings of a link of kind vxlan; nil where they are not known
	// Program is what gets what comes in by the link before anything else does, and ProgramOut what leaves by it: "an XDP program (id 7)",
	// "a filter of tc (bpf)"; "" for none.
	Program, ProgramOut string
}

// VXLAN are the settings of a link that sends its frames in UDP (RFC 7348; ip-link(8), type vxlan).
type VXLAN struct {
	VNI uint32
	// Port is where it sends to, unless an entry of the forwarding database names another, and where it receives.
	Port        uint16
	Local       netip.Addr // from which it sends; zero: as the route says
	SourcePorts [2]uint16  // one of them by a hash of the flow, the last not among them; zero: one of the machine's local ports
	TTL         uint8      // 0 for the machine's default
	InheritTTL  bool       // the packet's own
	TOS         uint8      // 1 for the packet's own
	Learning    bool       // from what it receives, which station is behind which remote
	NoChecksum  bool       // its carriers have no UDP checksum
	Unknown     string     // what of the settings decides about packets and is not understood: "external"
}

// HasCarrier reports whether the link is up and can carry frames. What is sent by one that cannot is dropped (noop_qdisc).
func (l *Link) HasCarrier() bool { return l.Up && l.LowerUp }

// Bridge are the settings of a bridge that decide about packets.
type Bridge struct {
	VLANFiltering bool
	STP           bool
	CallIPTables  bool // nf_call_iptables of this bridge; the namespace's sysctl is apart
	CallIP6Tables bool
	CallARPTables bool
	GroupForward  uint16
}

// Port are the settings of a bridge port (bridge -d link).
type Port struct {
	State                          string // "forwarding", "blocking", "disabled", …
	Hairpin                        bool
	Learning                       bool
	Flood                          bool // unknown unicast
	BroadcastFlood, MulticastFlood bool
	Isolated                       bool
	ProxyARP                       bool
	NeighbourSuppression           bool
}

// Address is an address of a link. Prefix is not masked.
type Address struct {
	Link      string
	Prefix    netip.Prefix
	Peer      netip.Prefix // of a point-to-point address; zero
	Broadcast netip.Addr
	Scope     string // "global", "link", "host"
	Secondary bool
	// IPv6 only (IFA_F_…): Deprecated, Temporary and Tentative addresses are passed over or avoided when a source is chosen.
	Deprecated, Temporary, Tentative bool
}

// Route is one route (ip -j route show table all).
type Route struct {
	Table       int
	Type        string // "unicast", "local", "broadcast", "multicast", "blackhole", "unreachable", "prohibit", "throw"
	Destination netip.Prefix
	From        netip.Prefix // source-specific (IPv6); zero for any
	TOS         uint8
	Gateway     netip.Addr
	Link        string
	Source      netip.Addr // preferred
	Metric      int
	Scope       string // "global", "link", "host"
	Protocol    string
	OnLink      bool
	Dead        bool      // RTNH_F_DEAD: never used; also where a link without carrier is to be passed over (ignore_routes_with_linkdown)
	Preference  string    // of a router (IPv6, RFC 4191): "low", "medium", "high"; "" is medium
	Nexthops    []Nexthop // of a multipath route; Gateway and Link are then empty
	TableName   string    // where the table has a name of its own; Table is then negative and stands for that name
	Unknown     string    // what of the route decides about packets and is not understood: "encap mpls"
}

// Nexthop is one way of a multipath route.
type Nexthop struct {
	Gateway netip.Addr
	Link    string
	Weight  int // from 1
	OnLink  bool
	Dead    bool
	// Source is the preferred source of local output by this way; only in an Answer.
	Source netip.Addr
}

// Tables that have a name (/etc/iproute2/rt_tables).
const (
	TableDefault = 253
	TableMain    = 254
	TableLocal   = 255
)

// Rule is one policy rule (ip -j rule).
type Rule struct {
	Priority                      int
	Not                           bool
	From, To                      netip.Prefix // zero for any
	In, Out                       string
	Mark, Mask                    uint32          // Mask 0: not looked at
	TOS                           uint8           // 0 for any
	DSCP, DSCPMask                uint8           // DSCPMask 0: not looked at
	Protocol                      packet.Protocol // 0 for any
	SourcePorts, DestinationPorts RulePorts
	UIDs                          [2]uint32 // HasUIDs
	HasUIDs                       bool
	Action                        string // "lookup", "goto", "nop", "blackhole", "unreachable", "prohibit"
	Table                         int
	Goto                          int
	SuppressPrefixLength          int // -1 for none
	SuppressGroup                 int // -1 for none
	IPv6                          bool
	// as ip-rule(8) prints it, where the JSON holds something that is not understood; such a rule is Unknown
	Text      string
	Unknown   bool
	L3MDev    bool   // matches packets of a VRF's links only, and looks in its table
	TableName string // as in Route
}

// RulePorts are the ports that a policy rule selects: a range, or with a Mask those that have First's bits. The zero value selects all.
type RulePorts struct {
	First, Last uint16
	Mask        uint16 // 0 for a range
}

// Neighbour is an entry of the ARP or neighbour discovery table (ip -j neigh), or a proxy entry.
type Neighbour struct {
	Link    string
	Address netip.Addr
	MAC     packet.MAC
	State   string // "PERMANENT", "REACHABLE", "STALE", "FAILED", …
	Proxy   bool
}

// FDBEntry is an entry of a bridge's forwarding database (bridge -j fdb), or of that of a link of kind vxlan, which has a Remote, or an
// Unknown, and no Bridge.
type FDBEntry struct {
	Port   string // the port; the bridge itself for its own addresses; the link of kind vxlan
	Bridge string
	MAC    packet.MAC
	VLAN   int
	Local  bool // the machine's own ("permanent"); of a vxlan's entry that nothing changes it
	Static bool
	// Remote is the machine to which a vxlan sends frames for the station; RemotePort and VNI are zero where they are the link's own.
	Remote     netip.Addr
	RemotePort uint16
	VNI        uint32
	Link       string // by which it sends them; "" for what the route says, whatever link the vxlan was made for
	Unknown    string // what of the entry is not understood: "nexthop group 5"
}
