package container_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
)

// How a command ended is known though who started it was killed before.
func TestExitStatusWithoutStarter(t *testing.T) {
	m := newMachine(t)
	s := m.spec("ubuntu", "timeout", "1", "sleep", "1000")
	dir, cmd := s.Dir, m.starterOf(s)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 100)
	n, _ := out.Read(line)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if got := string(line[:n]); got != "started <nil>\n" {
		t.Fatal(got)
	}
	c, err := m.runtime.Adopt(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Remove() })
	if e := m.wait(c); e.Code != 124 || e.Reason != container.ReasonError { // timeout's own
		t.Errorf("exit %+v", e)
	}
}

// A command is its container's process number 1, as with runc: nothing of ours is in there, and a signal that it does not handle is none.
func TestCommandIsInit(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("ubuntu", "sh", "-c", "echo $$ $PPID; cat /proc/1/comm; ls -d /proc/[0-9]*; exec sleep 1000"))
	m.awaitLog(c)
	contains(t, m.run(c, "sh", "-c", "until grep -q sleep /proc/1/comm; do sleep 0.02; done; readlink /proc/1/root /proc/1/exe; "+
		"cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "/\n/usr/bin/sleep\nsleep 1000 ")
	if log := m.log(c); !strings.HasPrefix(log, "1 0\nsh\n/proc/1\n") {
		t.Errorf("log %q", log)
	}
	begin := time.Now()
	if err := c.Stop(t.Context(), 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); time.Since(begin) < 200*time.Millisecond || e.Code != 137 || e.Signal != 9 {
		t.Errorf("SIGTERM has an effect: %+v", e)
	}
}

// A container ends with its shim, whoever kills that, and whoever watches.
func TestShimKilled(t *testing.T) {
	m := newMachine(t)
	id := int64(1000)
	user := m.spec("ubuntu", "sleep", "1000")
	user.UID = &id
	for _, s := range []container.Spec{m.spec("ubuntu", "sleep", "1000"), user} {
		c := m.start(s)
		adopted, err := m.runtime.Adopt(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range processesOf(s.Dir) {
			n, _ := strconv.Atoi(pid)
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []*container.Container{c, adopted} {
			if e := m.wait(c); e.Code != 137 || e.Reason != container.ReasonUnknown {
				t.Errorf("exit %+v", e)
			}
		}
		if err := syscall.Kill(c.Pid(), 0); err == nil {
			if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Pid())); !strings.Contains(string(stat), ") Z ") {
				t.Errorf("process %d is left: %s", c.Pid(), stat)
			}
		}
	}
}

// What a command left behind is the first process's to bury, where that is ours.
func TestNoZombies(t *testing.T) {
	m := newMachine(t)
	id := int64(1000)
	user := m.spec("agnhost")
	user.UID = &id
	for _, s := range []container.Spec{m.spec("agnhost"), user} {
		c := m.start(s)
		m.run(c, "sh", "-c", "for i in 1 2 3; do (sleep 0.05 &); done")
		out := "(sleep)"
		for deadline := time.Now().Add(20 * time.Second); strings.Contains(out, "(sleep)"); time.Sleep(50 * time.Millisecond) {
			if out = m.run(c, "sh", "-c", "cat /proc/[0-9]*/stat || :"); time.Now().After(deadline) {
				t.Fatalf("%s:\n%s", s.App, out)
			}
		}
	}
}
