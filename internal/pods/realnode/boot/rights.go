package boot

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withheld are the capabilities that nothing on a node has, because they reach beyond it: loading modules and kernels, ports and memory of
// the hardware, the clock, and opening the machine's files by handle (open_by_handle_at(2)).
var withheld = []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_TIME, unix.CAP_SYS_BOOT, unix.CAP_DAC_READ_SEARCH}

// limitMachine takes them from what the calling thread executes next, and sockets that lead out of a virtual machine past the lab. The
// thread itself keeps its rights. The caller has locked the goroutine to its thread and does not unlock it.
func limitMachine() error {
	for _, n := range withheld {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", n, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	return setFilter(machineFilter())
}

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h): the lower half of the first argument is all that a family is in.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16 // little endian, as both architectures are
)

var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jumpUnless skips n instructions unless the value is k.
func jumpUnless(k uint32, n uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jf: n, K: k}
}

func answer(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// machineFilter refuses sockets of AF_VSOCK, which is in no network namespace and leads from a virtual machine to what runs it, where the
// architecture is this one; io_uring (IORING_OP_SOCKET) goes past it. The container runtime has filters for the rest, for pods with a
// profile (seccomp(2)).
func machineFilter() []unix.SockFilter {
	const refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	return []unix.SockFilter{
		load(dataArch), jumpUnless(auditArch, 5),
		load(dataNumber), jumpUnless(unix.SYS_SOCKET, 3),
		load(dataArg0), jumpUnless(unix.AF_VSOCK, 1), answer(refuse), answer(unix.SECCOMP_RET_ALLOW),
	}
}

func setFilter(f []unix.SockFilter) error {
	if auditArch == 0 {
		return fmt.Errorf("filter system calls: not known how on %s", runtime.GOARCH)
	}
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
