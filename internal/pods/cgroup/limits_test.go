package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/testing/kerneltest"
)

// fake makes directories and files as a hierarchy has them; in a real one files come with a group.
func fake(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// contents returns the files below a directory, by their names.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, path))
		got[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestBoundV2: what bounds a group of cgroup v2, where all controllers have one directory.
func TestBoundV2(t *testing.T) {
	const all = "cpuset cpu memory pids"
	root := fake(t, map[string]string{"cgroup.controllers": all, "a/cgroup.controllers": all, "a/lab/cgroup.controllers": all})
	if missing := bound([]Hierarchy{{Point: root}}, "a/lab", Limits{Memory: 1 << 30, Processes: 1000, Weight: 8192}); len(missing) > 0 {
		t.Fatal(missing)
	}
	const passed = "+cpuset +cpu +memory +pids"
	want := map[string]string{
		"cgroup.controllers": all, "a/cgroup.controllers": all, "a/lab/cgroup.controllers": all,
		"cgroup.subtree_control": passed, "a/cgroup.subtree_control": passed,
		"a/cpu.weight": "313", "a/lab/cpu.weight": "313",
		"a/lab/memory.max": "1073741824", "a/lab/memory.swap.max": "0", "a/lab/pids.max": "1000",
	}
	if diff := cmp.Diff(want, contents(t, root)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestBoundV1: of cgroup v1 each controller may have a hierarchy of its own.
func TestBoundV1(t *testing.T) {
	memory, cpu := t.TempDir(), t.TempDir()
	missing := bound([]Hierarchy{{memory, "memory"}, {cpu, "cpu,cpuacct"}, {fake(t, map[string]string{"cgroup.controllers": ""}), ""}},
		"a/lab", Limits{Memory: 1 << 30, Processes: 1000, Weight: 8192})
	if diff := cmp.Diff([]string{"numbers of processes are not limited: no control group hierarchy that is mounted has the controller pids"},
		missing); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"a/lab/memory.limit_in_bytes": "1073741824", "a/lab/memory.memsw.limit_in_bytes": "1073741824"},
		contents(t, memory)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a/cpu.shares": "8192", "a/lab/cpu.shares": "8192"}, contents(t, cpu)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestBoundWhereNothingCanBeMade: what is not enforced is told.
func TestBoundWhereNothingCanBeMade(t *testing.T) {
	missing := bound([]Hierarchy{{"/proc/self/fdinfo", "memory,pids,cpu"}}, "a", Limits{Memory: 1})
	if len(missing) != 3 || !strings.HasPrefix(missing[0], "memory is not limited: mkdir /proc/self/fdinfo/a: ") {
		t.Errorf("%q", missing)
	}
}

// TestBounds: neither a pod, nor a node, nor all of a lab's nodes together can take all memory and process numbers of a machine; what a
// node leaves of the lab's is enough for another.
func TestBounds(t *testing.T) {
	for _, memory := range []int64{512 << 20, 2 << 30, 8 << 30, 256 << 30} {
		for _, pids := range []int64{4096, 32768, 4 << 20} {
			b := bounds(memory, pids, 2)
			lab, node, pod := b.Lab, b.Node, b.PodProcesses
			if lab.Memory > memory*7/8 || lab.Processes >= pids || pod*4 > lab.Processes {
				t.Errorf("%d bytes, %d pids: %+v, %d of a pod", memory, pids, lab, pod)
			}
			if node.Processes < pod || node.Processes+pod > lab.Processes || node.Memory < lab.Memory/2 || node.Memory >= lab.Memory {
				t.Errorf("%d bytes, %d pids: %+v, %+v", memory, pids, lab, node)
			}
		}
	}
}

// TestAdd: a process joins a group in the hierarchies that have it, and no group is made in others.
func TestAdd(t *testing.T) {
	memory, pids := fake(t, map[string]string{"lab/a/memory.limit_in_bytes": "1"}), fake(t, nil)
	if err := add([]Hierarchy{{memory, "memory"}, {pids, "pids"}}, "lab/a", 7); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"lab/a/memory.limit_in_bytes": "1", "lab/a/cgroup.procs": "7"}, contents(t, memory)); diff != "" {
		t.Error(diff)
	}
	if got := contents(t, pids); len(got) > 0 {
		t.Errorf("in another hierarchy: %v", got)
	}
}

// TestAddBounded: the kernel bounds a process that joined a group.
func TestAddBounded(t *testing.T) {
	kerneltest.NeedRoot(t)
	group := fmt.Sprintf("packetwalk-add-%d", os.Getpid())
	missing := Bound(group, Limits{Processes: 2})
	if slices.ContainsFunc(missing, func(s string) bool { return strings.Contains(s, "processes") }) {
		kerneltest.Missing(t, "control groups: %v", missing)
	}
	t.Cleanup(func() {
		if err := Remove(group); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read start; sleep 0 | sleep 0 | sleep 0")
	start, err := cmd.StdinPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if err := Add(group, cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(start, "\n"); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a shell started three programs where two processes are allowed")
	}
}
