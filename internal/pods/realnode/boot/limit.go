package boot

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/isolation"
)

// A node is kept from the machine's devices and settings by two BPF programs on its control group, in cgroup v2's hierarchy, which a
// machine with cgroup v1 has beside (Documentation/bpf/prog_cgroup_sysctl.rst; include/uapi/linux/bpf.h, struct bpf_cgroup_dev_ctx). They
// hold for whatever is in the group, privileged or not, and leave runc's own limits alone.

// Where the programs jump to: R0 = 1 allows, R0 = 0 refuses.
const (
	allow  = "allow"
	refuse = "refuse"
)

// ends returns the two ends of a program.
func ends() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, 0).WithSymbol(refuse), asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol(allow), asm.Return(),
	}
}

// step names a part of a program among count, and what follows the last one.
func step(i, count int) string {
	if i == count {
		return refuse
	}
	return fmt.Sprint("step ", i)
}

const anyMinor = ^uint32(0)

// pseudoTerminals are used, though not among devices: devpts makes them (Documentation/admin-guide/devices.txt), and ptmx.
var pseudoTerminals = []isolation.Device{{Name: "pts/*", Major: 136, Minor: anyMinor}, {Name: "ptmx", Major: 5, Minor: 2}}

// deviceProgram lets nodes of character devices be made, and those of a list be used.
func deviceProgram(allowed []isolation.Device) asm.Instructions {
	const kind, access, major, minor = asm.R2, asm.R3, asm.R4, asm.R5
	p := asm.Instructions{
		asm.LoadMem(kind, asm.R1, 0, asm.Word), // access<<16 | type
		asm.Mov.Reg(access, kind), asm.And.Imm(kind, 0xffff), asm.RSh.Imm(access, 16),
		asm.LoadMem(major, asm.R1, 4, asm.Word), asm.LoadMem(minor, asm.R1, 8, asm.Word),
		asm.JNE.Imm(kind, unix.BPF_DEVCG_DEV_CHAR, refuse),
		asm.JEq.Imm(access, unix.BPF_DEVCG_ACC_MKNOD, allow),
	}
	for i, d := range allowed {
		next := step(i+1, len(allowed))
		p = append(p, asm.JNE.Imm(major, int32(d.Major), next).WithSymbol(step(i, len(allowed))))
		if d.Minor != anyMinor {
			p = append(p, asm.JNE.Imm(minor, int32(d.Minor), next))
		}
		if d.ReadOnly {
			p = append(p, asm.JSet.Imm(access, unix.BPF_DEVCG_ACC_WRITE, next))
		}
		p = append(p, asm.Ja.Label(allow))
	}
	return append(p, ends()...)
}

// ownSettings are how the names of settings begin, below /proc/sys, that a node has for itself, by its namespaces: network, UTS and IPC.
// The first has 4 bytes, the others 10.
var ownSettings = struct {
	four string
	ten  []string
}{"net/", []string{"kernel/hos", "kernel/dom", "kernel/shm", "kernel/msg", "kernel/sem", "fs/mqueue/"}}

// nameSpace is how much of a setting's name the program reads, in bytes: a longer one is cut.
const nameSpace = 32

// sharedSetting is a setting that each network namespace has a file of, and all of the machine share (net/netfilter/nf_hooks_lwtunnel.c). It
// fills nameSpace, with its end.
const sharedSetting = "net/netfilter/nf_hooks_lwtunnel\x00"

// settingProgram lets all settings be read, and those of ownSettings be written.
func settingProgram() asm.Instructions {
	const space = nameSpace // on the stack
	p := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // write
		asm.JEq.Imm(asm.R2, 0, allow),
		asm.Mov.Imm(asm.R2, 0),
	}
	for at := int16(-space); at < 0; at += 8 {
		p = append(p, asm.StoreMem(asm.RFP, at, asm.R2, asm.DWord))
	}
	p = append(p,
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -space), asm.Mov.Imm(asm.R3, space), asm.Mov.Imm(asm.R4, 0),
		asm.FnSysctlGetName.Call())
	for at := range nameSpace / 8 {
		p = append(p,
			asm.LoadMem(asm.R2, asm.RFP, int16(8*at-space), asm.DWord),
			asm.LoadImm(asm.R3, int64(binary.NativeEndian.Uint64([]byte(sharedSetting[8*at:]))), asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R3, "not shared"))
	}
	p = append(p,
		asm.Ja.Label(refuse),
		asm.LoadMem(asm.R2, asm.RFP, -space, asm.Word).WithSymbol("not shared"),
		asm.JEq.Imm(asm.R2, int32(binary.NativeEndian.Uint32([]byte(ownSettings.four))), allow))
	for i, name := range ownSettings.ten {
		p = append(p,
			asm.LoadMem(asm.R2, asm.RFP, -space, asm.DWord).WithSymbol(step(i, len(ownSettings.ten))),
			asm.LoadImm(asm.R3, int64(binary.NativeEndian.Uint64([]byte(name))), asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R3, step(i+1, len(ownSettings.ten))),
			asm.LoadMem(asm.R2, asm.RFP, -space+8, asm.Half),
			asm.JEq.Imm(asm.R2, int32(binary.NativeEndian.Uint16([]byte(name[8:]))), allow))
	}
	return append(p, ends()...)
}

// limitGroup puts the two programs on a control group, for as long as that is there.
func limitGroup(dir string) error {
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	programs := []struct {
		what string
		ebpf.ProgramSpec
	}{
		{"devices", ebpf.ProgramSpec{Type: ebpf.CGroupDevice, AttachType: ebpf.AttachCGroupDevice,
			Instructions: deviceProgram(append(pseudoTerminals, devices...))}},
		{"settings", ebpf.ProgramSpec{Type: ebpf.CGroupSysctl, AttachType: ebpf.AttachCGroupSysctl, Instructions: settingProgram()}},
	}
	for _, p := range programs {
		p.License = "GPL"
		if err := attach(int(group.Fd()), &p.ProgramSpec); err != nil {
			return fmt.Errorf("keep the node from the machine's %s, by BPF: %w", p.what, err)
		}
	}
	return nil
}

// attach loads a program and attaches it to a control group. Others may attach theirs below: runc does with cgroup v2.
func attach(group int, spec *ebpf.ProgramSpec) error {
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer program.Close()
	o := link.RawAttachProgramOptions{Target: group, Program: program, Attach: spec.AttachType, Flags: unix.BPF_F_ALLOW_MULTI}
	if err := link.RawAttachProgram(o); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}
