package cgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// contents are the files below a directory, by their names.
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

var testLimits = Limits{Memory: 64 << 20, CPU: 250, Weight: 102, Processes: 50}

// TestGroupV2: what bounds a group of cgroup v2, where all controllers have one directory.
func TestGroupV2(t *testing.T) {
	const all = "cpuset cpu memory pids"
	root := fake(t, map[string]string{"cgroup.controllers": all, "a/cgroup.controllers": all, "a/lab/cgroup.controllers": all,
		"a/lab/in/cgroup.controllers": all})
	tree, missing := grow([]Hierarchy{{Point: root}}, "a/lab", "in", Limits{Memory: 1 << 30, Processes: 1000, Weight: 8192})
	if len(missing) > 0 {
		t.Fatal(missing)
	}
	g, err := tree.Make("one", testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Group{{root + "/a/lab/in/one", "unified"}}, g); diff != "" {
		t.Error(diff)
	}
	const passed = "+cpuset +cpu +memory +pids"
	want := map[string]string{
		"cgroup.controllers": all, "a/cgroup.controllers": all, "a/lab/cgroup.controllers": all, "a/lab/in/cgroup.controllers": all,
		"cgroup.subtree_control": passed, "a/cgroup.subtree_control": passed, "a/lab/cgroup.subtree_control": passed,
		"a/lab/in/cgroup.subtree_control": passed,
		"a/cpu.weight":                    "313", "a/lab/cpu.weight": "313", "a/lab/in/cpu.weight": "313",
		"a/lab/memory.max": "1073741824", "a/lab/memory.swap.max": "0", "a/lab/pids.max": "1000", "a/lab/in/one/memory.swap.max": "0",
		"a/lab/in/one/memory.max": "67108864", "a/lab/in/one/pids.max": "50", "a/lab/in/one/cpu.max": "25000 100000",
		"a/lab/in/one/cpu.weight": "4",
	}
	if diff := cmp.Diff(want, contents(t, root)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestGroupV1: of cgroup v1 each controller may have a hierarchy of its own.
func TestGroupV1(t *testing.T) {
	memory, cpu := t.TempDir(), t.TempDir()
	tree, missing := grow([]Hierarchy{{memory, "memory"}, {cpu, "cpu,cpuacct"}, {fake(t, map[string]string{"cgroup.controllers": ""}), ""}},
		"a/lab", "in", Limits{Memory: 1 << 30, Processes: 1000, Weight: 8192})
	if diff := cmp.Diff([]string{"numbers of processes are not limited: no control group hierarchy that is mounted has the controller pids"},
		missing); diff != "" {
		t.Error(diff)
	}
	g, err := tree.Make("one", testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Group{{memory + "/a/lab/in/one", "memory"}, {cpu + "/a/lab/in/one", "cpu,cpuacct"}}, g); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"a/lab/memory.limit_in_bytes": "1073741824", "a/lab/in/one/memory.limit_in_bytes": "67108864",
		"a/lab/memory.memsw.limit_in_bytes": "1073741824", "a/lab/in/one/memory.memsw.limit_in_bytes": "67108864"},
		contents(t, memory)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a/cpu.shares": "8192", "a/lab/cpu.shares": "8192", "a/lab/in/cpu.shares": "8192",
		"a/lab/in/one/cpu.cfs_quota_us": "25000", "a/lab/in/one/cpu.shares": "102"}, contents(t, cpu)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestGrowWhereNothingCanBeMade: what is not enforced is told, and containers start without.
func TestGrowWhereNothingCanBeMade(t *testing.T) {
	tree, missing := grow([]Hierarchy{{"/proc/self/fdinfo", "memory,pids,cpu"}}, "a", "b", Limits{Memory: 1})
	if len(missing) != 3 || !strings.HasPrefix(missing[0], "memory is not limited: mkdir /proc/self/fdinfo/a: ") {
		t.Errorf("%q", missing)
	}
	if g, err := tree.Make("one", testLimits); g != nil || err != nil {
		t.Error(g, err)
	}
}

func TestOutOfMemory(t *testing.T) {
	for text, want := range map[string]bool{"oom_kill_disable 0\nunder_oom 0\noom_kill 0\n": false, "oom_kill_disable 1\noom_kill 2\n": true} {
		if got := (Group{{Dir: t.TempDir()}, {Dir: fake(t, map[string]string{"memory.oom_control": text})}}).OutOfMemory(); got != want {
			t.Errorf("%q: %v", text, got)
		}
		if got := (Group{{Dir: fake(t, map[string]string{"memory.events": text})}}).OutOfMemory(); got != want {
			t.Errorf("v2: %q: %v", text, got)
		}
	}
}

// TestBounds: neither one container, nor a node, nor all of a lab's together can take all memory and process numbers of a machine; what a
// node leaves of the lab's is enough for a container.
func TestBounds(t *testing.T) {
	for _, memory := range []int64{512 << 20, 2 << 30, 8 << 30, 256 << 30} {
		for _, pids := range []int64{4096, 32768, 4 << 20} {
			b := bounds(memory, pids, 2)
			lab, node, one := b.Lab, b.Node, b.One
			if one.Memory > lab.Memory || lab.Memory > memory*7/8 || one.Memory < 128<<20 || one.Processes*4 > lab.Processes ||
				lab.Processes >= pids {
				t.Errorf("%d bytes, %d pids: %+v, %+v", memory, pids, lab, one)
			}
			if node.Processes < one.Processes || node.Processes+one.Processes > lab.Processes || node.Memory < lab.Memory/2 ||
				memory >= 2<<30 && node.Memory+one.Memory > lab.Memory {
				t.Errorf("%d bytes, %d pids: %+v, %+v", memory, pids, lab, node)
			}
		}
	}
}
