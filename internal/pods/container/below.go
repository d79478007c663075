package container

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// InProcesses calls f on the calling thread, which is locked to its goroutine: what it starts there is in the process namespace of the
// process that a pidfd is of (setns(2)).
func InProcesses(pidfd *os.File, f func() error) error {
	own, err := os.Open("/proc/thread-self/ns/pid")
	if err != nil {
		return err
	}
	defer own.Close()
	// The runtime starts no threads from a locked one.
	if err = onFd(pidfd, func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWPID) }); err != nil {
		return fmt.Errorf("enter the process namespace of another container: %w", err)
	}
	return errors.Join(f(), unix.Setns(int(own.Fd()), unix.CLONE_NEWPID))
}

// StartBelow starts packetwalk-app, with four files, in NewNamespaces: its process namespace is below that of the process that a pidfd is
// of. The calling thread is locked to its goroutine. The kernel makes a process namespace below the maker's own alone, and a thread that
// has entered another one by setns is still in its own (clone(2), EINVAL); so that a process in there makes it (StageBelow), which then
// leaves what it has started to us as our child (CLONE_PARENT), and ends.
func StartBelow(pidfd *os.File, name string, argv []string, attr *os.ProcAttr) (proc *os.Process, err error) {
	report, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer report.Close()
	sys := syscall.SysProcAttr{Cloneflags: attr.Sys.Cloneflags &^ NewNamespaces}
	way := os.ProcAttr{Dir: attr.Dir, Env: attr.Env, Files: append(attr.Files[:len(attr.Files):len(attr.Files)], theirs), Sys: &sys}
	var starter *os.Process
	err = InProcesses(pidfd, func() (err error) {
		starter, err = os.StartProcess(name, append([]string{argv[0], StageBelow}, argv[1:]...), &way)
		return err
	})
	theirs.Close()
	if starter == nil {
		return nil, err
	}
	said, readErr := io.ReadAll(report)
	_, waitErr := starter.Wait()
	pid, numberErr := strconv.Atoi(string(said))
	if numberErr != nil {
		return nil, fmt.Errorf("below another process namespace: %w", cmp.Or(err, readErr, errors.New(string(said)), waitErr))
	}
	return os.FindProcess(pid) // a child of ours, for which nobody has waited
}
