package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/filelock"
	"packetwalk.dev/internal/base/invoker"
	"packetwalk.dev/internal/base/mounts"
	"packetwalk.dev/internal/pods/distribution"
	"packetwalk.dev/internal/pods/images"
)

// A root is a part of the distribution as a directory, the lowest layer of nodes and of images.
type root struct {
	dir string // absolute; "" until it is made
	key string
}

// RootsDir returns the directory of the machine's roots, for all labs: packetwalk/roots in root's cache.
func RootsDir() (string, error) {
	cache, err := invoker.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "packetwalk", "roots"), nil
}

// unfinished is the name of a root that is being made or removed.
const unfinished = "unfinished"

// root makes a part's root unless it exists. Of several processes one makes it, and the others wait.
func (b *BuiltIn) root(ctx context.Context, r *root, part distribution.Part) error {
	if _, err := os.Lstat(r.dir); r.dir != "" && err == nil {
		return nil
	}
	d, err := b.Select(ctx, part)
	if err != nil {
		return err
	}
	roots, err := b.Roots()
	if err != nil {
		return err
	}
	if err := images.MakePrivate(roots); err != nil {
		return fmt.Errorf("make the directory of nodes' roots: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(roots, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := filelock.Take(ctx, lock, nil); err != nil {
		return fmt.Errorf("wait for the lock of %s: %w", roots, err)
	}
	name := part.String() + "-" + d.Key
	if err := makeRoot(ctx, roots, name, d.Assemble); err != nil {
		return fmt.Errorf("make root %s: %w", name, err)
	}
	r.dir, r.key = filepath.Join(roots, name), d.Key
	return removeOldRoots(ctx, roots, part.String()+"-", name)
}

// makeRoot assembles a root unless it exists. It gets its name when it is whole, and on the disk. The caller holds the lock.
func makeRoot(ctx context.Context, roots, name string, assemble func(ctx context.Context, dir string) error) error {
	dir, work := filepath.Join(roots, name), filepath.Join(roots, unfinished)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(work); err != nil { // left by a process that was killed
		return err
	}
	err := assemble(ctx, work)
	if err == nil {
		err = syncDisk(work)
	}
	if err == nil {
		err = os.Rename(work, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(work))
	}
	return nil
}

// syncDisk writes a directory's file system to the disk.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// removeOldRoots removes the roots with a prefix that are not current, and that no mount of the machine uses. The caller holds the lock.
func removeOldRoots(ctx context.Context, roots, prefix, current string) error {
	entries, err := os.ReadDir(roots)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Name() != current {
			err = errors.Join(err, removeRoot(ctx, filepath.Join(roots, e.Name()), filepath.Join(roots, unfinished)))
		}
	}
	return err
}

// removeRoot removes a root unless it is mounted. It is renamed to work first: then nothing can mount it, and if something has, it gets
// its name back.
func removeRoot(ctx context.Context, dir, work string) error {
	if used, err := mounts.Named(ctx, []string{dir}); err != nil || len(used) > 0 {
		return err
	}
	if err := errors.Join(os.RemoveAll(work), os.Rename(dir, work)); err != nil {
		return err
	}
	if used, err := mounts.Named(ctx, []string{dir}); err != nil || len(used) > 0 {
		return errors.Join(err, os.Rename(work, dir))
	}
	return os.RemoveAll(work)
}
