package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/realnode"
)

// The stages of a node's own processes, by the first argument of packetwalk-app. The second is the spec's file.
const (
	stageMake = "node"      // the first process, in fresh namespaces: makes the node, and becomes
	stageInit = "node-init" // the first process on the node, which collects orphans, and starts
	stageKeep = "node-keep" // what keeps containerd and kubelet running
)

// Main runs packetwalk-app's main function for a node's stages; ok is false for other arguments. main must have locked the main thread.
func Main(args []string) (status int, ok bool) {
	if len(args) != 3 {
		return 0, false
	}
	var err error
	switch args[1] {
	case stageMake:
		err = makeMachine(args[2])
	case stageInit:
		err = first(args[2])
	case stageKeep:
		err = keep(args[2])
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1, true
	}
	return 0, true
}

// processName is what ps(1) calls a node's first process.
var processName = filepath.Base(isolation.NodeInit)

// makeMachine makes the machine and becomes its first process. That is a new program, so that it has none of the rights and files that
// making a machine needs: a privileged pod that shares process ids could take them.
func makeMachine(path string) error {
	spec, err := realnode.ReadSpec(path)
	if err != nil {
		return err
	}
	unix.Umask(0o022)
	groups, err := joinGroups(spec.Cgroup, spec.Bounds)
	if err != nil {
		return err
	}
	if err := makeRoot(&spec, groups); err != nil {
		return err
	}
	if err := writeSpec(&spec); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("set hostname %q: %w", spec.Hostname, err)
	}
	if err := isolation.LimitNode(); err != nil {
		return err
	}
	program, err := ownProgram()
	if err != nil {
		return fmt.Errorf("copy the node's first program: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0) // the node's own; its modes are the pods' to change
	if err != nil {
		return err
	}
	log, err := os.OpenFile(initLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for fd, file := range []*os.File{null, log, log} {
		if err := unix.Dup3(int(file.Fd()), fd, 0); err != nil {
			return fmt.Errorf("leave the machine's files: %w", err)
		}
	}
	err = unix.Exec(program, []string{processName, stageInit, realnode.SpecFile}, isolation.NodeEnv)
	return fmt.Errorf("become the node's first process: %w", err)
}

// initLog is what the node's own processes say.
const initLog = "/var/log/init.log"

// ownProgram makes a copy of this program that is the node's alone, on a read-only file system in memory: a pod with the node's processes
// finds what they execute by /proc/PID/exe, and could change the machine's file.
func ownProgram() (path string, err error) {
	dir := filepath.Dir(isolation.NodeInit)
	if err := isolation.MountAt("tmpfs", dir, unix.MS_NOSUID|unix.MS_NODEV, "mode=0555"); err != nil {
		return "", err
	}
	from, err := os.Open(isolation.Self)
	if err != nil {
		return "", err
	}
	defer from.Close()
	path = isolation.NodeInit
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o555)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		return "", err
	}
	return path, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

// writeSpec gives the spec to the node's own processes, in memory: what the node's root changes of it is gone when the node starts again.
func writeSpec(s *realnode.Spec) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(realnode.SpecFile), 0o755); err != nil {
		return err
	}
	return os.WriteFile(realnode.SpecFile, text, 0o600)
}

// first runs as the node's first process: it collects the dead, passes SIGTERM on, and ends with the one that keeps the programs. The
// kernel then ends everything else on the node (pid_namespaces(7)).
func first(path string) error {
	// Programs that were started through isolation.Self are called exe.
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(unsafe.StringData(processName+"\x00"))), 0, 0, 0); err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	pid, err := syscall.ForkExec(isolation.Self, []string{processName, stageKeep, path}, &syscall.ProcAttr{Env: isolation.NodeEnv, Files: []uintptr{0, 1, 2}})
	if err != nil {
		return fmt.Errorf("start what keeps the node's programs: %w", err)
	}
	go func() {
		for range signals {
			_ = syscall.Kill(pid, unix.SIGTERM)
		}
	}()
	for {
		var status syscall.WaitStatus
		switch dead, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the node's processes: %w", err)
		case dead == pid && status.ExitStatus() == 0:
			return nil
		case dead == pid:
			return fmt.Errorf("what keeps the node's programs has ended: %v", status)
		}
	}
}
