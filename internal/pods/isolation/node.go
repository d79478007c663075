package isolation

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

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/supervise"
)

// Self is this program, wherever it was started from.
const Self = "/proc/self/exe"

// NodeInit is a node's own copy of packetwalk-app, on a read-only file system. It is the program of the node's first process.
const NodeInit = "/run/packetwalk/init/packetwalk-init"

// nodeHome is the directory in which commands on nodes begin.
const nodeHome = "/root"

// NodeEnv is the environment of a node's programs.
var NodeEnv = []string{"PATH=" + program.Path, "HOME=" + nodeHome, "LANG=C.UTF-8"}

// NodeArgs returns packetwalk-app's arguments to run a program of a node on it. A pid file names the node's first process. The program
// starts as soon as the node runs, and ends with the process that has these arguments.
func NodeArgs(pidFile, program string, args []string) []string {
	return append([]string{stageNodeRun, pidFile, program}, args...)
}

const (
	nodeLimit = 10 * time.Minute      // for a node to run
	nodePause = 20 * time.Millisecond // between two looks whether it does
)

// runOnNode runs a program of a node's on it, until one of both ends, and gives its exit status. This process stays outside, with the log:
// nothing on the node holds a file of the machine's. It must be the main thread, whose namespaces change.
func runOnNode(pidFile string, args []string) (status int, err error) {
	pidfd, err := awaitNode(pidFile)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(enter(pidfd), unix.Close(pidfd)); err != nil {
		return 0, err
	}
	if err := LimitNode(); err != nil {
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
	pid, err := startProgram(args, &syscall.ProcAttr{Env: NodeEnv, Dir: "/",
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
	ended, err := wait(pid)
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

// awaitNode waits until a node runs, as far as it is the machine that it will be, and opens its first process.
func awaitNode(pidFile string) (pidfd int, err error) {
	for end := time.Now().Add(nodeLimit); time.Now().Before(end); time.Sleep(nodePause) {
		pid := supervise.Recorded(pidFile)
		if pid == 0 {
			continue
		}
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			continue // it has ended
		}
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(name) == filepath.Base(NodeInit)+"\n" {
			return pidfd, nil
		}
		unix.Close(pidfd)
	}
	return 0, fmt.Errorf("the node does not run after %v", nodeLimit)
}

// startProgram starts a program on the node, in which the calling thread is, by the node's own copy of this one: that has it end with this
// process, which Go's own way to (SysProcAttr.Pdeathsig) cannot, because in the node's PID namespace it has no parent. The fourth of attr's
// files is the end of a pipe whose other end this process holds.
func startProgram(args []string, attr *syscall.ProcAttr) (pid int, err error) {
	pid, err = syscall.ForkExec(NodeInit, append([]string{filepath.Base(NodeInit), stageBecome}, args...), attr)
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
