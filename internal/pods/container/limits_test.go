package container_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/container"
)

// grown is a machine whose containers are in control groups; without all controllers the test is skipped.
func grown(t *testing.T, bounds cgroup.Limits) *machine {
	t.Helper()
	m := newMachine(t)
	name := fmt.Sprintf("packetwalk-test-%d", os.Getpid())
	lab, one, err := cgroup.Machine()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(name); err != nil {
			t.Error(err)
		}
	})
	tree, missing := cgroup.Grow(name, "in", lab)
	if len(missing) > 0 {
		t.Skipf("%q", missing)
	}
	m.runtime.Groups, m.runtime.Bounds = tree, bounds.Or(one)
	return m
}

// TestForkBomb: it ends at the container's bound, of a container without limits of its own, and commands in it count.
func TestForkBomb(t *testing.T) {
	m := grown(t, cgroup.Limits{Processes: 40})
	s := m.spec("ubuntu", "sh", "-c", "trap 'exit 3' TERM; bomb() { bomb | bomb & }; bomb 2>/dev/null; echo set off; while :; do sleep 0.1; done")
	c := m.start(s)
	m.awaitLog(c)
	most := 0
	for range 20 {
		text, err := os.ReadFile(filepath.Join(groupOf(t, c, "pids.current"), "pids.current"))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		if _, err := fmt.Sscan(string(text), &n); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
	}
	if most > 40 {
		t.Errorf("%d processes, 40 are allowed", most)
	}
	if err := c.Remove(); err != nil {
		t.Error(err)
	}
	for _, dir := range c.Spec().Group {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}

// groupOf is the directory of a container's group that has a file.
func groupOf(t *testing.T, c *container.Container, file string) string {
	t.Helper()
	for _, dir := range c.Spec().Group {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir
		}
	}
	t.Fatalf("%v has no %s", c.Spec().Group, file)
	return ""
}

// TestMemoryBomb: the kernel ends what takes more memory than the container has, and nothing else; the exit says why.
func TestMemoryBomb(t *testing.T) {
	m := grown(t, cgroup.Limits{})
	other := m.start(m.spec("pause"))
	s := m.spec("ubuntu", "tail", "-c", "500m", "/dev/zero") // which keeps as much in memory
	s.Limits.Memory = 32 << 20
	if e := m.wait(m.start(s)); e.Code != 137 || e.Signal != 9 || e.Reason != container.ReasonMemory {
		t.Errorf("exit %+v", e)
	}
	// A command in a container counts as the container's.
	s = m.spec("ubuntu", "sleep", "1000")
	s.Limits.Memory = 32 << 20
	c := m.start(s)
	var out bytes.Buffer
	code, err := c.Exec(t.Context(), container.Exec{Args: []string{"tail", "-c", "500m", "/dev/zero"}, Stdout: &out, Stderr: &out})
	if err != nil || code != 137 {
		t.Errorf("a command: exit status %d, %v, %d bytes", code, err, out.Len())
	}
	if got := m.run(other, "echo", "well"); got != "well\n" {
		t.Error(got)
	}
}

// TestLimitsOfAContainer: a container's processes, an application's and a command's, are in its own group with its limits.
func TestLimitsOfAContainer(t *testing.T) {
	m := grown(t, cgroup.Limits{})
	want := cgroup.Limits{Memory: 64 << 20, CPU: 500, Weight: 512, Processes: 100}
	command := m.spec("ubuntu", "sleep", "1000")
	for _, s := range []container.Spec{m.spec("pause"), command} {
		s.Limits = want
		c := m.start(s)
		if len(c.Spec().Group) == 0 {
			t.Fatal("no group")
		}
		for file, want := range map[string]string{"memory.limit_in_bytes": "67108864", "pids.max": "100", "cpu.cfs_quota_us": "50000",
			"cpu.shares": "512"} {
			text, err := os.ReadFile(filepath.Join(groupOf(t, c, file), file))
			if err != nil || strings.TrimSpace(string(text)) != want {
				t.Errorf("%s: %q %v, want %s", file, text, err, want)
			}
		}
		own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if theirs := m.run(c, "cat", "/proc/self/cgroup"); theirs != string(own) || !strings.Contains(theirs, filepath.Base(c.Spec().Group[0])) {
			t.Errorf("a command is in\n%s, the first process in\n%s", theirs, own)
		}
	}
}
