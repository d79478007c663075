// Package bpftest loads small BPF programs and attaches them, for tests that look for programs of others.
package bpftest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
)

// Group makes a control group of version 2, which the end of the test removes with the groups below it. It returns its directory and its
// path from the root.
func Group(t testing.TB, name string) (dir, path string) {
	t.Helper()
	root := Root(t)
	path = fmt.Sprintf("/%s-%d", name, os.Getpid())
	dir = root + path
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eventually.Succeeds(t, 10*time.Second, func() error { return removeGroup(dir) }) })
	return dir, path
}

// removeGroup removes a group whose processes have ended, with the groups below it.
func removeGroup(dir string) error {
	below, _ := filepath.Glob(dir + "/*/cgroup.procs")
	for _, file := range below {
		if err := removeGroup(filepath.Dir(file)); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// Root returns the directory where control groups of version 2 are mounted.
func Root(t testing.TB) string {
	t.Helper()
	kerneltest.NeedRoot(t)
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	kerneltest.Missing(t, "a mount of control groups v2")
	return ""
}

// LabGroup returns the directory of a lab's control group with a name.
func LabGroup(t testing.TB, lab, name string) (dir string) {
	t.Helper()
	err := filepath.WalkDir(Root(t)+"/packetwalk/"+lab, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			dir = path
			return fs.SkipAll
		}
		return nil // others may be removed meanwhile
	})
	if err != nil || dir == "" {
		t.Fatalf("find control group %s: %v", name, err)
	}
	return dir
}

// Start starts a command in a namespace and in the control group in a directory. The end of the test kills it.
func Start(t testing.TB, ns *netns.Namespace, dir string, args ...string) *exec.Cmd {
	t.Helper()
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	c := exec.Command(args[0], args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := ns.Do(c.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	return c
}

// Pass returns instructions that let everything pass, as programs of control groups, of sk_lookup and of netfilter do that return 1.
func Pass() asm.Instructions { return Return(1) }

// Return returns instructions that return a value.
func Return(v int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, v), asm.Return()}
}

// Redirect returns instructions of connect4 and sendmsg4 that take packets for one address elsewhere (struct bpf_sock_addr: user_ip4,
// user_port). In recvmsg4 and getpeername4 they show one address as another.
func Redirect(from netip.Addr, to netip.AddrPort) asm.Instructions {
	const ip, port = 4, 24
	address := func(a netip.Addr) int32 { b := a.As4(); return int32(binary.NativeEndian.Uint32(b[:])) }
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, ip, asm.Word), asm.JNE.Imm32(asm.R2, address(from), "pass"),
		asm.Mov.Imm32(asm.R2, address(to.Addr())), asm.StoreMem(asm.R1, ip, asm.R2, asm.Word),
		asm.Mov.Imm32(asm.R2, int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, to.Port())))),
		asm.StoreMem(asm.R1, port, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"), asm.Return(),
	}
}

var types = map[ebpf.AttachType]ebpf.ProgramType{
	ebpf.AttachCGroupInet4Connect: ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Connect: ebpf.CGroupSockAddr,
	ebpf.AttachCGroupUDP4Sendmsg: ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg: ebpf.CGroupSockAddr,
	ebpf.AttachCGroupUDP4Recvmsg: ebpf.CGroupSockAddr, ebpf.AttachCgroupInet4GetPeername: ebpf.CGroupSockAddr,
	ebpf.AttachCgroupInet6GetSockname: ebpf.CGroupSockAddr,
	ebpf.AttachCGroupInet4Bind:        ebpf.CGroupSockAddr, ebpf.AttachCGroupInetSockCreate: ebpf.CGroupSock,
	ebpf.AttachCGroupInetEgress: ebpf.CGroupSKB, ebpf.AttachCGroupInetIngress: ebpf.CGroupSKB,
	ebpf.AttachCGroupSockOps: ebpf.SockOps, ebpf.AttachCGroupDevice: ebpf.CGroupDevice, ebpf.AttachCGroupSysctl: ebpf.CGroupSysctl,
	ebpf.AttachSkLookup: ebpf.SkLookup, ebpf.AttachNetfilter: ebpf.Netfilter, ebpf.AttachSkSKBStreamVerdict: ebpf.SkSKB,
	ebpf.AttachTCXIngress: ebpf.SchedCLS, ebpf.AttachTCXEgress: ebpf.SchedCLS,
}

// Load loads a program, which the end of the test unloads.
func Load(t testing.TB, name string, attach ebpf.AttachType, does asm.Instructions) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: types[attach], AttachType: attach, Instructions: does, License: "GPL"})
	if err != nil {
		t.Fatalf("load %s: %+v", name, err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// AttachToGroup attaches a program to the control group in a directory until the test ends. It returns the program's ID.
func AttachToGroup(t testing.TB, dir, name string, attach ebpf.AttachType, does asm.Instructions) uint32 {
	t.Helper()
	p := Load(t, name, attach, does)
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: attach, Program: p})
	return detachLater(t, name, p, l, err)
}

// AttachLSM attaches a program to a hook of LSM until the test ends: for the processes in the control group in a directory, or with "" for
// those of the whole machine. It returns the program's ID. A kernel that lets no such program be loaded or attached skips the test.
func AttachLSM(t testing.TB, dir, name, hook string, does asm.Instructions) uint32 {
	t.Helper()
	spec := &ebpf.ProgramSpec{Name: name, Type: ebpf.LSM, AttachType: ebpf.AttachLSMMac, AttachTo: hook, Instructions: does, License: "GPL"}
	if dir != "" {
		spec.AttachType = ebpf.AttachLSMCgroup
	}
	p, err := ebpf.NewProgram(spec)
	var l link.Link
	if err == nil {
		t.Cleanup(func() { p.Close() })
		if dir != "" {
			l, err = link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachLSMCgroup, Program: p})
		} else {
			l, err = link.AttachLSM(link.LSMOptions{Program: p})
		}
	}
	const notSupported = syscall.Errno(524) // ENOTSUPP, without trampolines
	for _, refused := range []error{unix.EPERM, unix.EOPNOTSUPP, notSupported, ebpf.ErrNotSupported, link.ErrNotSupported} {
		if errors.Is(err, refused) {
			t.Skipf("the kernel takes no program of LSM: %v", err)
		}
	}
	return detachLater(t, name, p, l, err)
}

// AttachToNamespace attaches a program of sk_lookup to a network namespace until the test ends. It returns the program's ID.
func AttachToNamespace(t testing.TB, ns *netns.Namespace, name string, does asm.Instructions) uint32 {
	t.Helper()
	p := Load(t, name, ebpf.AttachSkLookup, does)
	l, err := link.AttachNetNs(ns.FD(), p)
	return detachLater(t, name, p, l, err)
}

// AttachToHook attaches a program to a hook of netfilter in a network namespace until the test ends. It returns the program's ID.
func AttachToHook(t testing.TB, ns *netns.Namespace, name string, hook link.NetfilterInetHook, does asm.Instructions) uint32 {
	t.Helper()
	p := Load(t, name, ebpf.AttachNetfilter, does)
	var l link.Link
	err := ns.Do(func() (err error) {
		l, err = link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: link.NetfilterProtoIPv4, Hook: hook, Priority: 7})
		return err
	})
	return detachLater(t, name, p, l, err)
}

// AttachToLink attaches a program of tcx that passes everything on to a side of a link until the test ends. It returns the program's ID.
func AttachToLink(t testing.TB, ns *netns.Namespace, name, program string, side ebpf.AttachType) uint32 {
	t.Helper()
	const next = -1 // TCX_NEXT
	p := Load(t, program, side, Return(next))
	var l link.Link
	err := ns.Do(func() error {
		at, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Program: p, Attach: side, Interface: at.Index})
		return err
	})
	return detachLater(t, program, p, l, err)
}

func detachLater(t testing.TB, name string, p *ebpf.Program, l link.Link, err error) uint32 {
	t.Helper()
	if err != nil {
		t.Fatalf("attach %s: %v", name, err)
	}
	t.Cleanup(func() { l.Close() })
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}
