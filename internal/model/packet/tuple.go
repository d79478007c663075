package packet

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Protocol is the number of an internet protocol (IANA, "Assigned Internet Protocol Numbers").
type Protocol uint8

// The protocols that have a name here.
const (
	ICMP    Protocol = 1
	TCP     Protocol = 6
	UDP     Protocol = 17
	DCCP    Protocol = 33
	ESP     Protocol = 50
	AH      Protocol = 51
	ICMPv6  Protocol = 58
	SCTP    Protocol = 132
	UDPLite Protocol = 136
)

// protocolNames are the names that programs print for protocols (/etc/protocols of Debian's netbase).
var protocolNames = map[Protocol]string{
	ICMP: "icmp", 2: "igmp", 4: "ipencap", TCP: "tcp", UDP: "udp", DCCP: "dccp", 41: "ipv6", 46: "rsvp", 47: "gre", ESP: "esp", AH: "ah",
	ICMPv6: "ipv6-icmp", 88: "eigrp", 89: "ospf", 94: "ipip", 103: "pim", 108: "ipcomp", 112: "vrrp", 115: "l2tp", SCTP: "sctp",
	135: "mobility-header", UDPLite: "udplite", 137: "mpls-in-ip",
}

// protocolNumbers are the protocols by name, with the names that other systems' /etc/protocols have, and other programs.
var protocolNumbers = func() map[string]Protocol {
	byName := map[string]Protocol{
		"icmp6": ICMPv6, "icmpv6": ICMPv6, "ipv4": 4, "ip-encap": 4, "ospfigp": 89, "carp": 112, "mh": 135, "ipv6-mh": 135,
	}
	for p, name := range protocolNames {
		byName[name] = p
	}
	return byName
}()

// String returns the name as /etc/protocols has it, or the number.
func (p Protocol) String() string {
	if name, ok := protocolNames[p]; ok {
		return name
	}
	return strconv.Itoa(int(p))
}

// ParseProtocol reads a protocol's name or number. "icmp6", "icmpv6" and "ipv6-icmp" are the same.
func ParseProtocol(s string) (Protocol, error) {
	if p, ok := protocolNumbers[s]; ok {
		return p, nil
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("unknown protocol %q", s)
	}
	return Protocol(n), nil
}

// HasPorts reports whether packets of the protocol have a source and a destination port.
func (p Protocol) HasPorts() bool {
	return p == TCP || p == UDP || p == SCTP || p == DCCP || p == UDPLite
}

// Port is a port number, or one that the kernel picks at random out of [Low, High]: Number is then an example. Where the number is
// known, Low and High are 0. Two equal Ports of the second kind are the same pick.
type Port struct {
	Number, Low, High uint16
}

// Exactly returns a port that is known.
func Exactly(n uint16) Port { return Port{Number: n} }

// OneOf returns a port that the kernel picks out of [low, high]; example stands for it.
func OneOf(low, high, example uint16) Port {
	if low == high {
		return Exactly(low)
	}
	return Port{Number: example, Low: low, High: high}
}

// Known reports whether the number is certain.
func (p Port) Known() bool { return p.Low == p.High }

// Span gives the smallest and the largest number that the port can have.
func (p Port) Span() (low, high uint16) {
	if p.Known() {
		return p.Number, p.Number
	}
	return p.Low, p.High
}

// String returns the number, or "LOW-HIGH".
func (p Port) String() string {
	if p.Known() {
		return strconv.Itoa(int(p.Number))
	}
	return fmt.Sprintf("%d-%d", p.Low, p.High)
}

// Tuple is what one direction of a flow is known by. For ICMP and ICMPv6 queries SourcePort is the identifier; Type and Code are set
// for those two protocols only (kernel: struct nf_conntrack_tuple).
type Tuple struct {
	Protocol                    Protocol
	Source, Destination         netip.Addr
	SourcePort, DestinationPort Port
	Type, Code                  uint8
}

// icmpReply gives the type that answers a query's type (RFC 792, RFC 4443; kernel: nf_conntrack_proto_icmp.c).
var icmpReply = map[Protocol]map[uint8]uint8{
	ICMP:   {8: 0, 0: 8, 13: 14, 14: 13, 15: 16, 16: 15, 17: 18, 18: 17},
	ICMPv6: {128: 129, 129: 128, 139: 140, 140: 139},
}

// Reply returns the tuple of the packets that answer this one, before any translation.
func (t Tuple) Reply() Tuple {
	r := t
	r.Source, r.Destination = t.Destination, t.Source
	switch t.Protocol {
	case ICMP, ICMPv6:
		if answer, ok := icmpReply[t.Protocol][t.Type]; ok {
			r.Type = answer
		}
	default:
		r.SourcePort, r.DestinationPort = t.DestinationPort, t.SourcePort
	}
	return r
}

// Addresses that no packet has: of "this network" (RFC 1122, 3.2.1.3), and of the prefix for discarding (RFC 6666).
var unknown4, unknown6 = netip.AddrFrom4([4]byte{0, 0, 0, 1}), netip.MustParseAddr("100::1")

// UnknownAddress stands for an address of a machine whose own addresses are not known: what it masquerades with, for example. It is printed
// as "?". Tests of it are neither true nor false.
func UnknownAddress(ipv6 bool) netip.Addr {
	if ipv6 {
		return unknown6
	}
	return unknown4
}

// IsUnknown tells of an address that is not known: UnknownAddress, or the zero value.
func IsUnknown(a netip.Addr) bool {
	return !a.IsValid() || a == unknown4 || a == unknown6 || IsRedacted(a)
}

// MaxRedacted is how many redacted addresses can be told apart.
const MaxRedacted = 250

// Redacted returns the unknown address that stands for the nth address, from 0, that a text hides behind a name: x.x.x.x, for example.
func Redacted(n int, ipv6 bool) netip.Addr {
	low := byte(2 + min(n, MaxRedacted))
	if ipv6 {
		return netip.AddrFrom16([16]byte{0: 1, 15: low})
	}
	return netip.AddrFrom4([4]byte{3: low})
}

// IsRedacted reports whether an address stands for one that a text hides.
func IsRedacted(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] == 0 && b[1] == 0 && b[2] == 0 && b[3] > 1
	}
	b := a.As16()
	return b[15] > 1 && [16]byte{0: 1, 15: b[15]} == b
}

// isNameless tells of an unknown address that is not redacted.
func isNameless(a netip.Addr) bool { return IsUnknown(a) && !IsRedacted(a) }

// String returns "tcp 10.0.0.1:1234 > 10.0.0.2:80", without ports where the protocol has none.
func (t Tuple) String() string {
	return t.Protocol.String() + " " + t.SourceEnd() + " > " + t.DestinationEnd()
}

// SourceEnd returns the source address with its port, where there is one.
func (t Tuple) SourceEnd() string { return end(t.Protocol, t.Source, t.SourcePort) }

// DestinationEnd returns the destination address with its port, where there is one.
func (t Tuple) DestinationEnd() string { return end(t.Protocol, t.Destination, t.DestinationPort) }

func end(p Protocol, a netip.Addr, port Port) string {
	switch {
	case !p.HasPorts() && (isNameless(a) || a.IsUnspecified()):
		return "?"
	case isNameless(a) || a.IsUnspecified():
		return "?:" + port.String()
	case !p.HasPorts():
		return a.String()
	case a.Is6():
		return "[" + a.String() + "]:" + port.String()
	}
	return a.String() + ":" + port.String()
}

// LastOf returns the highest address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
