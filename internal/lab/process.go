package lab

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/supervise"
)

// A command is what to keep running.
type command struct {
	name, path string
	args       []string
	log, pid   string // files
}

// A process is a command that is kept running in a network namespace.
type process struct {
	name string
	s    *supervise.Supervisor
}

// keep starts the command in the namespace, or takes over one that an earlier lab process started, and starts it again whenever it
// ends. It outlives this process.
func (l *lab) keep(ns *kernel.Namespace, c command) (*process, error) {
	s, err := supervise.Run(supervise.Process{
		Name: c.name, Path: c.path, Args: c.args, Dir: "/", LogFile: c.log, PidFile: c.pid,
	}, func(cmd *exec.Cmd) error { return ns.Start(cmd) }, supervise.Options{
		OnChange: func(s supervise.State) {
			if s.Pid == 0 {
				l.log.Warn("process ended", "name", s.Name, "exit", s.LastExit)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return &process{name: c.name, s: s}, nil
}

// running are the pids of the processes in a namespace that were started as the program at path.
func running(ns *kernel.Namespace, path string) ([]int, error) {
	pids, err := kernel.Processes(ns.Inode())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // proc_pid_cmdline(5): ended by null bytes
		argv0, _, _ := strings.Cut(string(args), "\x00")
		return err != nil || argv0 != path
	}), nil
}

func (p *process) component() Component {
	s := p.s.State()
	return Component{Name: p.name, Pid: s.Pid, Since: s.Since, Restarts: s.Restarts, LastExit: s.LastExit}
}
