// Package bpflock keeps tests that load BPF programs of socket maps apart from tests whose packets walk. Such a program is in no namespace and
// no control group. It may be at any socket of the machine, and makes the walks of all labs undecided.
package bpflock

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// The files that are locked. A test that waits to load a program holds the gate, so that no more walks begin.
const (
	gateFile     = "/run/lock/packetwalk-test-gate"
	programsFile = "/run/lock/packetwalk-test-programs"
)

// How a file is locked (flock(2)).
const (
	shared    = syscall.LOCK_SH
	exclusive = syscall.LOCK_EX
)

// Load waits until no packets walk in tests of any package, and keeps them from it until the test ends, which loads a program meanwhile.
func Load(t *testing.T) {
	t.Helper()
	unlock, err := lock(exclusive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
}

// Walk waits until no test has a program loaded, and keeps tests from it until unlock is called. Who holds the lock must not ask for it again:
// a test that waits to load a program would come between.
func Walk() (unlock func(), err error) { return lock(shared) }

func lock(how int) (unlock func(), err error) {
	gate, err := lockFile(gateFile, how)
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	programs, err := lockFile(programsFile, how)
	if err != nil {
		return nil, err
	}
	return func() { programs.Close() }, nil
}

// lockFile returns a file that flock(2) has locked, until it is closed.
func lockFile(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
