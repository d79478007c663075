package mounts

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const text = "29 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n" +
		"36 33 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
		`40 29 0:40 / /run/a\040b\134c rw - overlay overlay rw,lowerdir=/x` + "\n" +
		"36 33 - cgroup\n- cgroup2\n\n"
	want := []Mount{{"/", "ext4", "rw"}, {"/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"},
		{`/run/a b\c`, "overlay", "rw,lowerdir=/x"}}
	if diff := cmp.Diff(want, slices.Collect(Parse(text))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestOwn(t *testing.T) {
	own, err := Own()
	if err != nil || !slices.ContainsFunc(own, func(m Mount) bool { return m.Point == "/proc" && m.Type == "proc" }) {
		t.Errorf("%v, %v", own, err)
	}
}
