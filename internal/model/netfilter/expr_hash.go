package netfilter

import (
	"encoding/binary"
	"math/bits"
)

// hash is the number, before Offset is added, where the seed and every value are known (net/netfilter/nft_hash.c: jhash over the registers,
// each field padded to 32 bits, scaled to the modulus).
func (g *Generated) hash(spans []Span) (uint32, bool) {
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
	h := uint64(jhash(data, g.Seed)) * uint64(g.Mod) >> 32
	return uint32(h), true
}

// widthsOf are the fields' widths in bits, where the bytes that the kernel hashes are those of the values: fields that are kept in the
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

// jhash is Bob Jenkins' hash as the kernel has it (include/linux/jhash.h), for a machine of little-endian byte order.
func jhash(data []byte, seed uint32) uint32 {
	const initial = 0xdeadbeef
	a := initial + uint32(len(data)) + seed
	b, c := a, a
	for len(data) > 12 {
		a += binary.LittleEndian.Uint32(data)
		b += binary.LittleEndian.Uint32(data[4:])
		c += binary.LittleEndian.Uint32(data[8:])
		a, b, c = mix(a, b, c)
		data = data[12:]
	}
	if len(data) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], data)
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	return final(a, b, c)
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	rotate := bits.RotateLeft32
	a, c = (a-c)^rotate(c, 4), c+b
	b, a = (b-a)^rotate(a, 6), a+c
	c, b = (c-b)^rotate(b, 8), b+a
	a, c = (a-c)^rotate(c, 16), c+b
	b, a = (b-a)^rotate(a, 19), a+c
	c, b = (c-b)^rotate(b, 4), b+a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	rotate := bits.RotateLeft32
	c = (c ^ b) - rotate(b, 14)
	a = (a ^ c) - rotate(c, 11)
	b = (b ^ a) - rotate(a, 25)
	c = (c ^ b) - rotate(b, 16)
	a = (a ^ c) - rotate(c, 4)
	b = (b ^ a) - rotate(a, 14)
	return (c ^ b) - rotate(b, 24)
}
