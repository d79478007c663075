//go:build linux

package kerneltest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// WriteProgram writes a program that can be run at once. A process that is forked while the file is open for writing has it open, too, until
// it runs its own program; the kernel runs none that is open for writing (ETXTBSY).
func WriteProgram(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, text, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

const withoutRights = "PACKETWALK_TEST_WITHOUT_RIGHTS"

// WithoutRights runs the test again as a process that has no rights over the machine: it may not look at the machine's processes and
// programs, although it sees that they exist. It reports whether the caller is that process.
func WithoutRights(t *testing.T) bool {
	t.Helper()
	if os.Getenv(withoutRights) != "" {
		return true
	}
	NeedRoot(t)
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), withoutRights+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
	out, err := child.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		Missing(t, "user namespaces: %v", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return false
}
