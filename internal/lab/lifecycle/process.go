package lifecycle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/status"
)

// Run starts a process in the namespace, or takes over one that an earlier lab process started, and starts it again whenever it
// ends. It outlives this process.
func (c *Env) Run(ns *netns.Namespace, p supervise.Process) (*supervise.Supervisor, error) {
	return c.RunWith(p, ns.Start)
}

// RunWith does what Run does with another way to start the process.
func (c *Env) RunWith(p supervise.Process, start supervise.Start) (*supervise.Supervisor, error) {
	p.Dir = "/"
	return supervise.Run(p, start, supervise.Options{OnChange: c.exitWatcher(p)})
}

// exitWatcher returns a function that logs the ends of a process, and fails the lab's start after too many.
func (c *Env) exitWatcher(p supervise.Process) func(supervise.State) {
	return func(s supervise.State) {
		if s.Pid != 0 {
			return
		}
		c.Log.Warn("process ended", "name", s.Name, "exit", s.LastExit)
		if s.Failures >= status.MaxConsecutiveExits {
			c.Break(fmt.Errorf("%s has ended %d times in a row: %s; its log %s ends with:%s",
				s.Name, s.Failures, s.LastExit, filepath.Base(p.LogFile), supervise.LastLines(p.LogFile)))
		}
	}
}

// EndOthers ends what runs in a namespace as the program of a process and is not that process: one with other arguments, or one whose pid
// the lab process that started it did not live to write down. It would keep the process from its ports.
func EndOthers(ctx context.Context, ns *netns.Namespace, p supervise.Process) error {
	wanted := append([]string{p.Path}, p.Args...)
	err := netns.Kill(ctx, func() ([]int, error) {
		pids, err := netns.Processes(ns.Inode())
		return slices.DeleteFunc(pids, func(pid int) bool {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // proc_pid_cmdline(5): each argument ended by a null byte
			args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
			isProgram := args[0] == p.Path && (len(p.Args) == 0 || len(args) > 1 && args[1] == p.Args[0]) // one program may be several
			return err != nil || !isProgram || pid == supervise.Recorded(p.PidFile) && slices.Equal(args, wanted)
		}), err
	})
	if err != nil {
		return fmt.Errorf("end what was started before as %s: %w", p.Name, err)
	}
	return nil
}
