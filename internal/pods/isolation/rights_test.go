package isolation

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestFilter: what a node runs gets no socket of AF_VSOCK, by whatever call. The calls do not fail so without the filter.
func TestFilter(t *testing.T) {
	kerneltest.NeedRoot(t)
	tests := []struct {
		name string
		call func() error
		want bool // it is refused
	}{
		{"socket of AF_VSOCK", func() error { return closed(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)) }, true},
		{"socket of AF_INET", func() error { return closed(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)) }, false},
		{"socket of AF_UNIX", func() error { return closed(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)) }, false},
		{"io_uring", func() error { return errnoOf(unix.Syscall(ioUringSetup, 0, 0, 0)) }, true},
	}
	if runtime.GOARCH == "amd64" {
		program := filepath.Join(t.TempDir(), "call")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "testdata/socketcall.go")
		build.Env = append(os.Environ(), "GOARCH=386", "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		run := func() error { // its status is the number of the error
			cmd := exec.Command(program)
			_ = cmd.Run()
			return unix.Errno(cmd.ProcessState.ExitCode())
		}
		if !errors.Is(run(), unix.ENOSYS) { // a kernel that runs programs of i386
			tests = append(tests, struct {
				name string
				call func() error
				want bool
			}{"socketcall of i386", run, true})
		}
		tests = append(tests, tests[0])
		tests[len(tests)-1].name = "socket of x32"
		tests[len(tests)-1].call = func() error { return errnoOf(unix.Syscall(unix.SYS_SOCKET|x32Bit, unix.AF_VSOCK, unix.SOCK_STREAM, 0)) }
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := test.call(); errors.Is(err, unix.EPERM) {
				t.Fatalf("without the filter: %v", err)
			}
			refused := make(chan error)
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends with its filter
				if err := setFilter(nodeFilter()); err != nil {
					refused <- err
					return
				}
				refused <- test.call()
			}()
			if err := <-refused; errors.Is(err, unix.EPERM) != test.want {
				t.Errorf("with the filter: %v, want it to be refused: %v", err, test.want)
			}
		})
	}
}

func closed(fd int, err error) error {
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func errnoOf(_, _ uintptr, e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
