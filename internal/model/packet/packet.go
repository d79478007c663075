package packet

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// MAC is a link-layer address of Ethernet.
type MAC [6]byte

// String returns aa:bb:cc:dd:ee:ff.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// IsZero reports whether there is no address.
func (m MAC) IsZero() bool { return m == MAC{} }

// IsMulticast tells of group addresses, broadcast among them (IEEE 802, I/G bit).
func (m MAC) IsMulticast() bool { return m[0]&1 != 0 }

// Broadcast reaches every station.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// EtherType is the kind of an Ethernet frame's payload (IEEE 802 numbers).
type EtherType uint16

// The payloads that a walk carries.
const (
	EtherIPv4 EtherType = 0x0800
	EtherARP  EtherType = 0x0806
	EtherIPv6 EtherType = 0x86dd
)

// TCPFlags are the flags of a TCP header (RFC 9293), in its bit order.
type TCPFlags uint8

// The TCP flags.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Packet is one packet at one place of its walk. It is a value: a copy of it is a record of how it looked.
type Packet struct {
	Tuple
	TCPFlags TCPFlags
	TTL      uint8 // hop limit in IPv6
	SomeTTL  bool  // its origin is unknown: TTL is an example
	TOS      uint8 // DSCP<<2 | ECN; traffic class in IPv6
	Length   int   // of the IP packet with its header, in bytes; 0 where not known
	Offset   int   // fragment offset in bytes; 0 for whole packets and first fragments
	More     bool  // more fragments follow

	Frame Frame // that it travels in; zero where it has none yet
	Sum   Sum   // of its TCP or UDP header

	// Tunnel is what the packet carries where that is another packet; nil for any other payload. It is never changed.
	Tunnel *Tunnel

	// About is the packet that an ICMP error is about, as far as the error quotes it.
	About *Tuple

	Local
}

// Tunnel is the payload of a packet that carries a frame of Ethernet in VXLAN (RFC 7348).
type Tunnel struct {
	VNI   uint32
	Inner Packet // with its Frame
	// Summed is the tuple for which the carrier's UDP checksum was computed, ahead of its payload's own one; zero without such a checksum.
	Summed Tuple
}

// Sum tells what is known of a packet's TCP or UDP checksum.
type Sum uint8

// The kinds of checksums.
const (
	SumRight    Sum = iota // computed, or unused
	SumLater               // left to a device (CHECKSUM_PARTIAL); receivers do not check it until then
	SumUnknown             // one of these two
	SumWrong               // receivers drop the packet
	SumDoubtful            // right or wrong
)

// VXLANOverhead returns how much longer a packet is that carries another one in VXLAN, in bytes: headers of Ethernet, VXLAN, UDP and IP.
func VXLANOverhead(ipv6 bool) int {
	if ipv6 {
		return 14 + 8 + 8 + 40
	}
	return 14 + 8 + 8 + 20
}

// Frame is a packet at layer 2: an Ethernet frame's header, and its payload where that is no IP packet.
type Frame struct {
	Source, Destination MAC
	Type                EtherType
	ARP                 *ARP // for EtherARP; the packet's fields above layer 2 are then empty
}

// Known reports whether anything is known of its addresses.
func (f *Frame) Known() bool { return !f.Source.IsZero() || !f.Destination.IsZero() }

// Back returns the header of a frame that answers this one.
func (f *Frame) Back() Frame {
	return Frame{Source: f.Destination, Destination: f.Source, Type: f.Type}
}

// CastFor returns its cast as a station of an address sees it (eth_type_trans).
func (f *Frame) CastFor(station MAC) Cast {
	switch to := f.Destination; {
	case to == station || to.IsZero():
		return Unicast
	case to == Broadcast:
		return BroadcastFrame
	case to.IsMulticast():
		return MulticastFrame
	}
	return OtherHost
}

// Local is what the kernel keeps beside a packet while it is inside one machine. It does not travel.
type Local struct {
	In, Out             string // interfaces by name, as rules see them at the present hook; "" for none
	BridgeIn, BridgeOut string // bridge ports (physdev); "" for none
	Mark                uint32
	Track               Track
	Cast                Cast
	UID, GID            uint32 // owner of the sending socket, where HasOwner
	HasOwner            bool
	AssumedOwner        bool // HasOwner, and the owner is assumed
	AssumedGroup        bool // HasOwner, and the group of the owner is assumed
	SomeOwner           bool // a program of this machine with an unknown owner sent it
	KernelMade          bool // the kernel itself sent it: an echo reply, an ICMP error, a reset. It has no owner
	Untracked           bool // a rule asked not to track it (NOTRACK)
	// AboutUntracked: an error or a reset about an untracked packet. It is still to be tracked, but iptables' NOTRACK and CT take it for
	// one that has been already (skb->_nfct is not zero), unlike nft's notrack.
	AboutUntracked bool
	// Zone is what a rule asked for before conntrack looks at the packet; with ZoneMark it is the mark that the packet has then. Template
	// says that a rule did ask: the first one counts (skb->_nfct is a template).
	Zone               Zone
	ZoneMark, Template bool
	Priority           uint32 // skb->priority (CLASSIFY)
}

// Cast is the kind of a frame's destination (pkttype; include/uapi/linux/if_packet.h).
type Cast uint8

// The kinds of frames.
const (
	Unicast Cast = iota
	BroadcastFrame
	MulticastFrame
	OtherHost // for another station
)

// ARP is a request or reply of the address resolution protocol (RFC 826).
type ARP struct {
	Reply                bool
	SenderMAC, TargetMAC MAC
	Sender, Target       netip.Addr
}

// Connection returns the packet's flow as rules see it: between a rule that asked for a zone and conntrack it is a template, nil where
// there is none.
func (l *Local) Connection() *Flow {
	if f := l.Track.Flow; f != nil || !l.Template {
		return f
	}
	return &Flow{Zone: l.Zone, Status: Template | Confirmed}
}

// TrackState returns the state of the packet's connection as rules see it.
func (l *Local) TrackState() TrackState {
	switch {
	case l.Track.State != 0:
		return l.Track.State
	case l.Template:
		return New
	}
	return Invalid // conntrack has not seen it
}

// IsIPv6 tells the family.
func (p *Packet) IsIPv6() bool { return p.Destination.Is6() }

// EtherType returns the kind of payload that a frame with the packet has.
func (p *Packet) EtherType() EtherType {
	switch {
	case p.Frame.ARP != nil:
		return EtherARP
	case p.IsIPv6():
		return EtherIPv6
	}
	return EtherIPv4
}

// Change is one thing that a step changed about the packet, its marks or its flow.
type Change struct {
	Field    string `json:"field"` // "source", "destination", "mark", "connmark", "ttl", "tos", "ether source", …
	From, To string
}

// Changes lists what differs between two states of one packet, in a fixed order. Walks ask it at every rule that can change something, so
// that what is equal costs no text.
func Changes(before, after *Packet) []Change {
	var c []Change
	add := func(field, from, to string) { c = append(c, Change{field, from, to}) }
	b, a := before, after
	if b.Source != a.Source || b.SourcePort != a.SourcePort {
		add("source", b.SourceEnd(), a.SourceEnd())
	}
	if b.Destination != a.Destination || b.DestinationPort != a.DestinationPort {
		add("destination", b.DestinationEnd(), a.DestinationEnd())
	}
	if b.TTL != a.TTL {
		add("ttl", strconv.Itoa(int(b.TTL)), strconv.Itoa(int(a.TTL)))
	}
	if b.TOS != a.TOS {
		add("tos", hex(uint32(b.TOS)), hex(uint32(a.TOS)))
	}
	if b.Mark != a.Mark {
		add("mark", hex(b.Mark), hex(a.Mark))
	}
	if b.Frame.Source != a.Frame.Source {
		add("ether source", b.Frame.Source.String(), a.Frame.Source.String())
	}
	if b.Frame.Destination != a.Frame.Destination {
		add("ether destination", b.Frame.Destination.String(), a.Frame.Destination.String())
	}
	if b.Priority != a.Priority {
		add("priority", hex(b.Priority), hex(a.Priority))
	}
	if b.Untracked != a.Untracked {
		add("tracked", strconv.FormatBool(!b.Untracked), strconv.FormatBool(!a.Untracked))
	}
	if b.Zone != a.Zone {
		add("zone", b.Zone.String(), a.Zone.String())
	}
	return c
}

func hex(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

// ParseMAC reads aa:bb:cc:dd:ee:ff.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != len(m) {
		return m, fmt.Errorf("%q is no link-layer address: want aa:bb:cc:dd:ee:ff", s)
	}
	copy(m[:], hw)
	return m, nil
}
