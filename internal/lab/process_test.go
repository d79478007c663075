package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestHopelessWithin30Seconds: a process that always ends is named in time, however long it lives before, and one that ends once is not.
func TestHopelessWithin30Seconds(t *testing.T) {
	for life := time.Duration(0); life <= 14*time.Second; life += 500 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			c := quietCore()
			began, ended := time.Now(), c.judge(supervise.Process{Name: "etcd"})
			pause := time.Second // the supervisor's first; it doubles
			for failures := 1; ; failures++ {
				time.Sleep(life)
				ended(supervise.State{Name: "etcd", Failures: failures, LastExit: "exit status 7"})
				if len(c.broken) > 0 {
					break
				}
				time.Sleep(pause)
				pause *= 2
			}
			if err, took := <-c.broken, time.Since(began); took > 30*time.Second || !strings.HasPrefix(err.Error(), "etcd has ended ") {
				t.Errorf("with a life of %v after %v: %v", life, took, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := quietCore()
		ended := c.judge(supervise.Process{Name: "etcd"})
		time.Sleep(time.Minute)
		ended(supervise.State{Name: "etcd", Failures: 1})
		ended(supervise.State{Name: "etcd", Pid: 7, Failures: 1})
		if len(c.broken) > 0 {
			t.Error(<-c.broken)
		}
	})
}

// TestEndOthers: of a program's processes only the one that was written down stays, and that only if it is as it is to be.
func TestEndOthers(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := kernel.OpenNamespace("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dir := t.TempDir()
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	p := supervise.Process{Name: "sleep", Path: filepath.Join(dir, "program"), Args: []string{"1000"}, PidFile: filepath.Join(dir, "pid")}
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
	if err := endOthers(t.Context(), ns, p); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the other one ended by itself")
	}
	if supervise.Recorded(p.PidFile) == 0 {
		t.Error("the one that was written down is gone")
	}
	p.Args = []string{"999"}
	if err := endOthers(t.Context(), ns, p); err != nil {
		t.Fatal(err)
	}
	if pid := supervise.Recorded(p.PidFile); pid != 0 {
		t.Errorf("%d runs with other arguments", pid)
	}
}
