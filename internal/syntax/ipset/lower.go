package ipset

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// Lower gives the sets their meaning, by name. An element that is not understood may hold any packet. The error tells of types that ipset
// does not have.
func Lower(sets []Set) (map[string]*netfilter.Set, error) {
	lowered := make(map[string]*netfilter.Set, len(sets))
	for i := range sets {
		s, err := lower(&sets[i])
		if err != nil {
			return nil, fmt.Errorf("ipset %s: %w", sets[i].Name, err)
		}
		lowered[s.Name] = s
	}
	return lowered, nil
}

// lowerer reads the elements of one set.
type lowerer struct {
	parts    []string // of the type
	ipv6     bool
	netmask  int  // -1 for none
	alone    bool // bitmap:port, whose ports have no protocol
	fields   int
	wildcard bool // the present element's interface
}

func lower(s *Set) (*netfilter.Set, error) {
	lowered := &netfilter.Set{Name: s.Name, Kind: s.Type}
	if s.Type == "list:set" {
		for _, m := range s.Members {
			lowered.Elements = append(lowered.Elements, netfilter.Element{Set: m.Element})
		}
		return lowered, nil
	}
	method, kind, ok := strings.Cut(s.Type, ":")
	if !ok || method != "hash" && method != "bitmap" {
		return nil, fmt.Errorf("unknown type %q", s.Type)
	}
	family, _ := option(s.Options, "family")
	l := lowerer{parts: strings.Split(kind, ","), ipv6: family == "inet6", netmask: -1, alone: s.Type == "bitmap:port"}
	for _, part := range l.parts {
		names := map[string][]string{"ip": {l.address()}, "net": {l.address()}, "port": {"inet_proto", "inet_service"}, "mac": {"ether_addr"},
			"iface": {"ifname"}, "mark": {"mark"}}[part]
		if names == nil {
			return nil, fmt.Errorf("unknown type %q", s.Type)
		}
		if l.alone {
			names = names[1:]
		}
		lowered.Fields = append(lowered.Fields, names...)
	}
	l.fields = len(lowered.Fields)
	if err := l.masks(s, lowered); err != nil {
		return nil, err
	}
	lowered.Elements = make([]netfilter.Element, 0, len(s.Members))
	for i := range s.Members {
		lowered.Elements = append(lowered.Elements, l.element(&s.Members[i]))
	}
	return lowered, nil
}

func (l *lowerer) address() string {
	if l.ipv6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

// masks reads the options that make bits of the packet's fields not count.
func (l *lowerer) masks(s *Set, lowered *netfilter.Set) error {
	set := func(field string, mask netfilter.Value) {
		if lowered.Masks == nil {
			for range lowered.Fields {
				lowered.Masks = append(lowered.Masks, netfilter.AllOnes)
			}
		}
		for i, f := range lowered.Fields {
			if f == field {
				lowered.Masks[i] = mask
			}
		}
	}
	if text, ok := option(s.Options, "markmask"); ok {
		n, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return fmt.Errorf("no markmask: %q", text)
		}
		set("mark", netfilter.Value{Lo: n})
	}
	if text, ok := option(s.Options, "bitmask"); ok {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is6() != l.ipv6 {
			return fmt.Errorf("no bitmask: %q", text)
		}
		set(l.address(), netfilter.AddressValue(a))
	}
	if text, ok := option(s.Options, "netmask"); ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > l.bits() {
			return fmt.Errorf("no netmask: %q", text)
		}
		l.netmask = n
		set(l.address(), netfilter.PrefixMask(n, l.ipv6))
	}
	return nil
}

func (l *lowerer) bits() int {
	if l.ipv6 {
		return 128
	}
	return 32
}

func (l *lowerer) element(m *Member) netfilter.Element {
	_, noMatch := option(m.Options, "nomatch")
	_, l.wildcard = option(m.Options, "wildcard")
	e := netfilter.Element{NoMatch: noMatch, Key: make([]netfilter.Span, 0, l.fields)}
	if comment, ok := option(m.Options, "comment"); ok {
		e.Comment = strings.TrimPrefix(comment, "\x00")
	}
	texts := strings.Split(m.Element, ",")
	for i, part := range l.parts {
		var spans []netfilter.Span
		ok := false
		switch {
		case i < len(texts):
			spans, ok = l.part(part, texts[i])
		case part == "mac": // bitmap:ip,mac: any
			spans, ok = []netfilter.Span{{High: netfilter.AllOnes}}, true
		}
		if !ok {
			spans = unknown(part, l.alone)
		}
		e.Unsure = e.Unsure || !ok
		e.Key = append(e.Key, spans...)
	}
	e.Unsure = e.Unsure || len(texts) > len(l.parts)
	return e
}

// unknown returns spans that hold everything.
func unknown(part string, alone bool) []netfilter.Span {
	all := []netfilter.Span{{High: netfilter.AllOnes}}
	if part == "port" && !alone {
		return append(all, all[0])
	}
	return all
}

// part reads one part of an element.
func (l *lowerer) part(part, text string) ([]netfilter.Span, bool) {
	var s netfilter.Span
	ok := false
	switch part {
	case "ip", "net":
		s, ok = l.addresses(text)
	case "port":
		if l.alone {
			s, ok = ports(text)
			break
		}
		return protocolPort(text)
	case "mac":
		m, err := packet.ParseMAC(text)
		s, ok = netfilter.Exactly(netfilter.MACValue(m)), err == nil
	case "iface":
		s, ok = l.link(text)
	case "mark":
		n, err := strconv.ParseUint(text, 0, 32)
		s, ok = netfilter.Number(n), err == nil
	}
	return []netfilter.Span{s}, ok
}

// addresses reads ADDRESS, ADDRESS/LENGTH or ADDRESS-ADDRESS.
func (l *lowerer) addresses(text string) (netfilter.Span, bool) {
	if low, high, ok := strings.Cut(text, "-"); ok {
		a, ok1 := l.one(low)
		b, ok2 := l.one(high)
		return netfilter.Span{Low: netfilter.AddressValue(a), High: netfilter.AddressValue(b)}, ok1 && ok2
	}
	address, length, ok := strings.Cut(text, "/")
	bits := l.bits()
	if ok {
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > bits {
			return netfilter.Span{}, false
		}
		bits = n
	}
	a, known := l.one(address)
	if !known {
		return netfilter.Span{}, false
	}
	if l.netmask >= 0 && l.netmask < bits {
		// The packet's address is compared under the mask, too.
		a = netip.PrefixFrom(a, l.netmask).Masked().Addr()
	}
	return prefix(a, bits), true
}

func (l *lowerer) one(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	ok := err == nil && a.Zone() == "" && a.Is6() == l.ipv6
	if !ok {
		return netip.Addr{}, false
	}
	return a, true
}

// prefix returns the span of a prefix.
func prefix(a netip.Addr, bits int) netfilter.Span {
	mask := netfilter.PrefixMask(bits, a.Is6())
	low := netfilter.AddressValue(a)
	low = netfilter.Value{Hi: low.Hi & mask.Hi, Lo: low.Lo & mask.Lo}
	high := netfilter.Value{Hi: low.Hi | ^mask.Hi, Lo: low.Lo | ^mask.Lo}
	if a.Is4() {
		high = netfilter.Value{Lo: high.Lo & 0xffffffff}
	}
	return netfilter.Span{Low: low, High: high}
}

// link reads an interface. That of a bridge's port ("physdev:") is never looked at by iptables' match, as far as one can tell.
func (l *lowerer) link(name string) (netfilter.Span, bool) {
	if strings.HasPrefix(name, "physdev:") || len(name) > 15 {
		return netfilter.Span{}, false
	}
	if l.wildcard {
		return netfilter.Wildcard(netfilter.NameValue(name), netfilter.NameValue(strings.Repeat("\xff", len(name)))), true
	}
	return netfilter.Exactly(netfilter.NameValue(name)), true
}

// ports reads PORT or PORT-PORT.
func ports(text string) (netfilter.Span, bool) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	a, err1 := strconv.ParseUint(low, 10, 16)
	b, err2 := strconv.ParseUint(high, 10, 16)
	return netfilter.Span{Low: netfilter.Value{Lo: a}, High: netfilter.Value{Lo: b}}, err1 == nil && err2 == nil
}

// protocolPort reads [PROTOCOL:]PORT, where ICMP has a type and code; without a protocol it is TCP.
func protocolPort(text string) ([]netfilter.Span, bool) {
	name, port, ok := strings.Cut(text, ":")
	if !ok {
		name, port = "tcp", text
	}
	number, known := protocols[name]
	if p, err := packet.ParseProtocol(name); err == nil {
		number, known = uint64(p), true
	}
	if !known {
		return nil, false
	}
	s, ok := ports(port)
	switch packet.Protocol(number) {
	case packet.ICMP:
		s, ok = typeAndCode(port, icmpNames)
	case packet.ICMPv6:
		s, ok = typeAndCode(port, icmpv6Names)
	}
	return []netfilter.Span{netfilter.Number(number), s}, ok
}

// protocols are names of /etc/protocols that package packet does not have.
var protocols = map[string]uint64{"hopopt": 0, "ip": 0, "igmp": 2, "ipencap": 4, "ipip": 4, "egp": 8, "igp": 9, "ipv6": 41, "rsvp": 46,
	"gre":   47,
	"eigrp": 88, "ospf": 89, "pim": 103, "ipcomp": 108, "vrrp": 112, "l2tp": 115}

// typeAndCode reads "echo-request" or "8/0" as the number that the kernel keeps: type<<8|code.
func typeAndCode(text string, names map[string][2]uint64) (netfilter.Span, bool) {
	if n, ok := names[text]; ok {
		return netfilter.Number(n[0]<<8 | n[1]), true
	}
	typeText, codeText, ok := strings.Cut(text, "/")
	t, err1 := strconv.ParseUint(typeText, 10, 8)
	c, err2 := strconv.ParseUint(codeText, 10, 8)
	return netfilter.Number(t<<8 | c), ok && err1 == nil && err2 == nil
}

// icmpNames are ipset's names of types with codes (ipset's "ipset help hash:ip,port" lists them).
var icmpNames = map[string][2]uint64{
	"echo-reply": {0, 0}, "pong": {0, 0}, "network-unreachable": {3, 0}, "host-unreachable": {3, 1}, "protocol-unreachable": {3, 2},
	"port-unreachable": {3, 3}, "fragmentation-needed": {3, 4}, "source-route-failed": {3, 5}, "network-unknown": {3, 6},
	"host-unknown": {3, 7}, "network-prohibited": {3, 9}, "host-prohibited": {3, 10}, "TOS-network-unreachable": {3, 11},
	"TOS-host-unreachable": {3, 12}, "communication-prohibited": {3, 13}, "host-precedence-violation": {3, 14}, "precedence-cutoff": {3, 15},
	"source-quench": {4, 0}, "network-redirect": {5, 0}, "host-redirect": {5, 1}, "TOS-network-redirect": {5, 2}, "TOS-host-redirect": {5, 3},
	"echo-request": {8, 0}, "ping": {8, 0}, "router-advertisement": {9, 0}, "router-solicitation": {10, 0},
	"ttl-zero-during-transit": {11, 0}, "ttl-zero-during-reassembly": {11, 1}, "ip-header-bad": {12, 0}, "required-option-missing": {12, 1},
	"timestamp-request": {13, 0}, "timestamp-reply": {14, 0}, "address-mask-request": {17, 0}, "address-mask-reply": {18, 0},
}

// icmpv6Names are those of ICMPv6.
var icmpv6Names = map[string][2]uint64{
	"no-route": {1, 0}, "communication-prohibited": {1, 1}, "address-unreachable": {1, 3}, "port-unreachable": {1, 4},
	"packet-too-big":          {2, 0},
	"ttl-zero-during-transit": {3, 0}, "ttl-zero-during-reassembly": {3, 1}, "bad-header": {4, 0}, "unknown-header-type": {4, 1},
	"unknown-option": {4, 2}, "echo-request": {128, 0}, "ping": {128, 0}, "echo-reply": {129, 0}, "pong": {129, 0},
	"router-solicitation": {133, 0}, "router-advertisement": {134, 0}, "redirect": {137, 0},
	"neighbour-solicitation": {135, 0}, "neighbor-solicitation": {135, 0}, "neighbour-advertisement": {136, 0},
	"neighbor-advertisement": {136, 0},
	"neigbour-solicitation":  {135, 0}, "neigbour-advertisement": {136, 0}, //nolint:misspell // ipset's own spelling
}
