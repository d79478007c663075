package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/model/packet"
)

// Addresses are replaced so that prefixes stay prefixes: two addresses that share their first n bits share them afterwards, so every route,
// rule and set still holds the addresses that it held (J. Xu, J. Fan, M. Ammar, S. Moon, "Prefix-Preserving IP Address Anonymization",
// ICNP 2002). Each bit is flipped, or not, by a keyed function of the bits before it.

// kept are the prefixes that every reader, and the kernel, knows by sight. They stay where they are; fixed ones also keep their inside.
var kept = []struct {
	prefix netip.Prefix
	fixed  bool
}{
	{netip.MustParsePrefix("0.0.0.0/8"), true},
	{netip.MustParsePrefix("127.0.0.0/8"), true},
	{netip.MustParsePrefix("169.254.0.0/16"), true},
	{netip.MustParsePrefix("168.63.129.16/32"), true}, // Azure's wire server
	{netip.MustParsePrefix("224.0.0.0/3"), true},      // multicast, reserved, broadcast, and all netmasks
	{netip.MustParsePrefix("10.0.0.0/8"), false},
	{netip.MustParsePrefix("100.64.0.0/10"), false},
	{netip.MustParsePrefix("172.16.0.0/12"), false},
	{netip.MustParsePrefix("192.168.0.0/16"), false},
	{netip.MustParsePrefix("::/96"), true}, // unspecified and loopback
	{netip.MustParsePrefix("64:ff9b::/96"), false},
	{netip.MustParsePrefix("2000::/3"), false},
	{netip.MustParsePrefix("fc00::/7"), false},
	{netip.MustParsePrefix("fe80::/64"), false},          // its inside is made of the MAC address, as a rule
	{netip.MustParsePrefix("ff02::1:ff00:0/104"), false}, // and so is that of solicited-node addresses
	{netip.MustParsePrefix("ff00::/8"), true},
}

// addressMap replaces addresses. It is a bijection.
type addressMap struct {
	key  []byte
	back *restorer // set where replacements become originals again
	// solid are prefixes whose inside is not scrambled, because a rule maps one onto another.
	solid []netip.Prefix
	// spans are ranges that are no prefixes. An address is in one or not by the bit at which it parts from the range's ends, so the bits on
	// the way to those stay; all others are scrambled.
	spans []span

	mu    sync.Mutex
	done  map[netip.Addr]netip.Addr
	macs  map[packet.MAC]packet.MAC
	flips map[netip.Prefix]bool // of the prefixes that many addresses have
}

// span is a range of addresses; cover is the longest prefix that holds it.
type span struct {
	cover     netip.Prefix
	low, high netip.Addr
}

// keeps reports whether the bit that follows a prefix decides who is in the range.
func (s span) keeps(before netip.Prefix) bool {
	return s.cover.Bits() <= before.Bits() && (before.Contains(s.low) || before.Contains(s.high))
}

func newAddressMap(key []byte) *addressMap {
	return &addressMap{key: key, done: map[netip.Addr]netip.Addr{}, macs: map[packet.MAC]packet.MAC{}, flips: map[netip.Prefix]bool{}}
}

// digest returns a keyed hash of some parts.
func digest(key []byte, parts ...string) [32]byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return [32]byte(h.Sum(nil))
}

// addr gives the address that stands for a.
func (m *addressMap) addr(a netip.Addr) netip.Addr {
	if a.Is4In6() {
		return netip.AddrFrom16(m.addr(a.Unmap()).As16())
	}
	zone := a.Zone()
	a = a.WithZone("")
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.done[a]
	if !ok {
		b = m.compute(a)
		m.done[a] = b
	}
	return b.WithZone(zone)
}

// isFixed reports whether an address stands for itself: the longest kept prefix that holds it keeps its inside, too.
func isFixed(a netip.Addr) bool {
	longest, fixed := -1, false
	for _, k := range kept {
		if k.prefix.Contains(a) && k.prefix.Bits() > longest {
			longest, fixed = k.prefix.Bits(), k.fixed
		}
	}
	return fixed
}

func (m *addressMap) compute(a netip.Addr) netip.Addr {
	if m.back != nil {
		return m.back.address(a, a.BitLen())
	}
	bits := a.BitLen()
	if isFixed(a) {
		return a
	}
	for _, s := range m.solid {
		if s.Contains(a) {
			bits = min(bits, s.Bits())
		}
	}
	raw := a.As16()
	from := 128 - a.BitLen()
	out := raw
	for i := range bits {
		if m.flip(netip.PrefixFrom(a, i).Masked()) {
			at := from + i
			out[at/8] ^= 0x80 >> (at % 8)
		}
	}
	if a.Is4() {
		return netip.AddrFrom4([4]byte(out[12:]))
	}
	return netip.AddrFrom16(out)
}

// flip reports whether the bit that follows a prefix is flipped. On the way to a kept prefix it is not.
func (m *addressMap) flip(before netip.Prefix) bool {
	flipped, ok := m.flips[before]
	if ok {
		return flipped
	}
	flipped = true
	for _, k := range kept {
		if k.prefix.Bits() > before.Bits() && before.Contains(k.prefix.Addr()) {
			flipped = false
		}
		if k.fixed && k.prefix.Bits() <= before.Bits() && k.prefix.Contains(before.Addr()) {
			inner := false
			for _, in := range kept {
				inner = inner || !in.fixed && in.prefix.Bits() > k.prefix.Bits() && in.prefix.Bits() <= before.Bits() &&
					in.prefix.Contains(before.Addr())
			}
			flipped = flipped && inner
		}
	}
	flipped = flipped && !slices.ContainsFunc(m.spans, func(s span) bool { return s.keeps(before) })
	if flipped {
		d := digest(m.key, "address", before.String())
		flipped = d[0]&1 == 1
	}
	if before.Bits() <= before.Addr().BitLen()*3/4 {
		m.flips[before] = flipped
	}
	return flipped
}

// prefix gives the prefix that stands for p. The address of an interface, which is not masked, stays an address.
func (m *addressMap) prefix(p netip.Prefix) netip.Prefix {
	masked := p == p.Masked() && p.Bits() < p.Addr().BitLen()
	if masked && m.back != nil {
		return netip.PrefixFrom(m.back.address(p.Addr(), p.Bits()), p.Bits()).Masked()
	}
	q := netip.PrefixFrom(m.addr(p.Addr()), p.Bits())
	if masked {
		return q.Masked()
	}
	return q
}

// span gives the range that stands for [low, high].
func (m *addressMap) span(low, high netip.Addr) (netip.Addr, netip.Addr) {
	if p, exact := cover(low, high); exact {
		q := m.prefix(p)
		return q.Addr(), last(q)
	}
	return m.addr(low), m.addr(high)
}

// keepSpan notes that the addresses from low to high stay a range.
func (m *addressMap) keepSpan(low, high netip.Addr) {
	if p, exact := cover(low, high); !exact && p.IsValid() {
		if s := (span{p, low, high}); !slices.Contains(m.spans, s) { // the nodes of a cluster have the same
			m.spans = append(m.spans, s)
		}
	}
}

// keepPrefix notes that the inside of a prefix, or an address, stays as it is.
func (m *addressMap) keepPrefix(s string) {
	if p, err := netip.ParsePrefix(s); err == nil && !slices.Contains(m.solid, p) {
		m.solid = append(m.solid, p)
	}
}

// cover returns the longest prefix that holds two addresses; exact says that it holds nothing but the range between them.
func cover(low, high netip.Addr) (p netip.Prefix, exact bool) {
	if low.BitLen() != high.BitLen() {
		return netip.Prefix{}, false
	}
	for bits := low.BitLen(); bits >= 0; bits-- {
		p = netip.PrefixFrom(low, bits).Masked()
		if p.Contains(high) {
			break
		}
	}
	return p, p.Addr() == low && last(p) == high
}

// last returns the highest address of a prefix.
func last(p netip.Prefix) netip.Addr {
	raw := p.Addr().As16()
	for i := 128 - p.Addr().BitLen() + p.Bits(); i < 128; i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	if p.Addr().Is4() {
		return netip.AddrFrom4([4]byte(raw[12:]))
	}
	return netip.AddrFrom16(raw)
}

// mac gives the link-layer address that stands for another. Group addresses of well-known protocols, Azure's and the bridges' own, and
// masks stay; so do the bits that tell groups and locally administered addresses.
func (m *addressMap) mac(a packet.MAC) packet.MAC {
	if m.back != nil {
		return m.back.mac(a)
	}
	if isMask(a) || a == (packet.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}) || a == (packet.MAC{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}) ||
		a == (packet.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}) || a == (packet.MAC{0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}) {
		return a
	}
	d := digest(m.key, "mac", a.String())
	out := packet.MAC(d[:6])
	out[0] = d[0]&^3 | a[0]&3
	if a.IsMulticast() {
		known := 3 // IEEE 802.1 groups, RFC 1112 and RFC 2464: their first bytes tell whose they are
		if a[0] == 0x01 || a[0] == 0x33 && a[2] != 0xff {
			known = 6
		}
		copy(out[:known], a[:known])
	}
	m.mu.Lock()
	m.macs[a] = out
	m.mu.Unlock()
	return out
}

// isMask reports whether an address is ones, then zeros: a mask, broadcast, or none.
func isMask(a packet.MAC) bool {
	n := uint64(a[0])<<40 | uint64(a[1])<<32 | uint64(a[2])<<24 | uint64(a[3])<<16 | uint64(a[4])<<8 | uint64(a[5])
	n = ^n & (1<<48 - 1)
	return n&(n+1) == 0
}

// text replaces the addresses in a text, wherever one stands as a word of its own: with a prefix length, a netmask, a port, or as a range.
func (m *addressMap) text(s string) string {
	var b strings.Builder
	scan(s, func(plain, found string) {
		b.WriteString(plain)
		b.WriteString(m.token(found))
	})
	return b.String()
}

// keepSpans notes the ranges of a text.
func (m *addressMap) keepSpans(s string) {
	scan(s, func(_, found string) {
		if low, high, _, ok := spanOf(found); ok {
			m.keepSpan(low, high)
		}
	})
}

// scan cuts a text into what can be no address and what may be one.
func scan(s string, each func(plain, found string)) {
	part := func(c byte) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' || c == ':' || c == '.'
	}
	word := func(c byte) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
	}
	start := 0
	for i := 0; i < len(s); {
		if !part(s[i]) || i > 0 && word(s[i-1]) {
			i++
			continue
		}
		end := i
		for end < len(s) && (part(s[end]) || end > i && (s[end] == '/' || s[end] == '-') && end+1 < len(s) && part(s[end+1])) {
			end++
		}
		for end < len(s) && end > i && word(s[end]) && word(s[end-1]) {
			end-- // the run goes on as a word
		}
		if end > i && strings.ContainsAny(s[i:end], ".:") {
			each(s[start:i], s[i:end])
			start = end
		}
		i = max(end, i+1)
	}
	each(s[start:], "")
}

// spanOf reads "LOW-HIGH", and gives what follows it.
func spanOf(s string) (low, high netip.Addr, rest string, ok bool) {
	a, b, cut := strings.Cut(s, "-")
	low, err := netip.ParseAddr(a)
	if !cut || err != nil {
		return low, high, "", false
	}
	if high, err = netip.ParseAddr(b); err == nil {
		return low, high, "", low.BitLen() == high.BitLen()
	}
	b, port, cut := strings.Cut(b, ":")
	if high, err = netip.ParseAddr(b); !cut || err != nil {
		return low, high, "", false
	}
	return low, high, ":" + port, low.BitLen() == high.BitLen()
}

// token replaces one word that may be an address.
func (m *addressMap) token(s string) string {
	if s == "" {
		return ""
	}
	if low, high, rest, ok := spanOf(s); ok {
		low, high = m.span(low, high)
		return low.String() + "-" + high.String() + rest
	}
	if a, err := packet.ParseMAC(s); err == nil {
		return m.mac(a).String()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return m.addr(a).String()
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return m.prefix(p).String()
	}
	if addr, mask, ok := strings.Cut(s, "/"); ok {
		return m.masked(addr, mask)
	}
	if at := strings.LastIndexByte(s, ':'); at > 0 { // ADDRESS:PORT
		if a, err := netip.ParseAddr(s[:at]); err == nil && a.Is4() {
			return m.addr(a).String() + s[at:]
		}
		if at := strings.IndexByte(s, ':'); at > 0 {
			if a, err := netip.ParseAddr(s[:at]); err == nil && a.Is4() {
				return m.addr(a).String() + s[at:]
			}
		}
	}
	if trimmed := strings.TrimRight(s, ".:"); trimmed != s && trimmed != "" { // the end of a sentence
		return m.token(trimmed) + s[len(trimmed):]
	}
	return s
}

// masked replaces ADDRESS/MASK: netmasks of IPv4 in dots, those of link-layer addresses in colons.
func (m *addressMap) masked(addr, mask string) string {
	if a, err := packet.ParseMAC(addr); err == nil {
		return m.mac(a).String() + "/" + mask
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return m.token(addr) + "/" + mask
	}
	ones, err := netip.ParseAddr(mask)
	if err != nil || ones.BitLen() != a.BitLen() {
		return m.addr(a).String() + "/" + mask
	}
	// A mask that is contiguous is a prefix length.
	for bits := range a.BitLen() + 1 {
		all := netip.PrefixFrom(last(netip.PrefixFrom(a, 0).Masked()), bits).Masked().Addr()
		if all == ones {
			return m.prefix(netip.PrefixFrom(a, bits)).Addr().String() + "/" + mask
		}
	}
	return m.addr(a).String() + "/" + mask
}
