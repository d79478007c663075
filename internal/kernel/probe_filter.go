package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
)

// skfNetOff is SKF_NET_OFF (include/uapi/linux/filter.h): offsets from it on count from the network header, whatever link there is.
const skfNetOff = 0xfff00000

// maxFilter is how many instructions the kernel takes (BPF_MAXINSNS).
const maxFilter = 4096

// setCaptureFilter lets a socket have what the tuples choose. Where there are more than a filter, or the socket's memory
// (net.core.optmem_max), has room for, it looks at protocols only; a Capture looks at every packet again.
func setCaptureFilter(fd int, tuples []packet.Tuple) error {
	exact, err := captureFilter(tuples)
	if err != nil {
		return err
	}
	if len(exact) <= maxFilter {
		if err = setFilter(fd, exact); !errors.Is(err, unix.ENOMEM) {
			return err
		}
	}
	coarse, err := protocolFilter(tuples)
	if err != nil {
		return err
	}
	return setFilter(fd, coarse)
}

// captureFilter lets pass what the tuples choose; without tuples, what is IP.
func captureFilter(tuples []packet.Tuple) ([]bpf.RawInstruction, error) {
	var program []bpf.Instruction
	if len(tuples) == 0 {
		for _, t := range []packet.EtherType{packet.EtherIPv4, packet.EtherIPv6} {
			var c checks
			c.equal(bpf.LoadExtension{Num: bpf.ExtProto}, uint32(t))
			program = append(program, c.block()...)
		}
	}
	for _, t := range tuples {
		layout, err := layoutOf(t)
		if err != nil {
			return nil, err
		}
		program = append(append(program, packetFilter(layout, t).block()...), errorFilter(layout, t).block()...)
	}
	return assemble(program)
}

// protocolFilter lets pass what has a protocol of the tuples, and their families' ICMP.
func protocolFilter(tuples []packet.Tuple) ([]bpf.RawInstruction, error) {
	var program []bpf.Instruction
	for _, p := range protocolsOf(tuples) {
		var c checks
		c.equal(bpf.LoadExtension{Num: bpf.ExtProto}, uint32(p.etherType))
		c.equal(bpf.LoadAbsolute{Off: skfNetOff + p.protocol, Size: 1}, uint32(p.icmp))
		program = append(program, c.block()...)
	}
	return assemble(program)
}

// assemble ends a program with what does not let anything else pass.
func assemble(program []bpf.Instruction) ([]bpf.RawInstruction, error) {
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 0}))
	if err != nil {
		return nil, fmt.Errorf("filter of a capture: %w", err)
	}
	return raw, nil
}

// protocolsOf lists the protocols of the tuples and their families' ICMP, each once; icmp is the protocol.
func protocolsOf(tuples []packet.Tuple) []ipLayout {
	var list []ipLayout
	seen := map[ipLayout]bool{}
	for _, t := range tuples {
		layout, err := layoutOf(t)
		for _, p := range []packet.Protocol{layout.icmp, t.Protocol} {
			layout.icmp = p
			if err == nil && !seen[layout] {
				seen[layout] = true
				list = append(list, layout)
			}
		}
	}
	return list
}

// checks are tests that must all hold. The skips of their jumps are set by block.
type checks []bpf.Instruction

// test loads a field and compares it.
func (c *checks) test(load bpf.Instruction, cond bpf.JumpTest, value uint32) {
	*c = append(*c, load, bpf.JumpIf{Cond: cond, Val: value})
}

func (c *checks) equal(load bpf.Instruction, value uint32) { c.test(load, bpf.JumpEqual, value) }

// block lets a packet pass that stands every test and goes on behind itself with others.
func (c checks) block() []bpf.Instruction {
	block := append([]bpf.Instruction(nil), c...)
	for i, instruction := range block {
		if j, ok := instruction.(bpf.JumpIf); ok {
			j.SkipFalse = uint8(len(block) - i)
			block[i] = j
		}
	}
	return append(block, bpf.RetConstant{Val: captureSnap})
}

// begin tests family and protocol and puts the length of the IP header into X. IPv6's extension headers are not followed.
func (c *checks) begin(layout ipLayout, p packet.Protocol) {
	c.equal(bpf.LoadExtension{Num: bpf.ExtProto}, uint32(layout.etherType))
	c.equal(bpf.LoadAbsolute{Off: skfNetOff + layout.protocol, Size: 1}, uint32(p))
	if layout.etherType == packet.EtherIPv6 {
		*c = append(*c, bpf.LoadConstant{Dst: bpf.RegX, Val: layout.length})
	} else {
		*c = append(*c, bpf.LoadMemShift{Off: skfNetOff})
	}
}

func packetFilter(layout ipLayout, t packet.Tuple) checks {
	var c checks
	c.begin(layout, t.Protocol)
	absolute := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: skfNetOff + offset, Size: 4} }
	c.address(absolute, layout.source, t.Source)
	c.address(absolute, layout.destination, t.Destination)
	c.ports(t, 0)
	switch t.Protocol {
	case packet.TCP:
		c.test(transport(13, 1), bpf.JumpBitsSet, uint32(packet.SYN|packet.RST))
	case packet.ICMP, packet.ICMPv6:
		c.equal(transport(0, 1), uint32(t.Type))
	}
	return c
}

// errorFilter is for ICMP errors that quote a packet with the tuple; a quoted IPv4 header is taken to have no options.
func errorFilter(layout ipLayout, t packet.Tuple) checks {
	const quoted = 8
	var c checks
	c.begin(layout, layout.icmp)
	c.test(transport(0, 1), bpf.JumpGreaterOrEqual, uint32(layout.errorsLow))
	c.test(transport(0, 1), bpf.JumpLessOrEqual, uint32(layout.errorsHigh))
	c.equal(transport(quoted+layout.protocol, 1), uint32(t.Protocol))
	inner := func(offset uint32) bpf.Instruction { return transport(quoted+offset, 4) }
	c.address(inner, layout.source, t.Source)
	c.address(inner, layout.destination, t.Destination)
	c.ports(t, quoted+layout.length)
	return c
}

// transport loads size bytes at the offset from the transport header, whose place X holds.
func transport(offset uint32, size int) bpf.Instruction {
	return bpf.LoadIndirect{Off: skfNetOff + offset, Size: size}
}

// address compares an address, four bytes at a time.
func (c *checks) address(load func(uint32) bpf.Instruction, offset uint32, a netip.Addr) {
	if !a.IsValid() {
		return
	}
	b := a.AsSlice()
	for i := 0; i < len(b); i += 4 {
		c.equal(load(offset+uint32(i)), binary.BigEndian.Uint32(b[i:]))
	}
}

func (c *checks) ports(t packet.Tuple, offset uint32) {
	switch {
	case t.Protocol.HasPorts():
		c.span(offset, t.SourcePort)
		c.span(offset+2, t.DestinationPort)
	case t.Protocol == packet.ICMP || t.Protocol == packet.ICMPv6:
		c.span(offset+4, t.SourcePort)
	}
}

func (c *checks) span(offset uint32, p packet.Port) {
	if p == (packet.Port{}) {
		return
	}
	low, high := p.Span()
	c.test(transport(offset, 2), bpf.JumpGreaterOrEqual, uint32(low))
	c.test(transport(offset, 2), bpf.JumpLessOrEqual, uint32(high))
}
