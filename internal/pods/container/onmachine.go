package container

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/cgroup"
)

// withheld are the capabilities that nothing on a host that is a machine of its own has, because they reach beyond it: loading modules and
// kernels, ports and memory of the hardware, the clock, and opening the machine's files by handle (open_by_handle_at(2)).
var withheld = mustCaps("SYS_MODULE", "SYS_RAWIO", "SYS_TIME", "SYS_BOOT", "DAC_READ_SEARCH")

// LimitMachine takes them from what the calling thread executes next, and sockets that lead out of a virtual machine past the lab.
func LimitMachine() error {
	if err := limitThread(^withheld, false); err != nil {
		return err
	}
	return setFilter(machineFilter(), 0)
}

// MachineNamespaces are those of a host that is a machine of its own.
const MachineNamespaces = unix.CLONE_NEWNET | unix.CLONE_NEWUTS |
	unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP

// runOnMachine is RunIn for a host that is a machine of its own: the command is one of its processes, in its control groups and without
// what is withheld from it. Between two terminals it has one of the host's own.
func (r *Runtime) runOnMachine(ctx context.Context, run Run, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	if run.Machine == NoMachine {
		return -1, fmt.Errorf("%s is a machine of its own, and it does not run: packetwalk status says more", run.Hostname)
	}
	e := Exec{Args: run.Args, Env: append(run.environ(), "PATH="+program.Path, "HOME=/root"), Dir: "/root", Stdin: stdin, Stdout: stdout,
		Stderr: stderr}
	if len(e.Args) == 0 {
		e.Args = []string{"/bin/bash", "-l"}
	}
	in, isFile := stdin.(*os.File)
	if out, ok := stdout.(*os.File); ok && isFile && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return -1, err
		}
		defer func() { _ = term.Restore(int(in.Fd()), before) }()
		var stop func()
		e.TTY = true
		e.Resize, stop = sizesOf(in)
		defer stop()
	}
	x, err := e.spawnOn(ctx, r.Binary, run.Machine)
	if err != nil {
		code, err := execFailure(run.Hostname, err)
		return e.Report(code, err)
	}
	return x.run(ctx, e)
}

// sizesOf gives the size of the user's terminal, and each new one, until stop is called.
func sizesOf(terminal *os.File) (sizes <-chan Size, stop func()) {
	changed, out := make(chan os.Signal, 1), make(chan Size, 1)
	signal.Notify(changed, unix.SIGWINCH)
	changed <- unix.SIGWINCH
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-changed:
			case <-done:
				return
			}
			if width, height, err := term.GetSize(int(terminal.Fd())); err == nil {
				select {
				case out <- Size{Width: uint16(width), Height: uint16(height)}:
				case <-done:
					return
				}
			}
		}
	}()
	return out, func() { signal.Stop(changed); close(done) }
}

// spawnOn starts the command on the machine whose first process has a pid.
func (e Exec) spawnOn(ctx context.Context, binary string, pid int) (*execution, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("enter the machine: %w", err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	group, err := cgroup.Of(pid)
	if err != nil {
		return nil, err
	}
	return e.spawn(ctx, order{Enter: MachineNamespaces, Group: group, Env: octets(lastOfEach(e.Env)), Dir: e.Dir}, binary, pidfd)
}
