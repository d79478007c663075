package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/witness"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
)

// check is one condition on a field of a packet. Lists of them, all of which must hold, are what both a trace's rules and a capture's
// filter are made of.
type check struct {
	at     header
	offset uint32 // from the header's beginning; where the kernel knows the field by a name, too, in the IP header
	op     op
	value  []byte // as on the wire
}

// header is the header that has a field.
type header int

const (
	atFamily    header = iota // the packet's EtherType, which is in no header on some links
	atProtocol                // the transport protocol
	atNetwork                 // in the IP header
	atTransport               // in the transport header
)

// op is a comparison, by the number that nf_tables has for it.
type op uint32

const (
	isEqual   op = unix.NFT_CMP_EQ
	isAtLeast op = unix.NFT_CMP_GTE
	isAtMost  op = unix.NFT_CMP_LTE
	hasBit    op = unix.NFT_CMP_NEQ // one of the bits is set
)

// ipLayout is where the fields of an IP header are, in bytes from its beginning. IPv6's extension headers are not followed.
type ipLayout struct {
	etherType                             packet.EtherType
	protocol, source, destination, length uint32
	icmp                                  packet.Protocol
	errorsLow, errorsHigh                 byte // ICMP types that are errors (RFC 792: 3, 4, 5, 11, 12; RFC 4443: below 128)
}

var (
	ipv4Layout = ipLayout{packet.EtherIPv4, 9, 12, 16, 20, packet.ICMP, 3, 12}
	ipv6Layout = ipLayout{packet.EtherIPv6, 6, 8, 24, 40, packet.ICMPv6, 1, 127}
)

func layoutOf(t packet.Tuple) (ipLayout, error) {
	source, destination := t.Source, t.Destination
	switch {
	case source.IsValid() && destination.IsValid() && source.Is4() != destination.Is4():
		return ipLayout{}, fmt.Errorf("%s: addresses of two families", t)
	case source.Is4() || destination.Is4(), !source.IsValid() && !destination.IsValid() && t.Protocol != packet.ICMPv6:
		return ipv4Layout, nil
	}
	return ipv6Layout, nil
}

// packets returns the checks for the packets of a filter.
func (l ipLayout) packets(f witness.PacketFilter) ([]check, error) {
	checks := slices.Concat(l.begin(f.Protocol), l.tuple(atNetwork, 0, 0, f.Tuple), ofKind(0, f.Tuple))
	if begin := start(&f); len(begin) > 0 {
		const header = 8 // of UDP, and of an ICMP query
		checks = append(checks, check{atTransport, header, isEqual, begin})
	}
	if f.Carried == nil {
		return checks, nil
	}
	inner, err := layoutOf(*f.Carried)
	return append(checks, inner.carried(*f.Carried)...), err
}

// start returns as much of the payload as a register of the filters' programs has room for.
func start(f *witness.PacketFilter) []byte {
	for _, n := range [...]int{4, 2, 1} {
		if len(f.Payload) >= n {
			return f.Payload[:n]
		}
	}
	return nil
}

// ofKind returns the checks for what of its protocol a packet is, whose transport header begins there.
func ofKind(transport uint32, t packet.Tuple) []check {
	switch t.Protocol {
	case packet.TCP:
		return []check{{atTransport, transport + 13, hasBit, []byte{byte(packet.SYN | packet.RST)}}}
	case packet.ICMP, packet.ICMPv6:
		return []check{{atTransport, transport, isEqual, []byte{t.Type}}}
	}
	return nil
}

// carried returns the checks for the packet that one of VXLAN carries, behind the headers of UDP, VXLAN (RFC 7348) and Ethernet. One with
// options in its IPv4 header is none that a probe sends.
func (l ipLayout) carried(t packet.Tuple) []check {
	const etherType, ip = 8 + 8 + 12, 8 + 8 + 14
	checks := []check{
		{atTransport, etherType, isEqual, wire16(uint16(l.etherType))}, {atTransport, ip + l.protocol, isEqual, []byte{byte(t.Protocol)}},
	}
	if l.etherType == packet.EtherIPv4 {
		checks = append(checks, check{atTransport, ip, isEqual, []byte{0x45}})
	}
	return slices.Concat(checks, l.tuple(atTransport, ip, ip+l.length, t), ofKind(ip+l.length, t))
}

// errors returns the checks for ICMP errors that quote a packet with the tuple. A quoted IPv4 header with options is not looked into.
func (l ipLayout) errors(t packet.Tuple) []check {
	const quoted = 8 // where the quoted packet begins
	checks := append(l.begin(l.icmp), check{atTransport, 0, isAtLeast, []byte{l.errorsLow}},
		check{atTransport, 0, isAtMost, []byte{l.errorsHigh}})
	if l.icmp == packet.ICMP {
		checks = append(checks, check{atTransport, quoted, isEqual, []byte{0x45}})
	}
	checks = append(checks, check{atTransport, quoted + l.protocol, isEqual, []byte{byte(t.Protocol)}})
	return append(checks, l.tuple(atTransport, quoted, quoted+l.length, t)...)
}

func (l ipLayout) begin(p packet.Protocol) []check {
	return []check{{atFamily, 0, isEqual, wire16(uint16(l.etherType))}, {atProtocol, l.protocol, isEqual, []byte{byte(p)}}}
}

// tuple checks addresses, of an IP header that begins at ip, and ports or the identifier of an ICMP query, of a transport header that
// begins at ports. What the tuple leaves open is not looked at.
func (l ipLayout) tuple(at header, ip, ports uint32, t packet.Tuple) (checks []check) {
	address := func(offset uint32, a netip.Addr) {
		if a.IsValid() && !a.IsUnspecified() {
			checks = append(checks, check{at, ip + offset, isEqual, a.AsSlice()})
		}
	}
	port := func(offset uint32, p packet.Port) {
		switch low, high := p.Span(); {
		case p == packet.Port{}:
		case low == high:
			checks = append(checks, check{atTransport, ports + offset, isEqual, wire16(low)})
		default:
			checks = append(checks, check{atTransport, ports + offset, isAtLeast, wire16(low)},
				check{atTransport, ports + offset, isAtMost, wire16(high)})
		}
	}
	address(l.source, t.Source)
	address(l.destination, t.Destination)
	switch {
	case t.Protocol.HasPorts():
		port(0, t.SourcePort)
		port(2, t.DestinationPort)
	case t.Protocol == packet.ICMP || t.Protocol == packet.ICMPv6:
		port(4, t.SourcePort)
	}
	return checks
}

func wire16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
