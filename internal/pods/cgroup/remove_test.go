package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestRemoveDeep: groups in each other go, also those whose path is longer than a path may be, and those beside them.
func TestRemoveDeep(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := Hierarchies()
	if err != nil || len(all) == 0 {
		kerneltest.Missing(t, "control groups: %v", err)
	}
	top := filepath.Join(all[0].Point, fmt.Sprintf("packetwalk-deep-%d", os.Getpid()))
	err = errors.Join(os.MkdirAll(filepath.Join(top, "beside", "a"), 0o755), os.Mkdir(filepath.Join(top, "other"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(top, openDir, 0)
	if err != nil {
		t.Fatal(err)
	}
	name, made := strings.Repeat("x", 200), 0
	for ; made < 30; made++ {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			break
		}
		next, err := unix.Openat(at, name, openDir, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	if made*201 < unix.PathMax {
		t.Logf("the kernel lets only %d groups be in each other", made)
	}
	if err := removeGroups(top); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if err := removeGroups(top); err != nil {
		t.Errorf("a missing group: %v", err)
	}
}
