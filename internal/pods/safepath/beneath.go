// Package safepath opens and writes what lies in directories that containers can change: no link that a container made leads out of them,
// and what is opened is what is used, by its descriptor. It owns that and nothing else; it must not import anything of the project.
package safepath

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a directory or file of the machine without access to its content (O_PATH): dir, whose links are followed, then each of the
// names beneath what the one before led to. Links among those are followed as long as they lead nowhere else.
func Open(dir string, names ...string) (*os.File, error) {
	at, err := open(unix.AT_FDCWD, dir, unix.O_PATH, 0)
	for _, name := range names {
		if err != nil {
			return nil, err
		}
		outer := at
		at, err = open(int(outer.Fd()), name, unix.O_PATH, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
		outer.Close()
	}
	return at, err
}

// InRoot opens a path in a directory, which is the root for it and the links on its way. The links of /proc that lead past all names
// (/proc/self/fd/3, /proc/self/root) are not followed: in a process of ours they lead out of the container.
func InRoot(dir, path string, flags uint64) (*os.File, error) {
	root, err := open(unix.AT_FDCWD, dir, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return In(root, path, flags)
}

// In opens a path as a process sees it whose root directory is dir: links lead nowhere else, nor does "..".
func In(dir *os.File, path string, flags uint64) (*os.File, error) {
	return open(int(dir.Fd()), path, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

// patience is how often a path is tried whose directories are renamed meanwhile (openat2(2), EAGAIN).
const patience = 1000

func open(at int, path string, flags, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	var err error
	for range patience {
		var fd int
		if fd, err = unix.Openat2(at, path, &how); err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EXDEV):
		err = fmt.Errorf("it leads out of its directory: %w", err)
	case errors.Is(err, unix.ELOOP):
		err = fmt.Errorf("a link on the way is not followed: %w", err)
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: err}
}
