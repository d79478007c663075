package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestBounds: a node's bounds are on the group around the one that the node takes for the root of all, where it cannot change them.
func TestBounds(t *testing.T) {
	kerneltest.NeedRoot(t)
	name := fmt.Sprintf("packetwalk-test-%d-bounds", os.Getpid())
	t.Cleanup(func() {
		if err := cgroup.Remove(name); err != nil {
			t.Error(err)
		}
	})
	groups, err := makeGroups(name, cgroup.Limits{Memory: 64 << 20, Processes: 300})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, g := range groups {
		for _, file := range []string{"pids.max", "memory.max", "memory.limit_in_bytes"} {
			for _, group := range []string{name, filepath.Join(name, inner)} {
				if text, err := os.ReadFile(filepath.Join(g.Point, group, file)); err == nil {
					found[strings.TrimPrefix(group, name)+" "+file[:4]] = strings.TrimSpace(string(text))
				}
			}
		}
	}
	if found[" pids"] != "300" || found[" memo"] != "67108864" || found["/"+inner+" pids"] != "max" || found["/"+inner+" memo"] == "67108864" {
		t.Errorf("the limits are %q", found)
	}
}
