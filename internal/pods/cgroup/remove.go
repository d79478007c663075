package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removeGroups removes a group's directory after those below it; the files in them go with them. It goes by descriptors, of which it has
// two at a time: a container can nest groups deeper than a path can be long. The path is looked up once.
func removeGroups(dir string) error {
	parent, err := unix.Open(filepath.Dir(dir), openDir&^unix.O_NOFOLLOW, 0) // a hierarchy may be a link of /proc
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Dir(dir), Err: err}
	}
	defer unix.Close(parent)
	top := filepath.Base(dir)
	at, err := unix.Openat(parent, top, openDir, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { unix.Close(at) }()
	for names := []string{}; ; {
		child, err := firstBelow(at)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		next := ".."
		if child != "" {
			next = child
		} else if len(names) == 0 {
			break
		}
		to, err := unix.Openat(at, next, openDir, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // it was removed in the meantime
		}
		if err != nil {
			return fmt.Errorf("%s: open %s: %w", dir, next, err)
		}
		unix.Close(at)
		if at = to; child != "" {
			names = append(names, child)
			continue
		}
		name := names[len(names)-1]
		names = names[:len(names)-1]
		if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: remove %s: %w", dir, name, err)
		}
	}
	if err := unix.Unlinkat(parent, top, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// someEntries is how many entries of a directory are read at once: most are files.
const someEntries = 128

// firstBelow returns the name of a directory in an open one, "" where there is none.
func firstBelow(at int) (string, error) {
	own, err := unix.Openat(at, ".", openDir, 0) // a second file, because an offset belongs to a file
	if errors.Is(err, unix.ENOENT) {
		return "", nil // it was removed while it was open
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(own), ".")
	defer f.Close()
	for {
		entries, err := f.ReadDir(someEntries)
		for _, e := range entries {
			if e.IsDir() {
				return e.Name(), nil
			}
		}
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
	}
}
