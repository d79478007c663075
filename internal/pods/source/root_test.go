package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/distribution"
	"packetwalk.dev/internal/testing/kerneltest"
)

// newRoots returns a function that makes the root of a distribution with a key, as another process would, in a shared directory.
func newRoots(t *testing.T) (roots string, get func(key string, assemble func(ctx context.Context, dir string) error) (string, error)) {
	kerneltest.NeedRoot(t)
	roots = filepath.Join(t.TempDir(), "roots")
	return roots, func(key string, assemble func(ctx context.Context, dir string) error) (string, error) {
		b := &BuiltIn{Roots: func() (string, error) { return roots, nil },
			Select: func(context.Context, distribution.Part) (Distribution, error) {
				return Distribution{key, assemble}, nil
			}}
		return b.Root(context.Background())
	}
}

func writeFile(_ context.Context, dir string) error {
	return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
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

// TestRoot: of several processes one makes the root. Half a root never gets a name, and what a killed process left is removed.
func TestRoot(t *testing.T) {
	roots, get := newRoots(t)
	failed := errors.New("disk full")
	fail := func(ctx context.Context, dir string) error { return errors.Join(writeFile(ctx, dir), failed) }
	if _, err := get("1", fail); !errors.Is(err, failed) {
		t.Errorf("a root that cannot be made: %v", err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock"}) {
		t.Errorf("left: %v", names)
	}
	if err := os.MkdirAll(filepath.Join(roots, unfinished, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	var made atomic.Int32
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			dir, err := get("1", func(ctx context.Context, dir string) error { made.Add(1); return writeFile(ctx, dir) })
			if err == nil {
				_, err = os.Stat(filepath.Join(dir, "f"))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil || made.Load() != 1 {
		t.Errorf("made %d times, %v", made.Load(), err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock", "whole-1"}) {
		t.Errorf("%v", names)
	}
	if info, err := os.Stat(roots); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestRootMadeAgain: a root that was removed is made of what is installed now.
func TestRootMadeAgain(t *testing.T) {
	roots, _ := newRoots(t)
	key := "1"
	b := &BuiltIn{Roots: func() (string, error) { return roots, nil },
		Select: func(context.Context, distribution.Part) (Distribution, error) {
			return Distribution{key, writeFile}, nil
		}}
	for _, key = range []string{"1", "2"} {
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
	old, err := get("old", writeFile)
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
	if _, err := get("new", writeFile); err != nil {
		t.Fatal(err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock", "whole-new", "whole-old"}) {
		t.Errorf("while it is mounted: %v", names)
	}
	release <- struct{}{}
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	if _, err := get("new", writeFile); err != nil {
		t.Fatal(err)
	}
	if names := namesIn(t, roots); !slices.Equal(names, []string{"lock", "whole-new"}) {
		t.Errorf("once it is not: %v", names)
	}
}
