package netfilter

import (
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// maxSetDepth bounds lists of lists; ipset allows none at all.
const maxSetDepth = 4

// matches reports whether an ipset holds fields of the packet, as "-m set --match-set" asks. sources tells for each part of the set's kind
// whether it is the packet's source ("src") or its destination ("dst"). With returnNoMatch the set's exceptions match instead of its other
// elements (ip_set_test in net/netfilter/ipset/ip_set_core.c).
func (s *Set) matches(c *Context, sources []bool, returnNoMatch bool) truth {
	return s.test(c, sources, returnNoMatch, 0)
}

func (s *Set) test(c *Context, sources []bool, returnNoMatch bool, depth int) truth {
	if s.Kind == "list:set" {
		return s.testList(c, sources, returnNoMatch, depth)
	}
	key, t := s.packetKey(c, sources)
	if t != yes {
		return t
	}
	e, found := s.Lookup(key)
	switch found {
	case CannotTell:
		return maybe
	case NotFound:
		return no
	}
	exceptions := strings.Contains(s.Kind, "net") // only these types have them
	return truthOf(e.NoMatch == (returnNoMatch && exceptions))
}

// testList tries the members (list_set_ktest in net/netfilter/ipset/ip_set_list_set.c).
func (s *Set) testList(c *Context, sources []bool, returnNoMatch bool, depth int) truth {
	if depth >= maxSetDepth {
		return maybe
	}
	holds := no
	for i := range s.Elements {
		member, ok := c.ipSet(s.Elements[i].Set)
		if !ok {
			holds = holds.or(maybe)
			continue
		}
		if holds = holds.or(member.test(c, sources, returnNoMatch, depth+1)); holds == yes {
			break
		}
	}
	return holds
}

// packetKey makes the key that a packet has in a set. The answer is no where the packet has none: it is of another family, of a protocol
// without what the set holds, or the test names fewer fields than the set has (ip_set_test in net/netfilter/ipset/ip_set_core.c and the
// kadt function of each type).
func (s *Set) packetKey(c *Context, sources []bool) ([]Span, truth) {
	_, kind, _ := strings.Cut(s.Kind, ":")
	parts := strings.Split(kind, ",")
	if len(sources) < len(parts) {
		return nil, no
	}
	key := make([]Span, 0, len(s.Fields))
	for i, part := range parts {
		var t truth
		switch part {
		case "ip", "net":
			key, t = appendSetAddress(c, key, sources[i], len(key) < len(s.Fields) && s.Fields[len(key)] == "ipv6_addr")
		case "port":
			key, t = appendSetPort(c, key, sources[i], s.Kind == "bitmap:port")
		case "mac":
			key, t = appendSetMAC(c, key, sources[i])
		case "iface":
			key, t = appendSetLink(c, key, sources[i])
		case "mark":
			key, t = append(key, Number(uint64(c.Packet.Mark))), yes
		default:
			return nil, maybe
		}
		if t != yes {
			return nil, t
		}
	}
	for i, mask := range s.Masks {
		if i >= len(key) || mask == AllOnes {
			continue
		}
		if key[i].Certain() {
			key[i] = Exactly(key[i].Low.and(mask))
		} else {
			key[i] = Span{High: mask}
		}
	}
	return key, yes
}

func appendSetAddress(c *Context, key []Span, source, ipv6 bool) ([]Span, truth) {
	a := c.Packet.Destination
	if source {
		a = c.Packet.Source
	}
	switch {
	case c.Packet.IsIPv6() != ipv6:
		return nil, no
	case !packet.IsUnknown(a):
		return append(key, Exactly(AddressValue(a))), yes
	case ipv6:
		return append(key, Span{High: AllOnes}), yes
	}
	return append(key, Span{High: lowBits(32)}), yes
}

// appendSetPort appends protocol and port (ip_set_get_ip4_port and ip_set_get_ip6_port in net/netfilter/ipset/ip_set_getport.c).
func appendSetPort(c *Context, key []Span, source, alone bool) ([]Span, truth) {
	p := c.Packet
	var port Span
	switch protocol := p.Protocol; protocol {
	case packet.TCP, packet.UDP, packet.SCTP, packet.UDPLite:
		if alone && protocol != packet.TCP && protocol != packet.UDP {
			return nil, no
		}
		end := p.DestinationPort
		if source {
			end = p.SourcePort
		}
		low, high := end.Span()
		port = Span{Value{Lo: uint64(low)}, Value{Lo: uint64(high)}}
	case packet.ICMP, packet.ICMPv6:
		if alone {
			return nil, no
		}
		port = Number(uint64(p.Type)<<8 | uint64(p.Code))
	default:
		if alone {
			return nil, no
		}
		return append(key, Number(uint64(protocol)), Number(0)), yes
	}
	if p.Offset > 0 {
		return nil, no
	}
	if alone {
		return append(key, port), yes
	}
	return append(key, Number(uint64(p.Protocol)), port), yes
}

// appendSetMAC appends an address of the frame that the packet came in by; packets of this machine have none.
func appendSetMAC(c *Context, key []Span, source bool) ([]Span, truth) {
	mac := c.Packet.Frame.Destination
	if source {
		mac = c.Packet.Frame.Source
	}
	switch {
	case c.Packet.In == "lo", c.Packet.In == "" && !c.inUnknown():
		return nil, no
	case mac.IsZero():
		return append(key, Span{High: lowBits(48)}), yes
	}
	return append(key, Exactly(MACValue(mac))), yes
}

func appendSetLink(c *Context, key []Span, source bool) ([]Span, truth) {
	name, unknown := c.Packet.Out, c.outUnknown()
	if source {
		name, unknown = c.Packet.In, c.inUnknown()
	}
	switch {
	case unknown:
		return append(key, Span{High: AllOnes}), yes
	case name == "":
		return nil, no
	}
	return append(key, Exactly(NameValue(name))), yes
}
