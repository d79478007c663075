// Package removetree removes directories that containers have written to, of any depth. It works by descriptors: no path is looked up
// twice, no link is followed, and mounts are left alone.
package removetree

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	limit = 2 * time.Minute // for millions of files
	// maxDepth is how many directories in each other are open at once. What is deeper is moved up.
	maxDepth  = 32
	batchSize = 1024 // names read at once
)

// Remove does what [os.RemoveAll] does for directories of any depth. A mount in the directory is an error, EXDEV. It follows links on the
// way to the directory.
func Remove(dir string) error {
	dir = filepath.Clean(dir)
	parent, err := os.Open(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return RemoveIn(parent, filepath.Base(dir))
}

// RemoveIn does what Remove does with a file or directory, by its name, in an open directory, whoever may move it or make links on the way
// to it.
func RemoveIn(dir *os.File, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return fmt.Errorf("remove %q: invalid file name", name)
	}
	r := remover{end: time.Now().Add(limit)}
	if err := r.remove(int(dir.Fd()), name, 0); err != nil {
		return fmt.Errorf("remove %s: %w", filepath.Join(dir.Name(), name), err)
	}
	return nil
}

// remover removes one directory.
type remover struct {
	top   int // the directory
	moved int // how many directories were moved there
	end   time.Time
}

// remove removes a file or directory, which is depth levels below the remover's directory.
func (r *remover) remove(at int, name string, depth int) error {
	err := permitted(at, name, depth, func() error { return unix.Unlinkat(at, name, 0) })
	if !errors.Is(err, unix.EISDIR) {
		return named("unlink", name, err)
	}
	if depth >= maxDepth {
		err := r.moveUp(at, name, depth)
		if !errors.Is(err, unix.EXDEV) { // of a directory in overlayfs's lower layer
			return named("move", name, err)
		}
	}
	dir, err := openDir(at, name)
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("a file system is mounted at %s: %w", name, err)
	}
	if err != nil {
		return named("open", name, err)
	}
	defer unix.Close(dir)
	if depth == 0 {
		r.top = dir
	}
	for {
		if err := r.empty(dir, depth+1); err != nil {
			return err
		}
		err := permitted(at, name, depth, func() error { return unix.Unlinkat(at, name, unix.AT_REMOVEDIR) })
		if !errors.Is(err, unix.ENOTEMPTY) || time.Now().After(r.end) { // a file was added in the meantime
			return named("rmdir", name, err)
		}
	}
}

// named returns a system call's error, or nil where the file no longer exists.
func named(call, name string, err error) error {
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: call, Path: name, Err: err}
}

// moveUp moves a directory to the remover's own, which is emptied last.
func (r *remover) moveUp(at int, name string, depth int) error {
	for {
		r.moved++
		to := fmt.Sprintf("packetwalk-moved-%d", r.moved)
		err := permitted(at, name, depth, func() error { return unix.Renameat2(at, name, r.top, to, unix.RENAME_NOREPLACE) })
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// empty removes what is in a directory, until nothing is left or nothing of what is left can be removed.
func (r *remover) empty(dir, depth int) error {
	for {
		names, err := read(dir)
		if err != nil || len(names) == 0 {
			return err
		}
		var failed error
		removed := false
		for _, name := range names {
			if time.Now().After(r.end) {
				return fmt.Errorf("not done after %s", limit)
			}
			err := r.remove(dir, name, depth)
			failed, removed = cmp.Or(failed, err), removed || err == nil
		}
		if !removed {
			return failed
		}
	}
}

// read returns the first names in an open directory.
func read(dir int) ([]string, error) {
	fd, err := openDir(dir, ".") // a second file, which begins at the first name
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // it was removed while it was open
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	names, err := f.Readdirnames(batchSize)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func openDir(at int, name string) (int, error) {
	return unix.Openat2(at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// permitted calls change, and calls it again without the attributes of name and its directory where these may forbid it: containers can
// set them. At depth 0 the directory is the machine's and keeps its attributes.
func permitted(at int, name string, depth int, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	if depth > 0 {
		clearAttributes(at, ".")
	}
	clearAttributes(at, name)
	return change()
}

// clearAttributes clears the attributes of a regular file or directory that forbid its removal. Other files have none, and opening a device
// can have effects.
func clearAttributes(at int, name string) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	file, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(file)
	flags, err := unix.IoctlGetInt(file, unix.FS_IOC_GETFLAGS)
	if err == nil {
		// These have the numbers of FS_IMMUTABLE_FL and FS_APPEND_FL.
		_ = unix.IoctlSetPointerInt(file, unix.FS_IOC_SETFLAGS, flags&^(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND))
	}
}
