package dump

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
)

// ReadIn reads a file of at most limit bytes as a process sees it whose root directory is root. Who writes there may have put anything in
// its place: links lead nowhere else, and only a plain file is opened at all, because to open a FIFO waits and to open a device may do
// something.
func ReadIn(root, path string, limit int64) (text []byte, err error) {
	err = openBeneath(root, path, func(fd int) (err error) {
		text, err = limitio.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd), limit)
		return err
	})
	return text, err
}

// openBeneath finds the regular file of a path in a root, and calls do with it as an O_PATH descriptor.
func openBeneath(root, path string, do func(fd int) error) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(dir, path, &how)
	if err != nil {
		return &os.PathError{Op: "open", Path: root + "/" + path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: root + "/" + path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s/%s is no plain file", root, path)
	}
	return do(fd)
}
