package netfilter

import (
	"encoding/binary"

	"packetwalk.dev/internal/model/packet"
)

// hash returns the number, before Offset is added, where the seed and every value are known (net/netfilter/nft_hash.c: jhash over the
// registers, each field padded to 32 bits, scaled to the modulus).
func (g *GeneratedNumber) hash(spans []Span) (uint32, bool) {
	if g.Kind != Hash || !g.HasSeed {
		return 0, false
	}
	widths, ok := widthsOf(g.Over)
	if !ok || len(widths) != len(spans) {
		return 0, false
	}
	var data []byte
	for i, s := range spans {
		if !s.Certain() {
			return 0, false
		}
		data = appendBytes(data, s.Low, (widths[i]+7)/8)
		for len(spans) > 1 && len(data)%4 != 0 {
			data = append(data, 0)
		}
	}
	h := uint64(packet.JHash(data, g.Seed)) * uint64(g.Mod) >> 32
	return uint32(h), true
}

// widthsOf returns the fields' widths in bits, where the bytes that the kernel hashes are those of the values: fields that are kept in the
// machine's byte order, or are compared by name here, are not.
func widthsOf(e Expr) ([]int, bool) {
	switch e := e.(type) {
	case Concat:
		var all []int
		for _, part := range e {
			w, ok := widthsOf(part)
			if !ok {
				return nil, false
			}
			all = append(all, w...)
		}
		return all, true
	case *Field:
		switch e.Type {
		case "ipv4_addr", "ipv6_addr", "inet_service", "inet_proto", "ether_addr":
			return []int{e.Bits}, true
		}
	}
	return nil, false
}

// appendBytes appends the n low bytes of a value.
func appendBytes(b []byte, v Value, n int) []byte {
	var all [16]byte
	binary.BigEndian.PutUint64(all[:8], v.Hi)
	binary.BigEndian.PutUint64(all[8:], v.Lo)
	return append(b, all[16-n:]...)
}
