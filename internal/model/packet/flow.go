package packet

import (
	"net/netip"
	"strconv"
)

// Flow is one connection as conntrack knows it: the tuple of its first packet, and the tuple that answers have.
type Flow struct {
	Original, Reply Tuple
	Status          Status
	Mark            uint32
	Zone            Zone
	State           string // of TCP and SCTP, as conntrack(8) prints it: "ESTABLISHED", "SYN_SENT", …
	Timeout         int    // seconds
	Helper          string
	// Identifier says that an ICMP identifier was changed and the source was not. It is then unknown which translation changed the
	// identifier. Translating the source does so when it masquerades with random ports. Translating the destination does so for a packet
	// that came in with an identifier already in use.
	Identifier bool
	// Masqueraded is the interface by which the first packet left when it was masqueraded (masq_index). No dump tells it: it is known of flows
	// that a walk makes.
	Masqueraded string
}

// Zone is the conntrack zone of a packet or a flow: each has its own flows. The zero value is the default zone.
type Zone struct {
	ID   uint16
	Only ZoneDirection // in which direction the ID counts; in the other one it is the default zone
}

// In returns the number that counts in a direction (nf_ct_zone_id).
func (z Zone) In(reply bool) uint16 {
	if z.Only == ZoneOriginal && reply || z.Only == ZoneReply && !reply {
		return 0
	}
	return z.ID
}

// String returns "3", or "3 in the direction of requests" where it counts in one only.
func (z Zone) String() string {
	return strconv.Itoa(int(z.ID)) + [...]string{"", " in the direction of requests", " in the direction of answers"}[z.Only]
}

// ZoneDirection says in which direction's packets a flow's zone counts ("CT --zone-orig", "--zone-reply"); zero for both.
type ZoneDirection uint8

// The directions.
const (
	ZoneBoth ZoneDirection = iota
	ZoneOriginal
	ZoneReply
)

// Status are the IPS_… bits (include/uapi/linux/netfilter/nf_conntrack_common.h).
type Status uint32

// The bits of Status that a walk uses.
const (
	Expected  Status = 1 << 0
	SeenReply Status = 1 << 1
	Assured   Status = 1 << 2
	Confirmed Status = 1 << 3
	SNAT      Status = 1 << 4
	DNAT      Status = 1 << 5
	SNATDone  Status = 1 << 7
	DNATDone  Status = 1 << 8
	Template  Status = 1 << 11
	Offload   Status = 1 << 14 // its packets go through a flow table
	HWOffload Status = 1 << 15
)

// TrackState is the state of a packet's connection as seen from the packet (ctstate). It is a bit, so that rules can test for several.
type TrackState uint8

// The states (xt_conntrack: XT_CONNTRACK_STATE_…). The zero value is a packet that conntrack has not looked at.
const (
	Invalid TrackState = 1 << iota
	Established
	Related
	New
	Untracked
)

var trackStateNames = map[TrackState]string{Invalid: "INVALID", Established: "ESTABLISHED", Related: "RELATED", New: "NEW",
	Untracked: "UNTRACKED"}

// String returns the state's name in capital letters.
func (s TrackState) String() string { return trackStateNames[s] }

// Track is what conntrack says of one packet.
type Track struct {
	Flow  *Flow // nil where it is not tracked; owned by the walk, not by the snapshot
	State TrackState
	Reply bool // it goes against the direction of the flow's first packet
	// Assumed says that it is unknown whether the kernel tracks connections at all.
	Assumed bool
}

// Translation is a source or destination translation that a rule asks for (kernel: struct nf_nat_range2).
type Translation struct {
	Source    bool       // SNAT and MASQUERADE; otherwise DNAT and REDIRECT
	Low, High netip.Addr // the new address; both zero to keep it (ports only)
	// Ports is [PortLow, PortHigh], both 0 to keep the port where that leaves the tuple unique.
	PortLow, PortHigh uint16
	PortBase          uint16 // "--to-destination a-b/base": ports are shifted by (port-base)
	Random            bool   // --random
	FullyRandom       bool   // --random-fully
	Persistent        bool
	Netmap            bool // the prefix is replaced, host bits stay
	// Chosen is how the address came about, for reasons: "masquerade", "redirect", "", …
	Chosen string
}
