package tree_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/testing/containertest"
)

// TestRemove: a tree with more directories in each other than this process can have open goes whole, and what links lead to stays.
func TestRemove(t *testing.T) {
	containertest.FewFiles(t)
	dir := t.TempDir()
	kept, gone := filepath.Join(dir, "kept"), filepath.Join(dir, "-gone")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Mkdir(gone, 0o700), os.Symlink(dir, gone+"/link")); err != nil {
		t.Fatal(err)
	}
	containertest.Deep(t, gone, 5000)
	for range 2 { // what is not there is no error
		if err := tree.Remove(gone); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if _, err := os.Lstat(kept); err != nil {
		t.Error(err)
	}
}

// TestRemoveIn: what is removed is in the directory that was opened, also where that was moved, and another has its name.
func TestRemoveIn(t *testing.T) {
	parent := t.TempDir()
	in, moved := filepath.Join(parent, "in"), filepath.Join(parent, "moved")
	if err := os.MkdirAll(filepath.Join(in, "-gone"), 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := errors.Join(os.Rename(in, moved), os.MkdirAll(filepath.Join(in, "-gone"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is not there is no error
		if err := tree.RemoveIn(dir, "-gone"); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(moved, "-gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if err := tree.RemoveIn(dir, "../in/-gone"); err == nil {
		t.Error("a path was taken for a name")
	}
	if _, err := os.Lstat(filepath.Join(in, "-gone")); err != nil {
		t.Error(err)
	}
}
