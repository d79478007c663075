package removetree_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/testing/containertest"
	"packetwalk.dev/internal/testing/kerneltest"
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
		if err := removetree.Remove(gone); err != nil {
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
		if err := removetree.RemoveIn(dir, "-gone"); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(moved, "-gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if err := removetree.RemoveIn(dir, "../in/-gone"); err == nil {
		t.Error("a path was taken for a name")
	}
	if _, err := os.Lstat(filepath.Join(in, "-gone")); err != nil {
		t.Error(err)
	}
}

// TestRemoveMounted: what is mounted in a tree stays, and is an error.
func TestRemoveMounted(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	machine, gone := filepath.Join(dir, "machine"), filepath.Join(dir, "gone")
	point, file := filepath.Join(gone, "a", "point"), filepath.Join(machine, "file")
	if err := errors.Join(os.Mkdir(machine, 0o700), os.MkdirAll(point, 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(machine, point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })
	if err := removetree.Remove(gone); !errors.Is(err, unix.EXDEV) {
		t.Errorf("removed with what is mounted: %v", err)
	}
	if _, err := os.Lstat(file); err != nil {
		t.Errorf("a file of the machine is gone: %v", err)
	}
	if err := errors.Join(unix.Unmount(point, 0), removetree.Remove(gone)); err != nil {
		t.Error(err)
	}
}

// TestRemoveProtected: attributes of files that forbid it do not keep a tree.
func TestRemoveProtected(t *testing.T) {
	kerneltest.NeedRoot(t)
	for name, made := range map[string]struct {
		of    string // the file that has the attribute
		flags int    // which have the numbers of FS_IMMUTABLE_FL and FS_APPEND_FL
	}{
		"immutable file":         {"gone/dir/file", unix.STATX_ATTR_IMMUTABLE},
		"append-only file":       {"gone/dir/file", unix.STATX_ATTR_APPEND},
		"immutable directory":    {"gone/dir", unix.STATX_ATTR_IMMUTABLE},
		"append-only directory":  {"gone/dir", unix.STATX_ATTR_APPEND},
		"the directory itself":   {"gone", unix.STATX_ATTR_IMMUTABLE},
		"a level that is lifted": {"gone" + strings.Repeat("/d", 32), unix.STATX_ATTR_IMMUTABLE},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			gone := filepath.Join(dir, "gone")
			err := errors.Join(os.MkdirAll(filepath.Join(gone, "dir"), 0o700), os.WriteFile(filepath.Join(gone, "dir", "file"), nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
			containertest.Deep(t, gone, 100)
			f, err := os.Open(filepath.Join(dir, made.of))
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, made.flags); err != nil {
				kerneltest.Missing(t, "attributes of files in %s: %v", dir, err)
			}
			t.Cleanup(func() { // so that the test's own directory goes
				_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
				_ = f.Close()
			})
			if err := removetree.Remove(gone); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is left: %v", err)
			}
		})
	}
}
