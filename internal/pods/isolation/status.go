package isolation

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

// Exit statuses of shells for commands that did not run.
const (
	statusFailed   = 125 // the program around it failed
	statusNoExec   = 126
	statusNotFound = 127
)

// notExecuted returns the exit status for a command that cannot be executed.
func notExecuted(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return statusNotFound
	}
	return statusNoExec
}

// exitStatus returns the exit status of a process that has ended, as shells have it: 128+n after signal n.
func exitStatus(ended syscall.WaitStatus) int {
	if ended.Signaled() {
		return 128 + int(ended.Signal())
	}
	return ended.ExitStatus()
}

// wait waits for the end of a child.
func wait(pid int) (ended syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(pid, &ended, 0, nil); !errors.Is(err, syscall.EINTR) {
			return ended, err
		}
	}
}
