package packet

import (
	"encoding/binary"
	"math/bits"
)

// JHash returns Bob Jenkins' hash as the kernel has it (include/linux/jhash.h), for a machine of little-endian byte order.
func JHash(data []byte, seed uint32) uint32 {
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
