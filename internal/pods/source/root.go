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
	"packetwalk.dev/internal/base/mounts"
	"packetwalk.dev/internal/base/sudouser"
	"packetwalk.dev/internal/pods/images"
)

// RootsDir returns the directory of the machine's roots, for all labs: packetwalk/roots in root's cache.
func RootsDir() (string, error) {
	cache, err := sudouser.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "packetwalk", "roots"), nil
}

// unfinished is the name of a root that is being made or removed.
const unfinished = "unfinished"

// root has a part of the archive unpacked, once for all labs, and returns the directory, absolute. Those of older archives that nothing has
// mounted are removed.
func (b *BuiltIn) root(ctx context.Context, p part) (dir string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := os.Lstat(b.dirs[p]); b.dirs[p] != "" && err == nil {
		return b.dirs[p], nil
	}
	archive, err := b.archive()
	if err != nil {
		return "", err
	}
	roots, err := b.Roots()
	if err != nil {
		return "", err
	}
	if err := images.MakePrivate(roots); err != nil {
		return "", fmt.Errorf("make the directory of nodes' roots: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(roots, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := filelock.Take(ctx, lock, nil); err != nil {
		return "", fmt.Errorf("wait for the lock of %s: %w", roots, err)
	}
	name := rootName(archive, p)
	dir = filepath.Join(roots, name)
	if err := makeRoot(ctx, archive, p, dir); err != nil {
		return "", fmt.Errorf("make root %s: %w", name, err)
	}
	if b.dirs == nil {
		b.dirs = map[part]string{}
	}
	b.dirs[p] = dir
	return dir, removeOldRoots(ctx, roots, string(p)+"-", name)
}

// existingRoot returns the directory of a part of the archive. [fs.ErrNotExist] is in the error's chain where it is not unpacked.
func (b *BuiltIn) existingRoot(p part) (string, error) {
	archive, err := b.archive()
	if err != nil {
		return "", err
	}
	roots, err := b.Roots()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(roots, rootName(archive, p))
	_, err = os.Lstat(dir)
	return dir, err
}

func rootName(archive string, p part) string { return string(p) + "-" + filepath.Base(archive) }

// makeRoot unpacks a part of the archive unless it is there. It gets its name when it is whole, and on the disk. The caller holds the lock.
func makeRoot(ctx context.Context, archive string, p part, dir string) error {
	work := filepath.Join(filepath.Dir(dir), unfinished)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(work); err != nil { // left by a process that was killed
		return err
	}
	err := unpack(ctx, archive, p, work)
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
