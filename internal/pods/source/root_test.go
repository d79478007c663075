package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/testing/kerneltest"
)

// newArchive returns an archive of the files "small", which its list has, and "whole", in a directory with a key as its name.
func newArchive(t *testing.T, key string) string {
	t.Helper()
	dir, files := filepath.Join(t.TempDir(), key), t.TempDir()
	err := os.Mkdir(dir, 0o755)
	for _, p := range []part{small, whole} {
		err = errors.Join(err, os.WriteFile(filepath.Join(files, string(p)), nil, 0o644))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "small.list"), []byte("./small\n"), 0o644))
	_, tarErr := program.Command{Path: "tar", Args: []string{"-cf", filepath.Join(dir, "whole.tar"), "-C", files, "."}}.Output(t.Context())
	if err := errors.Join(err, tarErr); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newRoots returns a function that has an archive unpacked, as another process would, in a shared directory.
func newRoots(t *testing.T) (roots string, get func(archive string) (string, error)) {
	kerneltest.NeedRoot(t)
	roots = filepath.Join(t.TempDir(), "roots")
	return roots, func(archive string) (string, error) {
		b := &BuiltIn{Roots: func() (string, error) { return roots, nil }, Base: archive}
		return b.Root(context.Background())
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestRoot: of several processes one unpacks an archive. What was left half done does not matter; what is not an archive leaves nothing.
func TestRoot(t *testing.T) {
	roots, get := newRoots(t)
	bad := newArchive(t, "bad")
	if err := os.WriteFile(filepath.Join(bad, "whole.tar"), []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := get(bad); err == nil || !strings.Contains(err.Error(), "tar") {
		t.Errorf("of what is not an archive: %v", err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock"}) {
		t.Errorf("left: %v", names)
	}
	if _, err := get(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "'make controlplane'") {
		t.Errorf("without an archive: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(roots, unfinished, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	archive := newArchive(t, "1")
	var g errgroup.Group
	var mu sync.Mutex
	made := map[uint64]bool{}
	for range 8 {
		g.Go(func() error {
			dir, err := get(archive)
			var st unix.Stat_t
			err = errors.Join(err, unix.Stat(filepath.Join(dir, "whole"), &st))
			mu.Lock()
			made[st.Ino] = true
			mu.Unlock()
			return err
		})
	}
	if err := g.Wait(); err != nil || len(made) != 1 {
		t.Errorf("made %d times, %v", len(made), err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock", "whole-1"}) {
		t.Errorf("%v", names)
	}
	if info, err := os.Stat(roots); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestRootMadeAgain: a root that was removed is made again, from the present archive.
func TestRootMadeAgain(t *testing.T) {
	roots, _ := newRoots(t)
	b := &BuiltIn{Roots: func() (string, error) { return roots, nil }}
	for _, key := range []string{"1", "2"} {
		b.Base = newArchive(t, key)
		dir, err := b.Root(t.Context())
		if err != nil || filepath.Base(dir) != "whole-"+key {
			t.Fatalf("%s, %v", dir, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldRoots: a root of other packages is removed when no mount uses it, in whatever mount namespace.
func TestOldRoots(t *testing.T) {
	roots, get := newRoots(t)
	old, err := get(newArchive(t, "old"))
	if err != nil {
		t.Fatal(err)
	}
	mounted, release := make(chan error), make(chan struct{})
	t.Cleanup(func() { close(release) })
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and its namespace with it
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		at := t.TempDir()
		if err == nil {
			err = unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+old+":"+at)
		}
		mounted <- err
		<-release
		mounted <- unix.Unmount(at, 0)
	}()
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	if _, err := get(newArchive(t, "new")); err != nil {
		t.Fatal(err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock", "whole-new", "whole-old"}) {
		t.Errorf("while it is mounted: %v", names)
	}
	release <- struct{}{}
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	if _, err := get(newArchive(t, "new")); err != nil {
		t.Fatal(err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock", "whole-new"}) {
		t.Errorf("once it is not: %v", names)
	}
}
