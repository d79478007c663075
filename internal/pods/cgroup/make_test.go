package cgroup

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestMakeBesideRemove: groups come into being while others remove the parents that they share.
func TestMakeBesideRemove(t *testing.T) {
	h := Hierarchy{Point: t.TempDir(), Controllers: "memory"}
	var all sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		all.Go(func() {
			for range 2000 {
				if err := Make(h, "shared/"+name); err != nil {
					t.Error(err)
					return
				}
				if err := os.Remove(filepath.Join(h.Point, "shared", name)); err != nil {
					t.Error(err)
				}
				_ = os.Remove(filepath.Join(h.Point, "shared"))
			}
		})
	}
	all.Wait()
}
