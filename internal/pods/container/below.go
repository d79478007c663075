package container

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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
// leaves what it has started to us as our child (CLONE_PARENT), and ends. Who has processes in there may stop or end it: then we wait for
// a bounded time, and what it has started ends.
func StartBelow(pidfd *os.File, name string, argv []string, attr *os.ProcAttr) (proc *os.Process, err error) {
	report, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer report.Close()
	sys := syscall.SysProcAttr{Cloneflags: attr.Sys.Cloneflags &^ NewNamespaces}
	way := os.ProcAttr{Dir: attr.Dir, Env: attr.Env, Files: append(attr.Files[:len(attr.Files):len(attr.Files)], theirs), Sys: &sys}
	before := children()
	var starter *os.Process
	err = InProcesses(pidfd, func() (err error) {
		starter, err = os.StartProcess(name, append([]string{argv[0], StageBelow}, argv[1:]...), &way)
		return err
	})
	theirs.Close()
	if starter == nil {
		return nil, err
	}
	_ = report.SetReadDeadline(time.Now().Add(belowTime))
	said, readErr := io.ReadAll(report)
	status := reap(starter)
	pid, numberErr := strconv.Atoi(string(said))
	if numberErr != nil {
		endChildren(before)
		return nil, fmt.Errorf("below another process namespace: %w", cmp.Or(err, readErr, fmt.Errorf("%s (%v)", said, status)))
	}
	return os.FindProcess(pid) // a child of ours, for which nobody has waited
}

// belowTime is how long a process of StageBelow, which takes milliseconds, is waited for.
const belowTime = 30 * time.Second

// children are those that the calling thread has started, and that nobody has waited for (proc_pid_children(5)).
func children() []string {
	text, _ := os.ReadFile("/proc/thread-self/children") // of a kernel without it nothing is found
	return strings.Fields(string(text))
}

// endChildren ends the calling thread's children but for those before: a process that nobody has waited for keeps all process namespaces
// that it is in. The thread has started no others since; and those of a thread that ends become the first thread's, if it lives.
func endChildren(before []string) {
	for _, child := range children() {
		if pid, err := strconv.Atoi(child); err == nil && !slices.Contains(before, child) {
			if proc, err := os.FindProcess(pid); err == nil {
				reap(proc)
			}
		}
	}
}
