package lifecycle

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestCrashLoop: a process that ends three times in a row is named, however long it lives before. One that then goes on is not.
func TestCrashLoop(t *testing.T) {
	c := NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(Step) {})
	ended := c.exitWatcher(supervise.Process{Name: "etcd"})
	ended(supervise.State{Name: "etcd", Failures: 1})
	ended(supervise.State{Name: "etcd", Failures: 2})
	ended(supervise.State{Name: "etcd", Pid: 7, Failures: 2})
	if len(c.broken) > 0 {
		t.Fatal(<-c.broken)
	}
	ended(supervise.State{Name: "etcd", Failures: 3, LastExit: "exit status 7"})
	if len(c.broken) == 0 {
		t.Fatal("nothing is broken")
	}
	if err := <-c.broken; !strings.HasPrefix(err.Error(), "etcd has ended 3 times in a row: exit status 7") {
		t.Error(err)
	}
}

// TestEndOthers: of a program's processes only the one that was written down stays, and that only if it is as it is to be.
func TestEndOthers(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dir := t.TempDir()
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	p := supervise.Process{Name: "sleep", Path: filepath.Join(dir, "program"), Args: []string{"1000", "0"}, PidFile: filepath.Join(dir, "pid")}
	if err := os.WriteFile(p.Path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	kept, err := supervise.Run(p, func(c *exec.Cmd) error { return c.Start() }, supervise.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kept.Detach()
	other := exec.Command(p.Path, p.Args...)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- other.Wait() }()
	if err := EndOthers(t.Context(), ns, p); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the other one ended by itself")
	}
	if supervise.Recorded(p.PidFile) == 0 {
		t.Error("the one that was written down is gone")
	}
	p.Args = []string{"1000", "1"}
	if err := EndOthers(t.Context(), ns, p); err != nil {
		t.Fatal(err)
	}
	if pid := supervise.Recorded(p.PidFile); pid != 0 {
		t.Errorf("%d runs with other arguments", pid)
	}
}
