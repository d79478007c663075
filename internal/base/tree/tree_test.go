package tree_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/tree"
)

// TestRemove: a tree with more directories in each other than this process can have open goes whole, and what links lead to stays.
func TestRemove(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 256, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()

	dir := t.TempDir()
	kept, gone := filepath.Join(dir, "kept"), filepath.Join(dir, "-gone")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Mkdir(gone, 0o700), os.Symlink(dir, gone+"/link")); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(gone, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range 5000 { // more than a path's bytes, too
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		var next int
		next, err = unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
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
