package probe

import (
	"errors"
	"fmt"

	"packetwalk.dev/internal/model/witness"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
)

// skfNetOff is SKF_NET_OFF (include/uapi/linux/filter.h): offsets from it on count from the network header, whatever link there is.
const skfNetOff = 0xfff00000

// maxFilter is how many instructions the kernel takes (BPF_MAXINSNS).
const maxFilter = 4096

// setCaptureFilter lets a socket have what the filters choose. Where there are more than a program, or the socket's memory
// (net.core.optmem_max), has room for, it looks at protocols only, and of TCP at SYN and RST; a Capture looks at every packet again.
func setCaptureFilter(fd int, filters []witness.PacketFilter) error {
	exact, err := captureFilter(filters)
	if err != nil {
		return err
	}
	if len(exact) <= maxFilter {
		if err = setFilter(fd, exact); !errors.Is(err, unix.ENOMEM) {
			return err
		}
	}
	coarse, err := protocolFilter(witness.Tuples(filters))
	if err != nil {
		return err
	}
	return setFilter(fd, coarse)
}

// captureFilter lets pass what the filters choose; without any, what is IP.
func captureFilter(filters []witness.PacketFilter) ([]bpf.RawInstruction, error) {
	var program []bpf.Instruction
	if len(filters) == 0 {
		for _, layout := range []ipLayout{ipv4Layout, ipv6Layout} {
			program = append(program, block(layout, layout.begin(0)[:1])...)
		}
	}
	errorsAbout := map[packet.Tuple]bool{}
	for _, f := range filters {
		layout, err := layoutOf(f.Tuple)
		if err != nil {
			return nil, err
		}
		checks, err := layout.packets(f)
		if err != nil {
			return nil, err
		}
		if program = append(program, block(layout, checks)...); !errorsAbout[f.Tuple] {
			errorsAbout[f.Tuple] = true
			program = append(program, block(layout, layout.errors(f.Tuple))...)
		}
	}
	return assemble(program)
}

// protocolFilter lets pass what has a protocol of the tuples, and their families' ICMP.
func protocolFilter(tuples []packet.Tuple) ([]bpf.RawInstruction, error) {
	var program []bpf.Instruction
	type kind struct {
		layout   ipLayout
		protocol packet.Protocol
	}
	seen := map[kind]bool{}
	for _, t := range tuples {
		layout, err := layoutOf(t)
		if err != nil {
			return nil, err
		}
		for _, p := range []packet.Protocol{layout.icmp, t.Protocol} {
			if k := (kind{layout, p}); !seen[k] {
				seen[k] = true
				checks := layout.begin(p)
				if p == packet.TCP {
					checks = append(checks, ofKind(0, t)...)
				}
				program = append(program, block(layout, checks)...)
			}
		}
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

var jumps = map[op]bpf.JumpTest{
	isEqual: bpf.JumpEqual, isAtLeast: bpf.JumpGreaterOrEqual, isAtMost: bpf.JumpLessOrEqual, hasBit: bpf.JumpBitsSet,
}

// block lets a packet pass that stands every check and goes on behind itself with others. It puts the length of the IP header into X.
func block(layout ipLayout, checks []check) []bpf.Instruction {
	var all []bpf.Instruction
	inX := false
	for _, c := range checks {
		if c.at == atTransport && !inX {
			inX = true
			if layout.etherType == packet.EtherIPv6 {
				all = append(all, bpf.LoadConstant{Dst: bpf.RegX, Val: layout.length})
			} else {
				all = append(all, bpf.LoadMemShift{Off: skfNetOff})
			}
		}
		for i := 0; i < len(c.value); i += 4 { // a register has four bytes
			value := c.value[i:min(i+4, len(c.value))]
			at := skfNetOff + c.offset + uint32(i)
			switch c.at {
			case atFamily:
				all = append(all, bpf.LoadExtension{Num: bpf.ExtProto})
			case atTransport:
				all = append(all, bpf.LoadIndirect{Off: at, Size: len(value)})
			default:
				all = append(all, bpf.LoadAbsolute{Off: at, Size: len(value)})
			}
			test := bpf.JumpIf{Cond: jumps[c.op]}
			for _, b := range value {
				test.Val = test.Val<<8 | uint32(b)
			}
			all = append(all, test)
		}
	}
	for i, instruction := range all {
		if j, ok := instruction.(bpf.JumpIf); ok {
			j.SkipFalse = uint8(len(all) - i)
			all[i] = j
		}
	}
	return append(all, bpf.RetConstant{Val: captureSnap})
}
