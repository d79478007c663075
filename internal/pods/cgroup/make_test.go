package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMake: in cgroup v1 a new group has the processors and memory of the one above, in v2 the groups above pass all controllers on.
// The hierarchies are plain directories here, in which files do not come with a group.
func TestMake(t *testing.T) {
	tests := []struct {
		name        string
		controllers string
		before      map[string]string
		want        map[string]string
	}{
		{
			name: "cgroup v1", controllers: "cpu,cpuset",
			before: map[string]string{
				"cpuset.cpus": "0-1", "cpuset.mems": "0", "a/cpuset.cpus": "", "a/cpuset.mems": "\n", "a/b/cpuset.cpus": "\n", "a/b/cpuset.mems": "1",
			},
			want: map[string]string{
				"cpuset.cpus": "0-1", "cpuset.mems": "0", "a/cpuset.cpus": "0-1", "a/cpuset.mems": "0", "a/b/cpuset.cpus": "0-1",
				"a/b/cpuset.mems": "1",
			},
		},
		{
			name:   "cgroup v2",
			before: map[string]string{"cgroup.controllers": "cpu memory\n", "a/cgroup.controllers": "cpu\n", "a/b/cgroup.controllers": "cpu\n"},
			want: map[string]string{
				"cgroup.controllers": "cpu memory\n", "a/cgroup.controllers": "cpu\n", "a/b/cgroup.controllers": "cpu\n",
				"cgroup.subtree_control": "+cpu +memory", "a/cgroup.subtree_control": "+cpu",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := fake(t, test.before)
			if err := Make(Hierarchy{Point: dir, Controllers: test.controllers}, "a/b"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, contents(t, dir)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
