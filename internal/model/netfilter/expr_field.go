package netfilter

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Expr is a value that an nft rule computes from the packet: a field, a mark, a hash, what a map gives.
type Expr interface {
	// value appends what the expression gives, one span for each of its fields. The answer is no where the packet has no such value (the
	// rule does not apply then), and maybe where that is not known; the spans then are what it would be.
	value(c *Context, dst []Span) ([]Span, truth)
	// String is the value in plain words: "destination port".
	String() string
}

// Field is a field of the packet, or something that the kernel keeps beside it, as nft sees it. Fields are made by Payload, Meta, Conntrack
// and UnknownField.
type Field struct {
	Words  string // in plain words
	Type   string // nft's datatype: "ipv4_addr", "inet_service", "mark", …
	Bits   int    // its width; 0 where it varies
	get    func(c *Context) (Span, truth)
	key    KeyField
	keyed  bool
	open   Value // bits that are never known; the others of a span's lower end are
	tracks truth // asking for it makes the kernel track connections
}

func (f *Field) value(c *Context, dst []Span) ([]Span, truth) {
	s, t := f.get(c)
	return append(dst, s), t
}

func (f *Field) String() string { return f.Words }

func (f *Field) tracking() truth { return f.tracks }

// UnknownField returns a field that nothing here knows: it can have any value, or be absent.
func UnknownField(text, datatype string, tracking Tracking) *Field {
	return &Field{Words: text, Type: datatype, tracks: tracking.truth(), get: func(*Context) (Span, truth) { return Span{High: AllOnes}, maybe }}
}

// anything returns a field of so many bits that the packet has, but whose value is not known.
func anything(bits int) Span { return Span{High: lowBits(bits)} }

func number(n uint64) (Span, truth) { return Number(n), yes }

func absent() (Span, truth) { return Span{}, no }

// addressSpan returns an address, which need not be known.
func addressSpan(a netip.Addr, ipv6 bool) (Span, truth) {
	switch {
	case !packet.IsUnknown(a):
		return Exactly(AddressValue(a)), yes
	case ipv6:
		return anything(128), yes
	}
	return anything(32), yes
}

func portSpan(p packet.Port) (Span, truth) {
	low, high := p.Span()
	return Span{Value{Lo: uint64(low)}, Value{Lo: uint64(high)}}, yes
}

func macSpan(m packet.MAC) (Span, truth) {
	if m.IsZero() {
		return anything(48), yes
	}
	return Exactly(MACValue(m)), yes
}

// payloads are the header fields by protocol and name as nft's JSON has them. A field is absent from packets of other protocols, as the
// tests that nft puts in front of it (payload dependencies) say.
var payloads = map[[2]string]*Field{}

// Payload returns a header field by nft's names, for example "ip" "daddr"; false where it is not known.
func Payload(protocol, field string) (*Field, bool) {
	f, ok := payloads[[2]string{protocol, field}]
	return f, ok
}

func addPayload(protocol, field, words, datatype string, bits int, get func(c *Context) (Span, truth)) *Field {
	f := &Field{Words: words, Type: datatype, Bits: bits, get: get}
	payloads[[2]string{protocol, field}] = f
	return f
}

func (f *Field) withKey(k KeyField) { f.key, f.keyed = k, true }

// guardGetter returns a getter whose value is missing unless has holds.
func guardGetter(has func(p *packet.Packet) bool, get func(p *packet.Packet) (Span, truth)) func(c *Context) (Span, truth) {
	return func(c *Context) (Span, truth) {
		if !has(c.Packet) {
			return absent()
		}
		return get(c.Packet)
	}
}

func isARP(p *packet.Packet) bool  { return p.Frame.ARP != nil }
func isIPv4(p *packet.Packet) bool { return p.Frame.ARP == nil && p.Destination.Is4() }
func isIPv6(p *packet.Packet) bool { return p.Frame.ARP == nil && p.Destination.Is6() }
func isIP(p *packet.Packet) bool   { return p.Frame.ARP == nil && p.Destination.IsValid() }

// carries reports whether the packet has the header of a protocol: further fragments do not.
func carries(protocol packet.Protocol) func(p *packet.Packet) bool {
	return func(p *packet.Packet) bool { return isIP(p) && p.Protocol == protocol && p.Offset == 0 }
}

func hasTransport(p *packet.Packet) bool { return isIP(p) && p.Offset == 0 }

func unknownBits(bits int) func(p *packet.Packet) (Span, truth) {
	return func(*packet.Packet) (Span, truth) { return anything(bits), yes }
}

func constant(n uint64) func(p *packet.Packet) (Span, truth) {
	return func(*packet.Packet) (Span, truth) { return number(n) }
}

func init() {
	addFramePayloads()
	addIPPayloads()
	addTransportPayloads()
}

func addFramePayloads() {
	addPayload("ether", "saddr", "frame's source", "ether_addr", 48, func(c *Context) (Span, truth) {
		return macSpan(c.Packet.Frame.Source)
	}).withKey(KeyEtherSource)
	addPayload("ether", "daddr", "frame's destination", "ether_addr", 48, func(c *Context) (Span, truth) {
		return macSpan(c.Packet.Frame.Destination)
	}).withKey(KeyEtherDestination)
	addPayload("ether", "type", "frame's type", "ether_type", 16, etherType)
	arp := func(field, words, datatype string, bits int, get func(a *packet.ARP) (Span, truth)) {
		addPayload("arp", field, words, datatype, bits, guardGetter(isARP, func(p *packet.Packet) (Span, truth) { return get(p.Frame.ARP) }))
	}
	arp("htype", "ARP hardware type", "integer", 16, func(*packet.ARP) (Span, truth) { return number(1) })
	arp("ptype", "ARP protocol", "ether_type", 16, func(*packet.ARP) (Span, truth) { return number(uint64(packet.EtherIPv4)) })
	arp("hlen", "ARP hardware address length", "integer", 8, func(*packet.ARP) (Span, truth) { return number(6) })
	arp("plen", "ARP protocol address length", "integer", 8, func(*packet.ARP) (Span, truth) { return number(4) })
	arp("operation", "ARP operation", "arp_op", 16, func(a *packet.ARP) (Span, truth) {
		if a.Reply {
			return number(2)
		}
		return number(1)
	})
	arp("saddr ether", "ARP sender's link address", "ether_addr", 48, func(a *packet.ARP) (Span, truth) { return macSpan(a.SenderMAC) })
	arp("daddr ether", "ARP target's link address", "ether_addr", 48, func(a *packet.ARP) (Span, truth) {
		return Exactly(MACValue(a.TargetMAC)), yes // zero in requests
	})
	arp("saddr ip", "ARP sender", "ipv4_addr", 32, func(a *packet.ARP) (Span, truth) { return addressSpan(a.Sender, false) })
	arp("daddr ip", "ARP target", "ipv4_addr", 32, func(a *packet.ARP) (Span, truth) { return addressSpan(a.Target, false) })
}

// etherType returns the type of the payload, also where the packet has no frame yet (skb->protocol).
func etherType(c *Context) (Span, truth) {
	switch p := c.Packet; {
	case p.Frame.ARP != nil:
		return number(uint64(packet.EtherARP))
	case isIPv4(p):
		return number(uint64(packet.EtherIPv4))
	case isIPv6(p):
		return number(uint64(packet.EtherIPv6))
	case p.Frame.Type != 0:
		return number(uint64(p.Frame.Type))
	}
	return anything(16), yes
}

// dontFragment is the flag of the IPv4 header, which the packets of walks do not have.
const dontFragment = 0x4000

func addIPPayloads() {
	ip := func(field, words, datatype string, bits int, get func(p *packet.Packet) (Span, truth)) *Field {
		return addPayload("ip", field, words, datatype, bits, guardGetter(isIPv4, get))
	}
	ip6 := func(field, words, datatype string, bits int, get func(p *packet.Packet) (Span, truth)) *Field {
		return addPayload("ip6", field, words, datatype, bits, guardGetter(isIPv6, get))
	}
	source := func(p *packet.Packet) (Span, truth) { return addressSpan(p.Source, p.IsIPv6()) }
	destination := func(p *packet.Packet) (Span, truth) { return addressSpan(p.Destination, p.IsIPv6()) }
	ip("saddr", "source", "ipv4_addr", 32, source).withKey(KeySource)
	ip("daddr", "destination", "ipv4_addr", 32, destination).withKey(KeyDestination)
	ip6("saddr", "source", "ipv6_addr", 128, source).withKey(KeySource)
	ip6("daddr", "destination", "ipv6_addr", 128, destination).withKey(KeyDestination)
	protocol := func(p *packet.Packet) (Span, truth) { return number(uint64(p.Protocol)) }
	ip("protocol", "protocol", "inet_proto", 8, protocol).withKey(KeyProtocol)
	// Extension headers are not modelled: the next header is the transport's.
	ip6("nexthdr", "protocol", "inet_proto", 8, protocol).withKey(KeyProtocol)
	ip("version", "IP version", "integer", 4, constant(4))
	ip6("version", "IP version", "integer", 4, constant(6))
	ttl := func(p *packet.Packet) (Span, truth) {
		if p.SomeTTL {
			return anything(8), yes
		}
		return number(uint64(p.TTL))
	}
	ip("ttl", "TTL", "integer", 8, ttl)
	ip6("hoplimit", "hop limit", "integer", 8, ttl)
	dscp := func(p *packet.Packet) (Span, truth) { return number(uint64(p.TOS >> 2)) }
	ecn := func(p *packet.Packet) (Span, truth) { return number(uint64(p.TOS & 3)) }
	ip("dscp", "DSCP", "dscp", 6, dscp)
	ip6("dscp", "DSCP", "dscp", 6, dscp)
	ip("ecn", "ECN", "ecn", 2, ecn)
	ip6("ecn", "ECN", "ecn", 2, ecn)
	ip("tos", "TOS", "integer", 8, func(p *packet.Packet) (Span, truth) { return number(uint64(p.TOS)) })
	ip("length", "length", "integer", 16, func(p *packet.Packet) (Span, truth) { return lengthSpan(p.Length, 0) })
	ip6("length", "payload length", "integer", 16, func(p *packet.Packet) (Span, truth) { return lengthSpan(p.Length, 40) })
	ip("hdrlength", "IP header's length in words", "integer", 4, constant(5))
	ip("id", "IP identification", "integer", 16, unknownBits(16))
	ip("checksum", "IP checksum", "integer", 16, unknownBits(16))
	ip("frag-off", "fragment flags and offset", "integer", 16, func(p *packet.Packet) (Span, truth) {
		n := uint64(p.Offset / 8)
		if p.More {
			n |= 0x2000
		}
		return Span{Value{Lo: n}, Value{Lo: n | dontFragment}}, yes
	}).open = Value{Lo: dontFragment}
	ip6("flowlabel", "flow label", "integer", 20, unknownBits(20))
}

// lengthSpan returns a length in bytes less the header's, if it is known.
func lengthSpan(length, header int) (Span, truth) {
	if length == 0 {
		return anything(16), yes
	}
	return number(uint64(max(length-header, 0)))
}

func addTransportPayloads() {
	sourcePort := func(p *packet.Packet) (Span, truth) { return portSpan(p.SourcePort) }
	destinationPort := func(p *packet.Packet) (Span, truth) { return portSpan(p.DestinationPort) }
	for name, protocol := range map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP, "sctp": packet.SCTP, "dccp": packet.DCCP,
		"udplite": packet.UDPLite} {
		has := carries(protocol)
		addPayload(name, "sport", "source port", "inet_service", 16, guardGetter(has, sourcePort)).withKey(KeySourcePort)
		addPayload(name, "dport", "destination port", "inet_service", 16, guardGetter(has, destinationPort)).withKey(KeyDestinationPort)
	}
	// Where the protocol has no ports, these are other bytes of its header.
	th := func(field, words string, get func(p *packet.Packet) (Span, truth)) *Field {
		return addPayload("th", field, words, "inet_service", 16, guardGetter(hasTransport, func(p *packet.Packet) (Span, truth) {
			if !p.Protocol.HasPorts() {
				return anything(16), yes
			}
			return get(p)
		}))
	}
	th("sport", "source port", sourcePort)
	th("dport", "destination port", destinationPort)

	tcp := carries(packet.TCP)
	addPayload("tcp", "flags", "TCP flags", "tcp_flag", 8, guardGetter(tcp, func(p *packet.Packet) (Span, truth) {
		return number(uint64(p.TCPFlags))
	}))
	for field, bits := range map[string]int{"sequence": 32, "ackseq": 32, "doff": 4, "window": 16, "checksum": 16, "urgptr": 16} {
		addPayload("tcp", field, "TCP "+field, "integer", bits, guardGetter(tcp, unknownBits(bits)))
	}
	addPayload("udp", "checksum", "UDP checksum", "integer", 16, guardGetter(carries(packet.UDP), unknownBits(16)))
	addPayload("udp", "length", "UDP length", "integer", 16, guardGetter(carries(packet.UDP), func(p *packet.Packet) (Span, truth) {
		if p.IsIPv6() {
			return lengthSpan(p.Length, 40)
		}
		return lengthSpan(p.Length, 20) // packets of walks have no IP options
	}))
	for name, protocol := range map[string]packet.Protocol{"icmp": packet.ICMP, "icmpv6": packet.ICMPv6} {
		has := carries(protocol)
		addPayload(name, "type", name+" type", name+"_type", 8, guardGetter(has, func(p *packet.Packet) (Span, truth) { return number(uint64(p.Type)) }))
		addPayload(name, "code", name+" code", name+"_code", 8, guardGetter(has, func(p *packet.Packet) (Span, truth) { return number(uint64(p.Code)) }))
		addPayload(name, "id", name+" identifier", "integer", 16, guardGetter(has, func(p *packet.Packet) (Span, truth) {
			switch p.Type {
			case 0, 8, 128, 129: // echo
				return portSpan(p.SourcePort)
			}
			return anything(16), yes
		}))
		for field, bits := range map[string]int{"checksum": 16, "sequence": 16, "mtu": 16, "gateway": 32} {
			addPayload(name, field, name+" "+field, "integer", bits, guardGetter(has, unknownBits(bits)))
		}
	}
}
