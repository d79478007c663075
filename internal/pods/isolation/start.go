package isolation

import (
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts packetwalk-app in new mount, PID, IPC and UTS namespaces; start puts it into a network namespace (kernel/netns,
// Namespace.Start). When it ends, so does all that it started, and its mounts are gone.
func Start(cmd *exec.Cmd, start func(*exec.Cmd) error) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if err := start(cmd); err != nil {
		return fmt.Errorf("start in new namespaces: %w", err)
	}
	return nil
}
