package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/base/mounts"
	"packetwalk.dev/internal/testing/kerneltest"
)

func TestParseHierarchies(t *testing.T) {
	const (
		v2     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid = "35 33 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		root   = "29 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n33 29 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
		cpu    = "36 33 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
		named  = "37 33 0:33 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		twice  = "38 33 0:32 / /mnt/cpu rw - cgroup cgroup rw,cpuacct,cpu\n"
	)
	tests := []struct {
		name, mounts, own string
		want              []Hierarchy
	}{
		{"v1 beside v2", root + cpu + named + hybrid + twice, "2:cpu,cpuacct:/a\n1:name=systemd:/\n0::/user.slice\n", []Hierarchy{
			{"/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"}, {"/sys/fs/cgroup/systemd", "name=systemd"}, {"/sys/fs/cgroup/unified", ""},
		}},
		{"v2 alone", root + v2, "0::/init.scope\n", []Hierarchy{{"/sys/fs/cgroup", ""}}},
		{"none", root, "", nil},
		{"of controllers that are not known", root + cpu, "0::/\n", nil},
		{"not whole", "36 33 - cgroup\n- cgroup2\n\n", "x\n1:cpu\n", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parseHierarchies(slices.Collect(mounts.Parse(test.mounts)), test.own)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if got := (Hierarchy{Controllers: "name=systemd"}).Dir(); got != "systemd" {
		t.Errorf("the directory of a named hierarchy is %q", got)
	}
}

// TestRemove: a group goes with all below it, in all hierarchies, its parent with it when it is empty; what is another's stays.
func TestRemove(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := Hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	parent := fmt.Sprintf("packetwalk-test-%d", os.Getpid())
	there := func(name string) (n int) {
		for _, h := range all {
			if _, err := os.Stat(filepath.Join(h.Point, name)); err == nil {
				n++
			}
		}
		return n
	}
	for _, h := range all {
		for _, name := range []string{"a/b/c", "other"} {
			if err := os.MkdirAll(filepath.Join(h.Point, parent, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		remove      string
		other, left int // in how many hierarchies the other group, and their parent, are then
	}{{"a", len(all), len(all)}, {"a", len(all), len(all)}, {"other", 0, 0}} {
		if err := Remove(parent + "/" + step.remove); err != nil {
			t.Fatal(err)
		}
		if there(parent+"/a") != 0 || there(parent+"/other") != step.other || there(parent) != step.left {
			t.Errorf("after the removal of %s: a in %d hierarchies, other in %d, their parent in %d", step.remove, there(parent+"/a"),
				there(parent+"/other"), there(parent))
		}
	}
}

func TestGroupOf(t *testing.T) {
	all := []Hierarchy{{"/c/cpu,cpuacct", "cpu,cpuacct"}, {"/c/systemd", "name=systemd"}, {"/c/unified", ""}}
	const text = "12:pids:/x\n4:cpu,cpuacct:/lab/node\n1:name=systemd:/\nnot whole\n0::/lab/a:b\n"
	want := Group{{"/c/cpu,cpuacct/lab/node", "cpu,cpuacct"}, {"/c/systemd", "systemd"}, {"/c/unified/lab/a:b", "unified"}}
	if diff := cmp.Diff(want, groupOf(all, text)); diff != "" {
		t.Error(diff)
	}
}
