package witness

import (
	"encoding/binary"
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Headers are the bytes of one packet, each slice from the beginning of that header and possibly cut.
type Headers struct {
	Link, Network, Transport []byte
	LinkType                 uint16 // of the interface (ARPHRD_…, include/uapi/linux/if_arp.h)
}

// Parse reads what there is. What is cut off stays zero.
func (h Headers) Parse() packet.Packet {
	var p packet.Packet
	if len(h.Link) >= 14 {
		copy(p.Frame.Destination[:], h.Link)
		copy(p.Frame.Source[:], h.Link[6:])
		p.Frame.Type = packet.EtherType(binary.BigEndian.Uint16(h.Link[12:]))
	}
	switch parseIP(&p, h.Network) {
	case packet.ICMP, packet.ICMPv6:
		parseICMP(&p, h.Transport)
	default:
		parsePorts(&p.Tuple, h.Transport)
		if p.Protocol == packet.TCP && len(h.Transport) >= 14 {
			p.TCPFlags = packet.TCPFlags(h.Transport[13])
		}
	}
	return p
}

// Decapsulate reads the packet in the frame that a packet of VXLAN carries (RFC 7348 section 5), of which transport is the header of UDP
// and what follows; ok is false where that is none, or is cut before the packet's addresses. The rest is its transport header and payload.
func Decapsulate(transport []byte) (p packet.Packet, rest []byte, ok bool) {
	const udp, vxlan, ether = 8, 8, 14
	const known = 0x08 // the flag that says that there is a network identifier
	if len(transport) < udp+vxlan+ether || transport[udp] != known {
		return p, nil, false
	}
	h := Headers{Link: transport[udp+vxlan:][:ether], Network: transport[udp+vxlan+ether:]}
	h.Transport = h.Network[HeaderLength(h.Network):]
	p = h.Parse()
	return p, h.Transport, p.Source.IsValid()
}

// parseIP reads an IPv4 or IPv6 header and returns the transport protocol.
func parseIP(p *packet.Packet, b []byte) packet.Protocol {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p.Frame.Type, p.TOS, p.Length, p.TTL, p.Protocol = packet.EtherIPv4, b[1], int(binary.BigEndian.Uint16(b[2:])), b[8],
			packet.Protocol(b[9])
		fragment := binary.BigEndian.Uint16(b[6:])
		p.Offset, p.More = int(fragment&0x1fff)*8, fragment&0x2000 != 0
		p.Source, p.Destination = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	case len(b) >= 40 && b[0]>>4 == 6:
		p.Frame.Type, p.TOS, p.TTL, p.Protocol = packet.EtherIPv6, b[0]<<4|b[1]>>4, b[7], packet.Protocol(b[6])
		p.Length = 40 + int(binary.BigEndian.Uint16(b[4:]))
		p.Source, p.Destination = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	}
	return p.Protocol
}

func parsePorts(t *packet.Tuple, b []byte) {
	if t.Protocol.HasPorts() && len(b) >= 4 {
		t.SourcePort, t.DestinationPort = packet.Exactly(binary.BigEndian.Uint16(b)), packet.Exactly(binary.BigEndian.Uint16(b[2:]))
	}
}

// parseICMP reads an ICMP or ICMPv6 header: the identifier of a query (it is the tuple's SourcePort), the packet that an error quotes.
func parseICMP(p *packet.Packet, b []byte) {
	if len(b) < 8 {
		return
	}
	p.Type, p.Code = b[0], b[1]
	if p.Tuple.Reply().Type != p.Type { // there is a type that answers it: a query or a reply
		p.SourcePort = packet.Exactly(binary.BigEndian.Uint16(b[4:]))
		return
	}
	var about packet.Packet
	protocol := parseIP(&about, b[8:])
	if !about.Source.IsValid() {
		return
	}
	transport := b[8+HeaderLength(b[8:]):]
	if (protocol == packet.ICMP || protocol == packet.ICMPv6) && len(transport) >= 8 {
		about.Type, about.Code, about.SourcePort = transport[0], transport[1], packet.Exactly(binary.BigEndian.Uint16(transport[4:]))
	}
	parsePorts(&about.Tuple, transport)
	p.About = &about.Tuple
}

// Label returns what tells a host's packets apart in the IP header that b begins with, and what neither routers nor address translation
// change: IPv4's identification (RFC 6864), IPv6's flow label (RFC 6437). It is 0 where b is cut before it.
func Label(b []byte) uint32 {
	switch {
	case len(b) >= 6 && b[0]>>4 == 4:
		return uint32(binary.BigEndian.Uint16(b[4:]))
	case len(b) >= 4 && b[0]>>4 == 6:
		return binary.BigEndian.Uint32(b) & 0xfffff
	}
	return 0
}

// HeaderLength returns the length of the IP header that b begins with, at most that of b. IPv6's extension Headers are not followed.
func HeaderLength(b []byte) int {
	n := 40
	if len(b) > 0 && b[0]>>4 == 4 {
		n = int(b[0]&0xf) * 4
	}
	return min(n, len(b))
}
