package boot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/supervise"
)

// machineLimit is how long a program waits for its node to run.
const machineLimit = 10 * time.Minute

// programDir has the node's own copy of this program, read-only.
const programDir = "/run/packetwalk/init"

// runInside runs a program of a node's on it, until one of both ends, and gives its exit status. This process stays outside, with the log:
// nothing on the node holds a file of the machine's. It must be the main thread, whose namespaces change.
func runInside(pidFile string, args []string) (status int, err error) {
	pidfd, err := awaitMachine(pidFile)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(enter(pidfd), unix.Close(pidfd)); err != nil {
		return 0, err
	}
	if err := limitMachine(); err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull) // the node's
	if err != nil {
		return 0, err
	}
	output, said, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	alive, held, err := os.Pipe() // closes with this process
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	pid, err := startProgram(args, &syscall.ProcAttr{Env: environment, Dir: "/",
		Files: []uintptr{null.Fd(), said.Fd(), said.Fd(), alive.Fd()}})
	if err != nil {
		return 0, err
	}
	for _, f := range []*os.File{null, said, alive} {
		f.Close()
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(pid, s.(syscall.Signal))
		}
	}()
	copied := make(chan struct{})
	go func() { _, _ = io.Copy(os.Stderr, output); close(copied) }()
	var ended syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(pid, &ended, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	select {
	case <-copied:
	case <-time.After(time.Second): // what it has left behind may write for ever
	}
	held.Close()
	switch {
	case err != nil:
		return 0, fmt.Errorf("wait for %s: %w", args[0], err)
	case ended.Signaled():
		return 0, fmt.Errorf("%s: %v", args[0], ended.Signal())
	}
	return ended.ExitStatus(), nil
}

// awaitMachine waits until a node runs, as far as it is the machine that it will be, and opens its first process.
func awaitMachine(pidFile string) (pidfd int, err error) {
	for end := time.Now().Add(machineLimit); time.Now().Before(end); time.Sleep(socketPause) {
		pid := supervise.Recorded(pidFile)
		if pid == 0 {
			continue
		}
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			continue // it has ended
		}
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(name) == processName+"\n" {
			return pidfd, nil
		}
		unix.Close(pidfd)
	}
	return 0, fmt.Errorf("the node does not run after %v", machineLimit)
}

// startProgram starts a program on the node, in which the calling thread is, by the node's own copy of this one: that has it end with this
// process, which Go's own way to (SysProcAttr.Pdeathsig) cannot, because in the node's PID namespace it has no parent. The fourth of attr's
// files is the end of a pipe whose other end this process holds.
func startProgram(args []string, attr *syscall.ProcAttr) (pid int, err error) {
	pid, err = syscall.ForkExec(filepath.Join(programDir, processName), append([]string{processName, stageBecome}, args...), attr)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", args[0], err)
	}
	return pid, nil
}

// execProgram runs in startProgram's child and executes the program, which ends with its parent.
func execProgram(args []string) error {
	const alive = 3
	unix.CloseOnExec(alive)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	poll := []unix.PollFd{{Fd: alive}}
	if _, err := unix.Poll(poll, 0); err != nil || poll[0].Revents != 0 { // a parent that ended before sends no signal
		return fmt.Errorf("who started %s has ended (%w)", args[0], err)
	}
	return fmt.Errorf("execute %s: %w", args[0], unix.Exec(args[0], args, os.Environ()))
}
