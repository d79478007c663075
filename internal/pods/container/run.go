package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// A Run is a command in the network namespace of a host that is not a container: a node, a VM, the fabric. The file system is the machine's
// own, read-write; mount and UTS namespaces are new, with a /sys that shows the network namespace's links.
type Run struct {
	NetNS    string // path
	Hostname string // "" keeps the machine's
	Args     []string
	Env      []string // nil is the caller's
	Dir      string   // "" is the caller's
	// ResolvConf is what this command, and no other, finds as /etc/resolv.conf, read-only; nil is the machine's.
	ResolvConf []byte
	// Machine is the first process of a host that is a machine of its own, whose file system, processes and control groups the command
	// has, and none of the capabilities that are withheld there; 0 for none, and NoMachine for one that does not run. With it only Args and
	// Env count, and a terminal is not handed through, but stands before one of the host's own.
	Machine int
}

// NoMachine is the Machine of a host that is one of its own and does not run.
const NoMachine = -1

func (run *Run) environ() []string {
	if run.Env == nil {
		return os.Environ()
	}
	return run.Env
}

// runArgv gives the command line and environment that RunIn executes.
func (r *Runtime) runArgv(run Run) (argv, env []string, err error) {
	if !filepath.IsAbs(run.NetNS) {
		return nil, nil, fmt.Errorf("network namespace %q is not an absolute path", run.NetNS)
	}
	env = run.environ()
	run.Env = nil // it is the process's
	arg, err := json.Marshal(run)
	if err != nil {
		return nil, nil, err
	}
	return []string{r.Binary, "run", string(arg)}, env, nil
}

// RunIn runs the command and returns its exit status (128+n after signal n). Empty Args run the user's shell ($SHELL, else bash, else sh).
// Files among the streams are handed through, so that a terminal stays one; nil streams are /dev/null. A command that cannot be executed
// gives 127 or 126 and says why on stderr, as a shell does.
func (r *Runtime) RunIn(ctx context.Context, run Run, stdin io.Reader, stdout, stderr io.Writer) (code int, err error) {
	if run.Machine != 0 {
		return r.runOnMachine(ctx, run, stdin, stdout, stderr)
	}
	argv, env, err := r.runArgv(run)
	if err != nil {
		return -1, err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, stdin, stdout, stderr
	err = cmd.Run()
	var status *exec.ExitError
	if err != nil && (ctx.Err() != nil || !errors.As(err, &status)) {
		return -1, fmt.Errorf("run in %s: %w", run.NetNS, err)
	}
	var exit Exit
	exit.set(cmd.ProcessState.Sys().(syscall.WaitStatus))
	return exit.Code, nil
}
