package isolation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"packetwalk.dev/internal/base/program"
)

// HostCommand is a command on a host of a lab, as ssh(1) runs it. On a VM, an internet host or another network namespace it has the machine's own file system, read-write, new
// mount and UTS namespaces, and a /sys that shows the network namespace's links.
type HostCommand struct {
	NetNS    string // path
	Hostname string // "" keeps the machine's
	Args     []string
	Env      []string
	// ResolvConf is what this command, and no other, finds as /etc/resolv.conf, read-only; nil is the machine's.
	ResolvConf []byte
	// Machine is the first process of a node. The command has the node's file system, processes and control groups then, and of the other
	// fields Args, Env and Hostname count. 0 is for hosts that are no nodes, NoMachine for a node that is not running.
	Machine int
}

// NoMachine is the Machine of a node that is not running.
const NoMachine = -1

// endTime is how long a command that is to end may take, and what it has left behind may write.
const endTime = 5 * time.Second

// Run runs the command by packetwalk-app, at a path, and returns its exit status (128+n after signal n). Empty Args run a shell. Files
// among the streams are handed through, so that a terminal stays one; nil streams are /dev/null. A command that cannot be executed gives
// 127 or 126 and says why on stderr, as a shell does. When ctx ends, the command is killed.
func (c HostCommand) Run(ctx context.Context, app string, stdin io.Reader, stdout, stderr io.Writer) (code int, err error) {
	cmd := exec.CommandContext(ctx, app)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = endTime
	if c.Machine != 0 {
		err = c.onMachine(cmd)
	} else {
		err = c.inNamespace(cmd)
	}
	if err != nil {
		return -1, err
	}
	if f, ok := stdin.(*os.File); ok { // a node that ends kills what reads the terminal, which would stay raw
		if before, err := term.GetState(int(f.Fd())); err == nil {
			defer func() { _ = term.Restore(int(f.Fd()), before) }()
		}
	}
	err = cmd.Run()
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	var status *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		return -1, context.Cause(ctx)
	case !errors.As(err, &status):
		return -1, fmt.Errorf("run a command on %s: %w", c.Hostname, err)
	}
	return exitStatus(status.Sys().(syscall.WaitStatus)), nil
}

func (c HostCommand) inNamespace(cmd *exec.Cmd) error {
	if !filepath.IsAbs(c.NetNS) {
		return fmt.Errorf("network namespace %q is not an absolute path", c.NetNS)
	}
	cmd.Env = c.Env
	c.Env = nil // it is the process's
	text, err := json.Marshal(c)
	cmd.Args = append(cmd.Args, stageHost, string(text))
	return err
}

func (c HostCommand) onMachine(cmd *exec.Cmd) error {
	if c.Machine == NoMachine {
		return fmt.Errorf("node %s is not running; 'packetwalk status' says why", c.Hostname)
	}
	fd, err := unix.PidfdOpen(c.Machine, 0)
	if err != nil {
		return fmt.Errorf("enter the machine %s: %w", c.Hostname, err)
	}
	for _, variable := range c.Env {
		if !strings.HasPrefix(variable, "PATH=") && !strings.HasPrefix(variable, "HOME=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+program.Path, "HOME="+nodeHome)
	cmd.Args = append(append(cmd.Args, stageNodeExec), c.Args...)
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "pidfd")}
	return nil
}
