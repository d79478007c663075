package container

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are the system calls that need no capability and get at the machine all the same: the keys of the machine's root, who is the
// container's too. User namespaces, which give their maker all capabilities in them, are denied by what clone and unshare are asked for:
// with SYS_ADMIN in one, cgroup2 can be mounted, and its files are root's.
var denied = []uint32{unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL}

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h): the lower half of the first argument is all that a flag is in.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16 // little endian, as both architectures are
)

// x32Calls is the first number of amd64's other system calls (x32, __X32_SYSCALL_BIT), which are the same ones.
const x32Calls = 0x40000000

var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]

const (
	allow  = unix.SECCOMP_RET_ALLOW
	refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	// unknown is for what a C library has another way to do: clone3, whose flags are in memory where a filter does not see them.
	unknown = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// filter is the program that looks at each system call of a container's process (seccomp(2), bpf(4)).
func filter() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// unless skips n instructions unless the comparison is true.
	unless := func(compare uint16, k uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | compare, Jf: n, K: k}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

	p := []unix.SockFilter{
		load(dataArch), {Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jt: 1, K: auditArch}, answer(unknown),
		load(dataNumber), unless(unix.BPF_JGE, x32Calls, 1), answer(unknown),
		unless(unix.BPF_JEQ, unix.SYS_CLONE3, 1), answer(unknown),
	}
	for _, number := range denied {
		p = append(p, unless(unix.BPF_JEQ, number, 1), answer(refuse))
	}
	for _, number := range []uint32{unix.SYS_CLONE, unix.SYS_UNSHARE} {
		p = append(p, unless(unix.BPF_JEQ, number, 4), load(dataArg0), unless(unix.BPF_JSET, unix.CLONE_NEWUSER, 1), answer(refuse),
			answer(allow))
	}
	return append(p, answer(allow))
}

// filterThread puts the filter on the calling thread and what it starts. Where the architecture is another one there is no filter, and an
// error.
func filterThread() error {
	if auditArch == 0 {
		return fmt.Errorf("filter system calls: not known how on %s", runtime.GOARCH)
	}
	f := filter()
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
