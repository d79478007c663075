package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestPrepare: what the node's first process reads outside of it is nowhere in it, and only root reads its identity there. Nothing of the
// machine but the node's own directories is mounted into it.
func TestPrepare(t *testing.T) {
	state := t.TempDir()
	c := Config{Name: "n", State: state, Base: "/base", Distribution: "/distribution",
		Kubelet: KubeletConfig{Standalone: true}, Kubernetes: map[string][]byte{ServingKey: []byte("key")}}
	for range 2 { // as when the node starts again
		if err := c.Prepare(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(state, "layer", KubernetesDir, ServingKey))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	s, err := ReadSpec(specIn(state))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range s.Binds {
		if rest, err := filepath.Rel(state, b.Source); err != nil || !filepath.IsLocal(rest) || rest == "." {
			t.Errorf("%s of the machine is at %s", b.Source, b.Target)
		}
		if b.Source == state || filepath.Base(b.Source) == "layer" {
			t.Errorf("the node can change what it starts from: %s", b.Source)
		}
	}
}

// TestWriteBase: the programs of nodes are copies, so that no node has a file of the machine's.
func TestWriteBase(t *testing.T) {
	dir, base := t.TempDir(), filepath.Join(t.TempDir(), "base")
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range Programs {
		all[name] = program
	}
	if err := WriteBase(base, []string{program}, all); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{PluginsDir + "/program", ProgramsDir + "/kubelet"} {
		info, err := os.Stat(filepath.Join(base, path))
		if err != nil || os.SameFile(was, info) || info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(base, "usr/local/bin/ctr")); err != nil || link != ProgramsDir+"/ctr" {
		t.Errorf("ctr is %q, %v", link, err)
	}
}

// TestProcesses: those of a group and of groups below it, and of no group whose name only begins so.
func TestProcesses(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := cgroup.Hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	group := fmt.Sprintf("packetwalk-test-%d-processes", os.Getpid())
	below := filepath.Join(all[len(all)-1].Point, group, "node/pod")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		if err := cgroup.Remove(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{group + "/node": 1, group + "/node/pod": 1, group + "/nod": 0, group + "/node/pod/x": 0} {
		if pids, err := Processes(name); err != nil || len(pids) != want || want == 1 && pids[0] != cmd.Process.Pid {
			t.Errorf("in %s are %v, %v", name, pids, err)
		}
	}
}
