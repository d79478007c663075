package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/rootfs"
)

// A node is kept from the machine's devices and settings by two BPF programs on its control group, in cgroup v2's hierarchy, which a
// machine with cgroup v1 has beside (Documentation/bpf/prog_cgroup_sysctl.rst; include/uapi/linux/bpf.h, struct bpf_cgroup_dev_ctx). They
// hold for whatever is in the group, privileged or not, and leave runc's own limits alone.

// An instruction of BPF (Documentation/bpf/standardization/instruction-set.rst).
type instruction struct {
	op     uint8
	dst    uint8
	src    uint8
	offset int16
	imm    int32
}

func (i instruction) encode() []byte {
	b := []byte{i.op, i.dst | i.src<<4}
	b = binary.NativeEndian.AppendUint16(b, uint16(i.offset))
	return binary.NativeEndian.AppendUint32(b, uint32(i.imm))
}

// Operations, by the names of include/uapi/linux/bpf.h.
const (
	loadWord   = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	loadHalf   = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_H
	loadLong   = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_DW
	storeLong  = unix.BPF_ST | unix.BPF_MEM | unix.BPF_DW
	constant64 = unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW
	move       = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	moveFrom   = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	and        = unix.BPF_ALU64 | unix.BPF_AND | unix.BPF_K
	shiftRight = unix.BPF_ALU64 | unix.BPF_RSH | unix.BPF_K
	add        = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_K
	unless     = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	ifAny      = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	unlessFrom = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_X
	call       = unix.BPF_JMP | unix.BPF_CALL
	exit       = unix.BPF_JMP | unix.BPF_EXIT
)

// result ends a program: 1 allows, 0 refuses.
func result(value int32) []instruction {
	return []instruction{{op: move, dst: 0, imm: value}, {op: exit}}
}

// Constants of BPF_PROG_TYPE_CGROUP_DEVICE.
const (
	deviceCharacter = unix.BPF_DEVCG_DEV_CHAR
	accessMknod     = unix.BPF_DEVCG_ACC_MKNOD
	anyMinor        = ^uint32(0)
)

// pseudoTerminals are used, though not among devices: devpts makes them (Documentation/admin-guide/devices.txt), and ptmx.
var pseudoTerminals = []rootfs.Device{{Name: "pts/*", Major: 136, Minor: anyMinor}, {Name: "ptmx", Major: 5, Minor: 2}}

// deviceProgram lets nodes of character devices be made, and those of a list be used.
func deviceProgram(allowed []rootfs.Device) []instruction {
	const context, kind, access, major, minor = 1, 2, 3, 4, 5 // registers
	program := []instruction{
		{op: loadWord, dst: kind, src: context, offset: 0}, // access<<16 | type
		{op: moveFrom, dst: access, src: kind},
		{op: and, dst: kind, imm: 0xffff},
		{op: shiftRight, dst: access, imm: 16},
		{op: loadWord, dst: major, src: context, offset: 4},
		{op: loadWord, dst: minor, src: context, offset: 8},
		{op: unless, dst: kind, imm: deviceCharacter, offset: 1},
		{op: unix.BPF_JMP | unix.BPF_JA, offset: 2},
	}
	program = append(program, result(0)...)
	program = append(program, instruction{op: unless, dst: access, imm: accessMknod, offset: 2})
	program = append(program, result(1)...)
	for _, d := range allowed {
		conditions := []instruction{{op: unless, dst: major, imm: int32(d.Major)}}
		if d.Minor != anyMinor {
			conditions = append(conditions, instruction{op: unless, dst: minor, imm: int32(d.Minor)})
		}
		if d.ReadOnly {
			conditions = append(conditions, instruction{op: ifAny, dst: access, imm: unix.BPF_DEVCG_ACC_WRITE})
		}
		for i := range conditions {
			conditions[i].offset = int16(len(conditions) - 1 - i + len(result(1))) // to the next device
		}
		program = append(append(program, conditions...), result(1)...)
	}
	return append(program, result(0)...)
}

// ownSettings are how the names of settings begin, below /proc/sys, that a node has for itself, by its namespaces: network, UTS and IPC.
// The first has 4 bytes, the others 10.
var ownSettings = struct {
	four string
	ten  []string
}{"net/", []string{"kernel/hos", "kernel/dom", "kernel/shm", "kernel/msg", "kernel/sem", "fs/mqueue/"}}

// helperSysctlName is bpf_sysctl_get_name (include/uapi/linux/bpf.h).
const helperSysctlName = 101

// settingProgram lets all settings be read, and those of ownSettings be written.
func settingProgram() []instruction {
	const context, r2, r3, r4, frame = 1, 2, 3, 4, 10 // registers
	const space = 32                                  // bytes of the name
	program := []instruction{
		{op: loadWord, dst: r2, src: context, offset: 0}, // write
		{op: unless, dst: r2, imm: 0, offset: 2},
	}
	program = append(program, result(1)...)
	for at := int16(-space); at < 0; at += 8 {
		program = append(program, instruction{op: storeLong, dst: frame, offset: at})
	}
	program = append(program,
		instruction{op: moveFrom, dst: r2, src: frame}, instruction{op: add, dst: r2, imm: -space},
		instruction{op: move, dst: r3, imm: space}, instruction{op: move, dst: r4, imm: 0},
		instruction{op: call, imm: helperSysctlName},
		instruction{op: loadWord, dst: r2, src: frame, offset: -space},
		instruction{op: unless, dst: r2, imm: int32(binary.NativeEndian.Uint32([]byte(ownSettings.four))), offset: 2})
	program = append(program, result(1)...)
	for _, name := range ownSettings.ten {
		eight := binary.NativeEndian.Uint64([]byte(name))
		two := binary.NativeEndian.Uint16([]byte(name[8:]))
		program = append(program,
			instruction{op: loadLong, dst: r2, src: frame, offset: -space},
			instruction{op: constant64, dst: r3, imm: int32(eight)}, instruction{imm: int32(eight >> 32)},
			instruction{op: unlessFrom, dst: r2, src: r3, offset: 4},
			instruction{op: loadHalf, dst: r2, src: frame, offset: -space + 8},
			instruction{op: unless, dst: r2, imm: int32(two), offset: 2})
		program = append(program, result(1)...)
	}
	return append(program, result(0)...)
}

// limitGroup puts the two programs on a control group.
func limitGroup(dir string) error {
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	programs := []struct {
		what         string
		kind, attach uint32
		code         []instruction
	}{
		{"devices", unix.BPF_PROG_TYPE_CGROUP_DEVICE, unix.BPF_CGROUP_DEVICE, deviceProgram(append(pseudoTerminals, devices...))},
		{"settings", unix.BPF_PROG_TYPE_CGROUP_SYSCTL, unix.BPF_CGROUP_SYSCTL, settingProgram()},
	}
	for _, p := range programs {
		if err := attach(int(group.Fd()), p.kind, p.attach, p.code); err != nil {
			return fmt.Errorf("keep the node from the machine's %s, by BPF: %w", p.what, err)
		}
	}
	return nil
}

// attach loads a program and attaches it to a control group, for as long as that is there (bpf(2)).
func attach(group int, kind, where uint32, code []instruction) error {
	var text []byte
	for _, i := range code {
		text = append(text, i.encode()...)
	}
	license := []byte("GPL\x00")
	load := struct {
		kind, count                uint32
		instructions, license      uint64
		logLevel, logSize          uint32
		log                        uint64
		kernel, flags              uint32
		name                       [16]byte
		interfaceIndex, attachType uint32
	}{kind: kind, count: uint32(len(code)), instructions: address(text), license: address(license), attachType: where}
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
	runtime.KeepAlive(text)
	runtime.KeepAlive(license)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer unix.Close(fd)
	// Others may attach theirs below: runc does with cgroup v2.
	join := struct{ target, program, where, flags uint32 }{uint32(group), uint32(fd), where, unix.BPF_F_ALLOW_MULTI}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&join), unsafe.Sizeof(join)); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func bpf(command int, attributes unsafe.Pointer, size uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
	switch {
	case errors.Is(errno, unix.ENOSYS):
		return 0, fmt.Errorf("%w: this kernel has no bpf(2)", errno)
	case errno != 0:
		return 0, errno
	}
	return int(r), nil
}
