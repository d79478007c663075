package explain

import (
	"encoding/binary"
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// encode writes a packet as it is on the wire, with checksums; with an Ethernet header where asked.
func encode(p *packet.Packet, ethernet bool) []byte {
	var b []byte
	if ethernet {
		b = append(b, p.Frame.Destination[:]...)
		b = append(b, p.Frame.Source[:]...)
		b = binary.BigEndian.AppendUint16(b, uint16(p.EtherType()))
	}
	if p.Frame.ARP != nil {
		return append(b, arp(p.Frame.ARP)...)
	}
	return append(b, ip(p)...)
}

// arp encodes RFC 826's packet for Ethernet and IPv4.
func arp(a *packet.ARP) []byte {
	op := uint16(1)
	if a.Reply {
		op = 2
	}
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, a.SenderMAC[:]...), a.Sender.AsSlice()...)
	return append(append(b, a.TargetMAC[:]...), a.Target.AsSlice()...)
}

// ip returns the IP packet: RFC 791 without options, RFC 8200 without extension headers.
func ip(p *packet.Packet) []byte {
	header := 20
	if p.IsIPv6() {
		header = 40
	}
	payload := transport(p)
	if pad := p.Length - header - len(payload); pad > 0 && pad < 1<<16 {
		payload = append(payload, make([]byte, pad)...)
	}
	fill(p, payload)
	if p.IsIPv6() {
		b := make([]byte, 40, 40+len(payload))
		b[0], b[1] = 6<<4|p.TOS>>4, p.TOS<<4
		binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
		b[6], b[7] = byte(p.Protocol), p.TTL
		copy(b[8:], address16(p.Source))
		copy(b[24:], address16(p.Destination))
		return append(b, payload...)
	}
	b := make([]byte, 20, 20+len(payload))
	b[0], b[1] = 4<<4|5, p.TOS
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[6:], fragment(p))
	b[8], b[9] = p.TTL, byte(p.Protocol)
	copy(b[12:], address4(p.Source))
	copy(b[16:], address4(p.Destination))
	binary.BigEndian.PutUint16(b[10:], sum(b, 0))
	return append(b, payload...)
}

// fragment returns the flags and offset field; whole packets say "don't fragment", as Linux sends them.
func fragment(p *packet.Packet) uint16 {
	f := uint16(p.Offset / 8)
	if p.More {
		f |= 1 << 13
	} else if p.Offset == 0 {
		f |= 1 << 14
	}
	return f
}

func address4(a netip.Addr) []byte {
	if !a.Is4() || packet.IsUnknown(a) {
		return make([]byte, 4)
	}
	b := a.As4()
	return b[:]
}

func address16(a netip.Addr) []byte {
	if packet.IsUnknown(a) {
		return make([]byte, 16)
	}
	b := a.As16()
	return b[:]
}

// transport returns the header above IP without its checksum, which also covers what follows. Fragments but the first have none.
func transport(p *packet.Packet) []byte {
	if p.Offset > 0 {
		return nil
	}
	var b []byte
	switch p.Protocol {
	case packet.TCP:
		flags := p.TCPFlags
		if flags == 0 {
			flags = packet.SYN
		}
		b = make([]byte, 20)
		if flags&packet.ACK != 0 {
			b[11] = 1 // acknowledges the SYN, whose sequence number is 0
		}
		b[12], b[13] = 5<<4, byte(flags)
		binary.BigEndian.PutUint16(b[14:], 64240)
	case packet.UDP, packet.UDPLite:
		b = make([]byte, 8)
		if p.Tunnel != nil {
			b = append(b, vxlan(p.Tunnel)...)
		}
		length := len(b)
		if header := 20; p.Length > header+8 && !p.IsIPv6() {
			length = p.Length - header
		} else if p.Length > 48 && p.IsIPv6() {
			length = p.Length - 40
		}
		binary.BigEndian.PutUint16(b[4:], uint16(length))
	case packet.ICMP, packet.ICMPv6:
		return icmp(p)
	default:
		if p.Protocol.HasPorts() {
			b = make([]byte, 12)
		}
	}
	if p.Protocol.HasPorts() {
		binary.BigEndian.PutUint16(b, p.SourcePort.Number)
		binary.BigEndian.PutUint16(b[2:], p.DestinationPort.Number)
	}
	return b
}

// vxlan encodes the header and the frame that it carries (RFC 7348 section 5).
func vxlan(t *packet.Tunnel) []byte {
	const known = 1 << 27 // there is a network identifier
	b := binary.BigEndian.AppendUint32(nil, known)
	b = binary.BigEndian.AppendUint32(b, t.VNI<<8)
	return append(b, encode(&t.Inner, true)...)
}

// icmp returns a query with its identifier, or an error with the beginning of the packet that it is about (RFC 792, RFC 4443).
func icmp(p *packet.Packet) []byte {
	b := make([]byte, 8)
	b[0], b[1] = p.Type, p.Code
	if p.About == nil {
		binary.BigEndian.PutUint16(b[4:], p.SourcePort.Number)
		b[7] = 1 // sequence number
		return b
	}
	quoted := ip(&packet.Packet{Tuple: *p.About, TTL: 64})
	header := 20
	if p.IsIPv6() {
		header = 40
	}
	return append(b, quoted[:min(len(quoted), header+8)]...)
}

// fill puts the checksum into the transport header, over the payload and, ICMP for IPv4 aside, the pseudo header.
func fill(p *packet.Packet, payload []byte) {
	at, known := map[packet.Protocol]int{packet.TCP: 16, packet.UDP: 6, packet.ICMP: 2, packet.ICMPv6: 2}[p.Protocol]
	if !known || p.Offset > 0 || p.More || len(payload) < at+2 {
		return
	}
	pseudo := uint32(0)
	if p.Protocol != packet.ICMP {
		pseudo = add(add(0, p.Source.AsSlice()), p.Destination.AsSlice()) + uint32(p.Protocol) + uint32(len(payload))
	}
	check := sum(payload, pseudo)
	if check == 0 && p.Protocol == packet.UDP {
		check = 0xffff // 0 says that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(payload[at:], check)
}

// sum returns the internet checksum (RFC 1071).
func sum(b []byte, start uint32) uint16 {
	s := add(start, b)
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

func add(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}
