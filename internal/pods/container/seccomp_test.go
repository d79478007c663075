package container

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestLimitMachine: on a host that is a machine of its own no socket leads to what runs this machine, and every other call is as it was.
func TestLimitMachine(t *testing.T) {
	kerneltest.NeedRoot(t)
	OnThread(func() (clean bool) {
		if err := LimitMachine(); err != nil {
			t.Error(err)
			return false
		}
		for family, want := range map[uintptr]syscall.Errno{unix.AF_VSOCK: unix.EPERM, unix.AF_MAX: unix.EAFNOSUPPORT} {
			if _, _, errno := unix.RawSyscall(unix.SYS_SOCKET, family, unix.SOCK_STREAM, 0); errno != want {
				t.Errorf("a socket of family %d: %v, want %v", family, errno, want)
			}
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, 0, 0); errno == unix.EPERM {
			t.Error("keyctl is refused")
		}
		return false
	})
}

func TestFilterThread(t *testing.T) {
	kerneltest.NeedRoot(t)
	OnThread(func() (clean bool) {
		if err := filterThread(); err != nil {
			t.Error(err)
			return false
		}
		call := func(number, a, b uintptr) error {
			_, _, errno := unix.RawSyscall(number, a, b, 0)
			return errno
		}
		for _, tt := range []struct {
			name string
			got  error
			want syscall.Errno
		}{
			{"keyctl", call(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, 0), unix.EPERM},
			{"add_key", call(unix.SYS_ADD_KEY, 0, 0), unix.EPERM},
			{"request_key", call(unix.SYS_REQUEST_KEY, 0, 0), unix.EPERM},
			{"clone3", call(unix.SYS_CLONE3, 0, 0), unix.ENOSYS},
			// Of a process with threads the kernel would say EINVAL.
			{"unshare of users", call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0), unix.EPERM},
			{"clone with users", call(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS, 0), unix.EPERM},
			{"unshare of files", call(unix.SYS_UNSHARE, unix.CLONE_FILES, 0), 0},
			{"syslog", call(unix.SYS_SYSLOG, 10, 0), unix.EPERM},
			{"bpf", call(unix.SYS_BPF, 0, 0), unix.EPERM},
			{"perf_event_open", call(unix.SYS_PERF_EVENT_OPEN, 0, 0), unix.EPERM},
			{"userfaultfd", call(unix.SYS_USERFAULTFD, 1<<30, 0), unix.EPERM},
			{"io_uring_setup", call(unix.SYS_IO_URING_SETUP, 0, 0), unix.EPERM},
			{"a socket to the hypervisor", call(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM), unix.EPERM},
			{"a socket of no family", call(unix.SYS_SOCKET, unix.AF_MAX, 0), unix.EAFNOSUPPORT},
			{"getpid", call(unix.SYS_GETPID, 0, 0), 0},
		} {
			if !errors.Is(tt.got, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
			}
		}
		return false
	})
	if _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); err == unix.EPERM {
		t.Error("another thread has the filter")
	}
}
