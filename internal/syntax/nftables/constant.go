package nftables

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// symbols are the names that nft has for numbers, by datatype. Sources: nftables src/datatype.c, src/ct.c, src/meta.c, src/proto.c and
// src/fib.c. The states of connections have the bits of package packet.
var symbols = map[string]map[string]uint64{
	"inet_proto": {"ip": 0, "icmp": 1, "igmp": 2, "ipencap": 4, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51, "icmpv6": 58,
		"ipv6-icmp": 58, "sctp": 132, "udplite": 136, "comp": 108, "vrrp": 112, "ipcomp": 108, "ospf": 89, "pim": 103, "rsvp": 46, "ipip": 4,
		"ipv6": 41},
	"ct_state": {"invalid": uint64(packet.Invalid), "established": uint64(packet.Established), "related": uint64(packet.Related),
		"new": uint64(packet.New), "untracked": uint64(packet.Untracked)},
	"ct_status":  {"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512},
	"ct_dir":     {"original": 0, "reply": 1},
	"nf_proto":   {"ipv4": 2, "arp": 3, "bridge": 7, "ipv6": 10},
	"ether_type": {"ip": 0x0800, "arp": 0x0806, "ip6": 0x86dd, "8021q": 0x8100, "8021ad": 0x88a8, "vlan": 0x8100},
	"pkt_type":   {"host": 0, "unicast": 0, "broadcast": 1, "multicast": 2, "other": 3},
	"fib_addrtype": {"unspec": 0, "unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5, "blackhole": 6, "unreachable": 7,
		"prohibit": 8},
	"icmp_type": {"echo-reply": 0, "destination-unreachable": 3, "source-quench": 4, "redirect": 5, "echo-request": 8,
		"router-advertisement": 9, "router-solicitation": 10, "time-exceeded": 11, "parameter-problem": 12, "timestamp-request": 13,
		"timestamp-reply": 14, "info-request": 15, "info-reply": 16, "address-mask-request": 17, "address-mask-reply": 18},
	"icmp_code": {"net-unreachable": 0, "host-unreachable": 1, "prot-unreachable": 2, "port-unreachable": 3, "frag-needed": 4,
		"net-prohibited": 9, "host-prohibited": 10, "admin-prohibited": 13},
	"icmpv6_type": {"destination-unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4, "echo-request": 128,
		"echo-reply": 129, "mld-listener-query": 130, "mld-listener-report": 131, "mld-listener-done": 132, "mld-listener-reduction": 132,
		"nd-router-solicit": 133, "nd-router-advert": 134, "nd-neighbor-solicit": 135, "nd-neighbor-advert": 136, "nd-redirect": 137,
		"router-renumbering": 138, "ind-neighbor-solicit": 141, "ind-neighbor-advert": 142, "mld2-listener-report": 143},
	"icmpv6_code": {"no-route": 0, "admin-prohibited": 1, "addr-unreachable": 3, "port-unreachable": 4, "policy-fail": 5, "reject-route": 6},
	"tcp_flag":    {"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ecn": 64, "cwr": 128},
	"dscp": {"cs0": 0, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56, "df": 0, "be": 0, "lephb": 1, "af11": 10,
		"af12": 12, "af13": 14, "af21": 18, "af22": 20, "af23": 22, "af31": 26, "af32": 28, "af33": 30, "af41": 34, "af42": 36, "af43": 38,
		"va": 44, "ef": 46},
	"ecn":        {"not-ect": 0, "ect1": 1, "ect0": 2, "ce": 3}, // RFC 3168: ECN-capable transport
	"arp_op":     {"request": 1, "reply": 2, "rrequest": 3, "rreply": 4, "inrequest": 8, "inreply": 9, "nak": 10},
	"iface_type": {"ether": 1, "ppp": 512, "ipip": 768, "ipip6": 769, "loopback": 772, "sit": 776, "ipgre": 778},
	"devgroup":   {"default": 0},
	"classid":    {"none": 0, "root": 0xffffffff},
	"uid":        {"root": 0},
	"gid":        {"root": 0},
}

// spans reads a constant of the datatypes, a span for each: an address, a number, a name, a prefix, a range, a list of flags, a
// concatenation. "*" and what it does not understand give false.
func spans(n *Node, types []string) ([]netfilter.Span, bool) {
	if name, inner, ok := n.singleMember(); ok {
		switch name {
		case "elem":
			if v := inner.Get("val"); v != nil {
				return spans(v, types)
			}
			return nil, false
		case "concat":
			if len(inner.elements()) != len(types) {
				return nil, false
			}
			var all []netfilter.Span
			for i := range inner.elements() {
				s, ok := span(&inner.elements()[i], types[i])
				if !ok {
					return nil, false
				}
				all = append(all, s)
			}
			return all, true
		}
	}
	if len(types) != 1 {
		return nil, false
	}
	s, ok := span(n, types[0])
	return []netfilter.Span{s}, ok
}

// span reads a constant of one datatype.
func span(n *Node, datatype string) (netfilter.Span, bool) {
	name, inner, ok := n.singleMember()
	switch {
	case ok && name == "prefix":
		return prefix(inner, datatype)
	case ok && name == "range" && len(inner.elements()) == 2:
		low, ok1 := value(&inner.elements()[0], datatype)
		high, ok2 := value(&inner.elements()[1], datatype)
		return netfilter.Span{Low: low, High: high}, ok1 && ok2
	case ok && name == "|":
		return flags(inner.elements(), datatype)
	case n.Kind == Array:
		return flags(n.elements(), datatype)
	case n.Kind == String && (datatype == "ifname" || datatype == "iface_index"):
		return ParseLinkName(n.Text, datatype)
	}
	v, ok := value(n, datatype)
	return netfilter.Exactly(v), ok
}

// ParseLinkName reads an interface's name (datatype "ifname" or "iface_index"); a star at the end stands for any rest, unless a backslash
// is in front of it.
func ParseLinkName(text, datatype string) (netfilter.Span, bool) {
	if datatype == "iface_index" {
		if _, err := strconv.Atoi(text); err == nil {
			return netfilter.Span{}, text == "0"
		}
		return netfilter.Exactly(netfilter.NameValue(text)), true
	}
	if literal, ok := strings.CutSuffix(text, `\*`); ok {
		return netfilter.Exactly(netfilter.NameValue(literal + "*")), true
	}
	if start, ok := strings.CutSuffix(text, "*"); ok {
		if len(start) > 15 {
			return netfilter.Span{}, false
		}
		return netfilter.Wildcard(netfilter.NameValue(start), netfilter.NameValue(strings.Repeat("\xff", len(start)))), true
	}
	return netfilter.Exactly(netfilter.NameValue(text)), len(text) <= 15
}

func prefix(n *Node, datatype string) (netfilter.Span, bool) {
	a, l := n.Get("addr"), n.number("len")
	if a == nil {
		return netfilter.Span{}, false
	}
	v, ok := value(a, datatype)
	width := widths[datatype]
	if !ok || width == 0 || l > uint64(width) {
		return netfilter.Span{}, false
	}
	host := lowBits(width - int(l))
	if v.Hi&host.Hi != 0 || v.Lo&host.Lo != 0 {
		// nft writes tests of bits in this form too: "& mask == value", which never holds where the value has bits that the mask has not.
		return netfilter.Span{Low: v, High: minusOne(v)}, true
	}
	return netfilter.Wildcard(v, netfilter.Value{Hi: ^host.Hi, Lo: ^host.Lo}), true
}

// minusOne returns the number before v, which is not 0.
func minusOne(v netfilter.Value) netfilter.Value {
	if v.Lo == 0 {
		return netfilter.Value{Hi: v.Hi - 1, Lo: ^uint64(0)}
	}
	return netfilter.Value{Hi: v.Hi, Lo: v.Lo - 1}
}

// lowBits returns a number with the n lowest bits set.
func lowBits(n int) netfilter.Value {
	if n > 64 {
		return netfilter.Value{Hi: 1<<(n-64) - 1, Lo: ^uint64(0)}
	}
	return netfilter.Value{Lo: 1<<n - 1}
}

// widths are those of the datatypes that have prefixes, in bits.
var widths = map[string]int{"ipv4_addr": 32, "ipv6_addr": 128, "ether_addr": 48, "inet_service": 16, "mark": 32, "integer": 32,
	"inet_proto": 8}

// flags reads a list of flags, which are set together.
func flags(items []Node, datatype string) (netfilter.Span, bool) {
	var all uint64
	for i := range items {
		s, ok := span(&items[i], datatype)
		if !ok || !s.Certain() || s.Low.Hi != 0 {
			return netfilter.Span{}, false
		}
		all |= s.Low.Lo
	}
	return netfilter.Number(all), true
}

// value reads a single value.
func value(n *Node, datatype string) (netfilter.Value, bool) {
	switch n.Kind {
	case Number:
		v, err := strconv.ParseUint(n.Text, 10, 64)
		return netfilter.Value{Lo: v}, err == nil
	case Bool:
		if n.Text == "true" {
			return netfilter.Value{Lo: 1}, true
		}
		return netfilter.Value{}, true
	case String:
		return ParseValue(n.Text, datatype)
	}
	return netfilter.Value{}, false
}

// ParseValue reads one word of a datatype by nft's name for it ("ipv4_addr", "ether_addr", "inet_service", …); false for what it is not.
func ParseValue(text, datatype string) (netfilter.Value, bool) {
	switch datatype {
	case "ipv4_addr", "ipv6_addr":
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4() != (datatype == "ipv4_addr") {
			return netfilter.Value{}, false
		}
		return netfilter.AddressValue(a), true
	case "ether_addr":
		return macValue(text)
	case "ifname", "iface_index":
		s, ok := ParseLinkName(text, datatype)
		return s.Low, ok && s.Certain()
	case "classid":
		if major, minor, ok := strings.Cut(text, ":"); ok {
			hi, err1 := strconv.ParseUint("0"+major, 16, 16)
			lo, err2 := strconv.ParseUint("0"+minor, 16, 16)
			return netfilter.Value{Lo: hi<<16 | lo}, err1 == nil && err2 == nil
		}
	}
	if v, ok := symbols[datatype][text]; ok {
		return netfilter.Value{Lo: v}, true
	}
	v, err := strconv.ParseUint(text, 0, 64)
	return netfilter.Value{Lo: v}, err == nil
}

// macValue reads six bytes in hexadecimal with colons between them; leading zeros may be left out.
func macValue(text string) (netfilter.Value, bool) {
	parts := strings.Split(text, ":")
	if len(parts) != 6 {
		return netfilter.Value{}, false
	}
	var b [8]byte
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			return netfilter.Value{}, false
		}
		b[2+i] = byte(n)
	}
	return netfilter.Value{Lo: binary.BigEndian.Uint64(b[:])}, true
}
