package container

import (
	"cmp"
	"context"
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

// StartIn starts a stage of packetwalk-app, at the path name, in the process namespace of the process that a pidfd is of. The calling
// thread is locked to its goroutine, and the stage is its child. Of attr count Files, Env and Sys.Cloneflags.
func StartIn(ctx context.Context, pidfd *os.File, name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	o := order{Enter: unix.CLONE_NEWPID, Path: name, Args: octets(argv), Env: octets(attr.Env), Cloneflags: attr.Sys.Cloneflags}
	return o.start(ctx, name, pidfd, attr.Files)
}

// StartBelow is StartIn, of a stage with four files, in NewNamespaces: its process namespace is below that of the process that the pidfd is
// of. The kernel makes a process namespace below the maker's own alone, and a thread that has entered another one by setns is still in its
// own (clone(2), EINVAL); so that a process in there makes it (StageBelow), which then leaves what it has started to us as our child
// (CLONE_PARENT), and ends. Who has processes in there may stop or end it: then we wait for a bounded time, and what it has started ends.
func StartBelow(ctx context.Context, pidfd *os.File, name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errStopped)
	defer cancel()
	report, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer report.Close()
	way := os.ProcAttr{Env: attr.Env, Files: append(attr.Files[:len(attr.Files):len(attr.Files)], theirs),
		Sys: &syscall.SysProcAttr{Cloneflags: attr.Sys.Cloneflags &^ NewNamespaces}}
	before := children()
	starter, err := StartIn(ctx, pidfd, name, append([]string{argv[0], StageBelow}, argv[1:]...), &way)
	theirs.Close()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = report.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said, err := io.ReadAll(report)
	status := reap(starter)
	pid, numberErr := strconv.Atoi(string(said))
	if numberErr != nil {
		endChildren(before)
		return nil, fmt.Errorf("below another process namespace: %w", cmp.Or(context.Cause(ctx), err, fmt.Errorf("%s (%v)", said, status)))
	}
	return os.FindProcess(pid) // a child of ours, for which nobody has waited
}

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
