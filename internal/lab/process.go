package lab

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel"
)

// hopeless is how often a process may end in a row while a lab starts; with the supervisor's pauses that is seconds.
const hopeless = 3

// run starts a process in the namespace, or takes over one that an earlier lab process started, and starts it again whenever it
// ends. It outlives this process.
func (c *core) run(ns *kernel.Namespace, p supervise.Process) (*supervise.Supervisor, error) {
	return c.runWith(p, ns.Start)
}

// runWith is run with another way to start it.
func (c *core) runWith(p supervise.Process, start supervise.Start) (*supervise.Supervisor, error) {
	p.Dir = "/"
	return supervise.Run(p, start, supervise.Options{
		OnChange: func(s supervise.State) {
			if s.Pid != 0 {
				return
			}
			c.log.Warn("process ended", "name", s.Name, "exit", s.LastExit)
			if s.Failures >= hopeless {
				c.breaks(fmt.Errorf("%s has ended %d times in a row: %s; its log is %s, which ends with:%s",
					s.Name, s.Failures, s.LastExit, p.LogFile, supervise.LastLines(p.LogFile)))
			}
		},
	})
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
