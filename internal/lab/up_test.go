package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/testing/containertest"
	"packetwalk.dev/internal/testing/kerneltest"
)

const plainCluster = "apiVersion: packetwalk.dev/v1alpha1\nkind: Cluster\n"

// TestUpLeavesADamagedLabAlone: whatever is wrong with cluster.yaml, up says what to do and removes nothing: namespaces and processes go
// on.
func TestUpLeavesADamagedLabAlone(t *testing.T) {
	kerneltest.NeedRoot(t)
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"truncated to nothing":   write(""),
		"truncated in its midst": write("apiVersion: packetwalk.dev/v1alpha1\nkind: Clus"),
		"truncated to a cluster": write(plainCluster),
		"not a cluster":          write("kind: Clus\n" + layout.EndLine),
		"unreadable": func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"lost": func(*testing.T, string) {},
	} {
		for with, source := range map[string][]byte{"as it is": nil, "with a file": []byte(plainCluster)} {
			t.Run(name+", "+with, func(t *testing.T) {
				d := layout.Dir(t.TempDir())
				lives := dataPath(t, d)
				damage(t, d.ClusterFile())
				err := Up(t.Context(), UpOptions{Dir: d, Cluster: source, Argv: []string{"/bin/false"}, Progress: func(lifecycle.Step) {}})
				if err == nil || !strings.Contains(err.Error(), d.ClusterFile()) || !strings.Contains(err.Error(), "packetwalk down --name "+d.Name()) {
					t.Errorf("error %v: does not name the file and what to do", err)
				}
				lives()
			})
		}
	}
}

// TestUpMakesWhatIsNotThere: folders that a killed up, or down, left are no lab.
func TestUpMakesWhatIsNotThere(t *testing.T) {
	kerneltest.NeedRoot(t)
	d := layout.Dir(filepath.Join(t.TempDir(), "lab"))
	if err := os.MkdirAll(d.Path("netns"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := Up(t.Context(), UpOptions{Dir: d, Argv: []string{"/bin/false"}, Progress: func(lifecycle.Step) {}})
	if err == nil || strings.Contains(err.Error(), "what is established goes on") {
		t.Errorf("error %v, want one of the lab process, which was started", err)
	}
	if d.Exists() {
		t.Error("the lab that could not be made is still there")
	}
}

// TestUpEndsWithASilentLabProcess: up ends after its timeout, says where to look, and leaves nothing.
func TestUpEndsWithASilentLabProcess(t *testing.T) {
	kerneltest.NeedRoot(t)
	d := layout.Dir(filepath.Join(t.TempDir(), "lab"))
	defer func(was time.Duration) { lifecycle.AnswerTime = was }(lifecycle.AnswerTime)
	lifecycle.AnswerTime = time.Second
	script := `echo '{"text":"API server answers"}' >&3; exec sleep 600`
	err := Up(t.Context(), UpOptions{Dir: d, Argv: []string{"/bin/sh", "-c", script}, Progress: func(lifecycle.Step) {}, Timeout: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "not done within 2s") || !strings.Contains(err.Error(), "packetwalk logs lab") {
		t.Errorf("error %v", err)
	}
	if d.Exists() {
		t.Error("the lab is still there")
	}
}

// dataPath gives a lab a namespace with a process; the returned function fails the test unless both are there still.
func dataPath(t *testing.T, d layout.Dir) func() {
	ns, _, err := netns.Ensure(d.NetNS("fabric"))
	if err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "600")
	if err := ns.Start(sleeper); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
		if err := errors.Join(ns.Close(), netns.Remove(d.NetNS("fabric"))); err != nil {
			t.Error(err)
		}
	})
	return func() {
		t.Helper()
		if spaces, err := netns.Mounted(d.Path("netns")); err != nil || len(spaces) != 1 {
			t.Errorf("namespaces %v, %v", spaces, err)
		}
		if pids, err := netns.Processes(ns.Inode()); err != nil || !slices.Contains(pids, sleeper.Process.Pid) {
			t.Errorf("processes in the namespace: %v, %v", pids, err)
		}
	}
}

// TestUpNamesWhatDoesNotStart: with a control plane that crashes at its start, and with one that hangs, up ends, and says which component
// it is and what its log ends with; nothing is left behind.
func TestUpNamesWhatDoesNotStart(t *testing.T) {
	kerneltest.NeedRoot(t)
	bin := t.TempDir()
	app, err := containertest.Build(bin)
	if err != nil {
		t.Fatal(err)
	}
	dns, err := containertest.BuildProgram(bin, "packetwalk-dns")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, script string
		timeout      time.Duration
		want         []string
	}{
		{"crashes", "echo no space left on device; exit 7", lifecycle.DefaultTimeout,
			[]string{"etcd has ended 3 times in a row: exit status 7", "no space left on device"}},
		// In its time the lab comes to start etcd, on a busy machine too.
		{"hangs", "echo it is early; exec sleep 600", 15 * time.Second, []string{"not done within 15s", "still waiting for the API server: etcd is not ready", "it is early"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "lab") // a short path: sockets lie in it
			if err != nil {
				t.Fatal(err)
			}
			d := layout.Dir(dir)
			script := filepath.Join(t.TempDir(), "controlplane")
			if err := os.WriteFile(script, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := prepare(t.Context(), UpOptions{Dir: d}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				os.Remove(d.LockFile()) // this process is the lab's here, and stays
				if err := Destroy(context.Background(), d); err != nil || d.Exists() {
					t.Errorf("destroy: %v", err)
				}
			})
			l, err := newLab(d, layout.Binaries{App: app, DNS: dns, ControlPlane: script}, func(lifecycle.Step) {})
			if err != nil {
				t.Fatal(err)
			}
			err = l.up(t.Context(), lifecycle.NewDeadline(c.timeout))
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v\nwant %q in it", err, want)
				}
			}
			var s status.Status
			if l.graph.Report(&s); len(s.Problems) == 0 || !strings.Contains(s.Problems[0], "the API server") {
				t.Errorf("status does not say what is waited for: %q", s.Problems)
			}
		})
	}
}
