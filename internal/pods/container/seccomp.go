package container

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are the system calls that need no capability and get at the machine all the same, as in container engines' default profiles: the
// keys of the machine's root, who is the container's too; the kernel's log; programs and counters in the kernel; and io_uring, which makes
// other calls where no filter sees them.
var denied = []uint32{
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_SYSLOG, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_KCMP, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
}

// deniedFor are system calls that are denied by their first argument. User namespaces give their maker all capabilities in them: with
// SYS_ADMIN in one, cgroup2 can be mounted, and its files are root's. Sockets of AF_VSOCK, which is in no network namespace, lead from a
// virtual machine to what runs it, past the lab.
var deniedFor = []struct {
	call    uint32
	compare uint16
	value   uint32
}{
	{unix.SYS_CLONE, unix.BPF_JSET, unix.CLONE_NEWUSER},
	{unix.SYS_UNSHARE, unix.BPF_JSET, unix.CLONE_NEWUSER},
	{unix.SYS_SOCKET, unix.BPF_JEQ, unix.AF_VSOCK},
}

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

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// unless skips n instructions unless the comparison is true.
func unless(compare uint16, k uint32, n uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | compare, Jf: n, K: k}
}

func answer(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// filter is the program that looks at each system call of a container's process (seccomp(2), bpf(4)).
func filter() []unix.SockFilter {
	p := []unix.SockFilter{
		load(dataArch), {Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jt: 1, K: auditArch}, answer(unknown),
		load(dataNumber), unless(unix.BPF_JGE, x32Calls, 1), answer(unknown),
		unless(unix.BPF_JEQ, unix.SYS_CLONE3, 1), answer(unknown),
	}
	for _, number := range denied {
		p = append(p, unless(unix.BPF_JEQ, number, 1), answer(refuse))
	}
	for _, d := range deniedFor {
		p = append(p, unless(unix.BPF_JEQ, d.call, 4), load(dataArg0), unless(d.compare, d.value, 1), answer(refuse), answer(allow))
	}
	return append(p, answer(allow))
}

// machineFilter is that of a host that is a machine of its own: of all calls it refuses sockets of AF_VSOCK, where the architecture is
// this one; io_uring (IORING_OP_SOCKET) goes past it. Its container runtime has filters for the rest, for pods with a profile.
func machineFilter() []unix.SockFilter {
	return []unix.SockFilter{
		load(dataArch), unless(unix.BPF_JEQ, auditArch, 5),
		load(dataNumber), unless(unix.BPF_JEQ, unix.SYS_SOCKET, 3),
		load(dataArg0), unless(unix.BPF_JEQ, unix.AF_VSOCK, 1), answer(refuse), answer(allow),
	}
}

// filterThread puts the filter on the calling thread and what it starts. Where the architecture is another one there is no filter, and an
// error.
func filterThread() error { return setFilter(filter(), 0) }

// FilterProcess puts the filter on all threads, and what they execute gets no right that they have not (no_new_privs), whatever user it is:
// to be called before capabilities are taken from this process.
func FilterProcess() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	// Other threads get no_new_privs with it (kernel/seccomp.c, seccomp_sync_threads).
	return setFilter(filter(), unix.SECCOMP_FILTER_FLAG_TSYNC)
}

func setFilter(f []unix.SockFilter, flags uintptr) error {
	if auditArch == 0 {
		return fmt.Errorf("filter system calls: not known how on %s", runtime.GOARCH)
	}
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 || thread != 0 {
		return fmt.Errorf("filter system calls: %w (thread %d)", errno, thread)
	}
	return nil
}
