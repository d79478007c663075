package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestMakeBesideRemove: groups come into being, of each hierarchy of the machine, while others remove the parents that they share.
func TestMakeBesideRemove(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := Hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	shared := fmt.Sprintf("packetwalk-make-%d", os.Getpid())
	t.Cleanup(func() {
		if err := Remove(shared); err != nil {
			t.Error(err)
		}
	})
	for _, h := range all {
		var makers sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			makers.Go(func() {
				for range 300 {
					if err := Make(h, filepath.Join(shared, "inner", name)); err != nil {
						t.Errorf("%s: %v", h.Dir(), err)
						return
					}
					_ = removeSoon(filepath.Join(h.Point, shared, "inner", name))
					_ = os.Remove(filepath.Join(h.Point, shared, "inner"))
					_ = os.Remove(filepath.Join(h.Point, shared))
				}
			})
		}
		makers.Wait()
	}
}
