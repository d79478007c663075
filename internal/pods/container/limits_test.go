package container_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/testing/kerneltest"
)

// grown is a machine whose containers are in control groups; without all controllers the test is skipped.
func grown(t *testing.T, bounds cgroup.Limits) *machine {
	t.Helper()
	m := newMachine(t)
	name := fmt.Sprintf("packetwalk-test-%d", os.Getpid())
	of, err := cgroup.Machine()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(name); err != nil {
			t.Error(err)
		}
	})
	tree, missing := cgroup.Grow(name, "in", of.Lab)
	if len(missing) > 0 {
		kerneltest.Missing(t, "limits: %q", missing)
	}
	m.runtime.Groups, m.runtime.Bounds = tree, bounds.Or(of.One)
	return m
}

// TestForkBomb: it ends at the container's bound, of a container without limits of its own; commands in it count.
func TestForkBomb(t *testing.T) {
	m := grown(t, cgroup.Limits{Processes: 40})
	c := m.start(m.spec("ubuntu", "sleep", "1000"))
	read := func(file, format string) (n int) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(groupOf(t, c, file), file))
		if err == nil {
			_, err = fmt.Sscanf(string(text), format, &n)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	bomb := container.Exec{Args: []string{"sh", "-c", "bomb() { bomb | bomb & }; bomb"}}
	if _, err := c.Exec(t.Context(), bomb); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); read("pids.events", "max %d") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the bomb does not get to the bound")
		}
		if n := read("pids.current", "%d"); n > 40 {
			t.Fatalf("%d processes, 40 are allowed", n)
		}
	}
	if err := c.Remove(); err != nil {
		t.Error(err)
	}
	for _, in := range c.Spec().Group {
		if _, err := os.Stat(in.Dir); err == nil {
			t.Errorf("%s is left", in.Dir)
		}
	}
}

// groupOf is the directory of a container's group that has a file.
func groupOf(t *testing.T, c *container.Container, file string) string {
	t.Helper()
	for _, in := range c.Spec().Group {
		if _, err := os.Stat(filepath.Join(in.Dir, file)); err == nil {
			return in.Dir
		}
	}
	t.Fatalf("%v has no %s", c.Spec().Group, file)
	return ""
}

// TestMemoryBomb: the kernel ends what takes more memory than the container has, and nothing else; the exit says why.
func TestMemoryBomb(t *testing.T) {
	m := grown(t, cgroup.Limits{})
	other := m.start(m.spec("agnhost"))
	hog := []string{"bash", "-c", "exec tail -n1 < <(head -c 100m /dev/zero)"} // it keeps a line in memory
	s := m.spec("ubuntu", hog...)
	s.Limits.Memory = 32 << 20
	if e := m.wait(m.start(s)); e.Code != 137 || e.Signal != 9 || e.Reason != container.ReasonMemory {
		t.Errorf("exit %+v", e)
	}
	// A command in a container counts as the container's.
	s = m.spec("ubuntu", "sleep", "1000")
	s.Limits.Memory = 32 << 20
	c := m.start(s)
	var out bytes.Buffer
	code, err := c.Exec(t.Context(), container.Exec{Args: hog, Stdout: &out, Stderr: &out})
	if err != nil || code != 137 {
		t.Errorf("a command: exit status %d, %v, %d bytes", code, err, out.Len())
	}
	if got := m.run(other, "echo", "well"); got != "well\n" {
		t.Error(got)
	}
}

// limitFiles are where limits are, of cgroup v1 and v2: memory, processes, processors, weight.
var limitFiles = [][2]string{{"memory.limit_in_bytes", "memory.max"}, {"pids.max", "pids.max"}, {"cpu.cfs_quota_us", "cpu.max"},
	{"cpu.shares", "cpu.weight"}}

// checkLimits compares the limits of a container's group, as limitFiles have them: those of v2 are "" where they are v1's.
func checkLimits(t *testing.T, c *container.Container, want ...[2]string) {
	t.Helper()
	for i, names := range limitFiles {
		for _, in := range c.Spec().Group {
			for version, name := range names {
				text, err := os.ReadFile(filepath.Join(in.Dir, name))
				if err == nil && strings.TrimSpace(string(text)) != cmp.Or(want[i][version], want[i][0]) {
					t.Errorf("%s: %s, want %q", name, text, want[i])
				}
			}
		}
	}
}

// TestLimitsOfAContainer: a container's processes, an application's and a command's, are in its own group with its limits, which change
// while it runs.
func TestLimitsOfAContainer(t *testing.T) {
	m := grown(t, cgroup.Limits{})
	want := cgroup.Limits{Memory: 64 << 20, CPU: 500, Weight: 512, Processes: 100}
	command := m.spec("ubuntu", "sleep", "1000")
	for _, s := range []container.Spec{m.spec("agnhost"), command} {
		s.Limits = want
		c := m.start(s)
		if len(c.Spec().Group) == 0 {
			t.Fatal("no group")
		}
		checkLimits(t, c, [2]string{"67108864"}, [2]string{"100"}, [2]string{"50000", "50000 100000"}, [2]string{"512", "20"})
		got := m.run(c, "sh", "-c", "cd /sys/fs/cgroup; cat memory*/memory.limit_in_bytes memory.max cpu*/cpu.cfs_quota_us cpu.max 2>/dev/null; "+
			"cd pids 2>/dev/null; cat pids.max; echo 1 2>/dev/null >pids.max || echo guarded; mkdir x 2>/dev/null || echo guarded")
		if strings.Replace(got, "50000 100000", "50000", 1) != "67108864\n50000\n100\nguarded\nguarded\n" {
			t.Errorf("it sees\n%s", got)
		}
		own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if theirs := m.run(c, "cat", "/proc/self/cgroup"); theirs != string(own) ||
			!strings.Contains(theirs, filepath.Base(c.Spec().Group[0].Dir)) {
			t.Errorf("a command is in\n%s, the first process in\n%s", theirs, own)
		}
		for _, l := range []cgroup.Limits{{Memory: 96 << 20, CPU: 1000, Weight: 1024}, {Memory: 32 << 20, CPU: 200, Weight: 204}} {
			if err := c.Limit(l); err != nil {
				t.Error(err)
			}
		}
		if err := c.Limit(cgroup.Limits{Memory: 4096, CPU: 100}); err == nil {
			t.Error("a page is enough for a process")
		}
		checkLimits(t, c, [2]string{"33554432"}, [2]string{"100"}, [2]string{"20000", "20000 100000"}, [2]string{"204", "8"})
	}
}

// TestSharedProcesses: containers see each other's processes and have a first one that is neither's; what a command leaves ends with its
// container and not before, and the others go on.
func TestSharedProcesses(t *testing.T) {
	m := grown(t, cgroup.Limits{})
	sandbox := m.start(m.spec("agnhost"))
	one, two := m.spec("ubuntu", "sh", "-c", "echo $$; sleep 997 & exec sleep 998"), m.spec("ubuntu", "sleep", "999")
	one.ProcessesOf, two.ProcessesOf = sandbox.Spec().Dir, sandbox.Spec().Dir
	a, b := m.start(one), m.start(two)
	m.awaitLog(a)
	if log := m.log(a); log == "1\n" {
		t.Errorf("the command is number %s", log)
	}
	list := func() string { return m.run(b, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '") }
	contains(t, list(), "packetwalk-app first", "sleep 997", "sleep 998", "sleep 999")
	for _, script := range []string{"ls /proc/1/root/", "ls /proc/1/cwd/"} { // the sandbox's, which is ours
		if code, err := b.Exec(t.Context(), container.Exec{Args: []string{"sh", "-c", script}}); code == 0 || err != nil {
			t.Errorf("%s: %d, %v", script, code, err)
		}
	}
	adopted, err := m.runtime.Adopt(one.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := adopted.Stop(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := adopted.Exit(); e.Code != 143 || e.Signal != 15 {
		t.Errorf("exit %+v", e)
	}
	if left := list(); strings.Contains(left, "sleep 997") || !strings.Contains(left, "sleep 999") {
		t.Error(left)
	}
	if err := sandbox.Remove(); err != nil {
		t.Fatal(err)
	}
	if e := m.wait(b); e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
	if _, err := m.runtime.Start(t.Context(), func() container.Spec {
		s := m.spec("ubuntu", "true")
		s.ProcessesOf = sandbox.Spec().Dir
		return s
	}()); err == nil {
		t.Error("processes are shared with a container that is gone")
	}
}

// TestRunOnMachine: a command on a host that is a machine of its own is one of its processes, in its control groups, without the
// capabilities that are withheld there.
func TestRunOnMachine(t *testing.T) {
	m := grown(t, cgroup.Limits{})
	c := m.start(m.spec("ubuntu", "sleep", "1000"))
	all, err := cgroup.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all { // as a real node is in, too
		if name := fmt.Sprintf("packetwalk-test-%d/machine", os.Getpid()); h.V2() {
			if err := cgroup.Make(h, name); err != nil {
				t.Fatal(err)
			}
			if err := (cgroup.Group{{Dir: filepath.Join(h.Point, name)}}).Add(c.Pid()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out bytes.Buffer
	code, err := m.runtime.RunIn(t.Context(), container.Run{NetNS: "/", Hostname: "box", Machine: c.Pid(), Args: []string{"sh", "-c",
		"pwd; hostname; cat /proc/1/comm; grep CapBnd /proc/self/status; cat /proc/self/cgroup; cat; exit 4"}}, strings.NewReader("typed"), &out,
		&out)
	if code != 4 || err != nil {
		t.Fatalf("%d, %v, %s", code, err, out.String())
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, out.String(), "/root\nbox\nsleep\n", string(own), "typed")
	var bounding uint64
	if _, err := fmt.Sscanf(first(out.String(), "CapBnd"), "CapBnd:\t%x", &bounding); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_TIME, unix.CAP_SYS_BOOT, unix.CAP_DAC_READ_SEARCH} {
		if bounding&(1<<n) != 0 {
			t.Errorf("capability %d is not withheld", n)
		}
	}
	run := container.Run{NetNS: "/", Hostname: "box", Machine: c.Pid(), Args: []string{"nosuch"}}
	if code, err := m.runtime.RunIn(t.Context(), run, nil, nil, &out); code != 127 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	run.Machine = container.NoMachine
	if _, err := m.runtime.RunIn(t.Context(), run, nil, nil, nil); err == nil {
		t.Error("a machine that does not run has commands")
	}
}
