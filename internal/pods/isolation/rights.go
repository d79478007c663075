package isolation

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withheld are the capabilities that nothing on a node has, because they reach beyond it: loading modules and kernels, ports and memory of
// the hardware, the clock, and opening the machine's files by handle (open_by_handle_at(2)).
var withheld = []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_TIME, unix.CAP_SYS_BOOT, unix.CAP_DAC_READ_SEARCH}

// dropBounding takes capabilities from what the calling thread executes next.
func dropBounding(capabilities []uintptr) error {
	for _, n := range capabilities {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", n, err)
		}
	}
	return nil
}

// LimitNode takes from what the calling thread executes next the capabilities that nothing on a node has, and sockets that lead out of a
// virtual machine past the lab. The thread itself keeps its rights. The caller has locked the goroutine to its thread and does not unlock it.
func LimitNode() error {
	if err := dropBounding(withheld); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	return setFilter(nodeFilter())
}

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h): the lower half of the first argument is all that a family is in.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16 // little endian, as both architectures are
)

// An abi is a set of system calls that a kernel has, by its numbers.
type abi struct {
	arch       uint32 // AUDIT_ARCH_…
	socket     uint32
	socketCall uint32 // the call that has sockets' arguments in memory, where a filter does not see them; 0 for none
	x32        bool   // its calls have other numbers too, of 32-bit pointers
}

// abis are those of the machine's kernel, by GOARCH: its own, and that of 32-bit programs (arch/*/entry/syscalls, include/uapi/asm-generic).
var abis = map[string][]abi{
	"amd64": {{arch: unix.AUDIT_ARCH_X86_64, socket: 41, x32: true}, {arch: unix.AUDIT_ARCH_I386, socket: 359, socketCall: 102}},
	"arm64": {{arch: unix.AUDIT_ARCH_AARCH64, socket: 198}, {arch: unix.AUDIT_ARCH_ARM, socket: 281}},
}[runtime.GOARCH]

const (
	ioUringSetup = 425        // of all architectures
	x32Bit       = 0x40000000 // of the numbers of x32's calls (arch/x86/include/uapi/asm/unistd.h)
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jumpUnless skips n instructions unless the value is k.
func jumpUnless(k uint32, n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jf: uint8(n), K: k}
}

// jumpUnlessSet skips n instructions unless the value has a bit of k.
func jumpUnlessSet(k uint32, n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JSET, Jf: uint8(n), K: k}
}

func answer(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// nodeFilter refuses sockets of AF_VSOCK, which is in no network namespace and leads from a virtual machine to what runs it, and what
// would make them past a filter (seccomp(2)): io_uring (IORING_OP_SOCKET), i386's socketcall, and x32.
func nodeFilter() []unix.SockFilter {
	refuse := answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	f := []unix.SockFilter{load(dataArch)}
	for _, a := range abis {
		calls := []unix.SockFilter{load(dataNumber), jumpUnless(ioUringSetup, 1), refuse}
		if a.socketCall > 0 {
			calls = append(calls, jumpUnless(a.socketCall, 1), refuse)
		}
		if a.x32 {
			calls = append(calls, jumpUnlessSet(x32Bit, 1), refuse)
		}
		calls = append(calls, jumpUnless(a.socket, 3), load(dataArg0), jumpUnless(unix.AF_VSOCK, 1), refuse, answer(unix.SECCOMP_RET_ALLOW))
		f = append(append(f, jumpUnless(a.arch, len(calls))), calls...)
	}
	return append(f, refuse)
}

func setFilter(f []unix.SockFilter) error {
	if len(abis) == 0 {
		return fmt.Errorf("filter system calls: not known how on %s", runtime.GOARCH)
	}
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
