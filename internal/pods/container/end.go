package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/pods/cgroup"
)

// reap kills the process, if it still runs, and waits for its end; nil where another has waited.
func reap(proc *os.Process) *os.ProcessState {
	_ = proc.Kill() // fails for one that has ended
	status, _ := proc.Wait()
	return status
}

// watch waits for the end of the process that records the container's, the shim or the first one; proc is it, nil if it is not our child.
func (c *Container) watch(proc *os.Process) {
	awaitEnd(cmp.Or(c.shim, c.pidfd))
	var status *os.ProcessState
	if proc != nil {
		status, _ = proc.Wait()
	}
	if c.shim != nil {
		status = nil // it is not the container's
		c.endOrphan()
	}
	c.finish(status)
}

// awaitEnd waits for a process's end, by its descriptor.
func awaitEnd(pidfd *os.File) {
	conn, err := pidfd.SyscallConn()
	if err == nil {
		err = conn.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err != unix.EINTR && (n > 0 || err != nil)
		})
	}
	for err != nil && sendSignal(pidfd, 0) == nil { // a kernel whose poller does not take a pidfd
		time.Sleep(100 * time.Millisecond)
	}
}

// endOrphan ends a container whose shim has ended before it: nobody would write its log and learn its exit status.
func (c *Container) endOrphan() {
	if c.pidfd != nil && sendSignal(c.pidfd, unix.SIGKILL) == nil {
		awaitEnd(c.pidfd)
	}
	c.spec.EndRest()
}

// finish finds out how the container ended: what was recorded, else what its parent saw, else what we did to it.
func (c *Container) finish(status *os.ProcessState) {
	exit := c.recordedExit()
	c.mu.Lock()
	defer c.mu.Unlock()
	// What another adopter recorded without knowing does not count against what we know.
	if exit == nil || exit.Reason == ReasonUnknown && (status != nil || c.killed) {
		exit = c.inferExit(status)
		c.record(exit)
	}
	c.exit = *exit
	closeFiles([]*os.File{c.pidfd, c.shim})
	close(c.done)
}

func (c *Container) recordedExit() *Exit {
	dir, err := os.OpenRoot(c.spec.Dir)
	if err != nil {
		return nil
	}
	defer dir.Close()
	state, err := readState(dir)
	if err != nil {
		return nil
	}
	return state.Exit
}

func (c *Container) inferExit(status *os.ProcessState) *Exit {
	exit := &Exit{StartedAt: c.started, FinishedAt: time.Now()}
	switch {
	case status != nil:
		*exit = NewExit(status.Sys().(syscall.WaitStatus), c.started, c.spec.Group)
	case c.killed:
		exit.set(syscall.WaitStatus(unix.SIGKILL))
	default:
		exit.Code, exit.Reason = 137, ReasonUnknown
		exit.Message = "the container ended when nothing watched it"
	}
	return exit
}

// set fills in code, signal and reason from a wait status.
func (e *Exit) set(w syscall.WaitStatus) {
	*e = Exit{StartedAt: e.StartedAt, FinishedAt: e.FinishedAt, Code: w.ExitStatus(), Reason: ReasonError}
	if w.Signaled() {
		e.Signal = int(w.Signal())
		e.Code = 128 + e.Signal
	}
	if e.Code == 0 {
		e.Reason = ReasonCompleted
	}
}

// NewExit is the Exit of a process with this wait status that began to run at started and ended now, in a group.
func NewExit(w syscall.WaitStatus, started time.Time, g cgroup.Group) Exit {
	e := Exit{StartedAt: started, FinishedAt: time.Now()}
	e.set(w)
	if e.Code != 0 && g.OutOfMemory() {
		e.Reason = ReasonMemory
	}
	return e
}

// record keeps an inferred Exit for who adopts the directory later. It does not matter if the directory is gone.
func (c *Container) record(exit *Exit) {
	dir, err := os.OpenRoot(c.spec.Dir)
	if err != nil {
		return
	}
	defer dir.Close()
	if state, err := readState(dir); err == nil {
		state.Exit = exit
		_ = WriteState(dir, state)
	}
}

// Exit is how the container ended; the zero Exit before Done is closed.
func (c *Container) Exit() Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exit
}

// Stop sends the Spec's StopSignal, and SIGKILL when the container still runs after grace (at once if grace is 0 or less) or when ctx ends.
// It returns when the container has ended; stopping one that has ended is no error.
func (c *Container) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		if err := c.signal(cmp.Or(c.spec.StopSignal, unix.SIGTERM)); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.done:
			return nil
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return c.Kill()
}

// Kill sends SIGKILL to everything in the container and waits for its end.
func (c *Container) Kill() error {
	if err := c.kill(); err != nil {
		return err
	}
	<-c.done
	return nil
}

// kill ends the first process, and with it its pid namespace (pid_namespaces(7)).
func (c *Container) kill() error {
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	return c.signal(unix.SIGKILL)
}

// signal sends to the first process; no error if it has ended.
func (c *Container) signal(sig syscall.Signal) error {
	if c.pidfd == nil {
		return nil
	}
	err := sendSignal(c.pidfd, sig)
	// finish closes the descriptor before it closes done, so the error of a closed one comes shortly before done at most.
	if err == nil || errors.Is(err, unix.ESRCH) || c.pidfdClosed() {
		return nil
	}
	return fmt.Errorf("container %s: send %s: %w", c.spec.Name, unix.SignalName(sig), err)
}

func sendSignal(pidfd *os.File, sig syscall.Signal) error {
	return onFd(pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
}

func (c *Container) pidfdClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return isClosed(c.done)
}

// Limit changes what the container may use; what l does not bound stays as it was.
func (c *Container) Limit(l cgroup.Limits) error { return c.spec.Group.Limit(l) }

// Remove ends the container if it runs and deletes Spec.Dir and Spec.Upper. The log stays.
func (c *Container) Remove() error {
	if err := c.Kill(); err != nil {
		return err
	}
	var err error
	for range removeTries { // another that watches the container, its starter, may be recording its end there
		if err = c.spec.removeFiles(); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
		time.Sleep(removePause)
	}
	if err = errors.Join(err, c.spec.Group.Remove()); err != nil {
		return fmt.Errorf("container %s: remove: %w", c.spec.Name, err)
	}
	return nil
}

func (s *Spec) removeFiles() error {
	err := tree.Remove(s.Dir)
	if s.Upper != "" {
		err = errors.Join(err, tree.Remove(s.Upper))
	}
	return err
}

// removeTries and removePause bound how long that may take.
const (
	removeTries = 10
	removePause = 20 * time.Millisecond
)
