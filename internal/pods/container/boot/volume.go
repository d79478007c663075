package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/container"
)

// A volume is a mount that is made but not attached: open_tree(2) takes hold of the source while the machine's files can still be seen,
// move_mount(2) puts it in place in the container's own. Both go by descriptors, so that a link that a container changes meanwhile leads
// nowhere.
type volume struct {
	container.Mount
	tree *os.File
}

func openVolumes(mounts []container.Mount) ([]volume, error) {
	volumes := make([]volume, len(mounts))
	for i, m := range mounts {
		tree, err := openTree(m)
		if err != nil {
			return nil, fmt.Errorf("volume for %s: %w", m.Destination, err)
		}
		volumes[i] = volume{m, tree}
	}
	return volumes, nil
}

// openTree makes the mount of a source, without what is mounted below it.
func openTree(m container.Mount) (*os.File, error) {
	source, err := beneath.Open(m.Source, m.Beneath...)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	fd, err := unix.OpenTree(int(source.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: m.Source, Err: err}
	}
	tree := os.NewFile(uintptr(fd), m.Source)
	// A device node is the machine's device, and a read-only mount does not keep from writing to it.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		tree.Close()
		return nil, fmt.Errorf("mount attributes: %w", err)
	}
	return tree, nil
}

// attach puts the volume in its place, which is made where it is missing.
func (v *volume) attach() error {
	defer v.tree.Close()
	info, err := v.tree.Stat()
	if err != nil {
		return err
	}
	point, err := mountPoint(filepath.Clean(v.Destination), info.IsDir())
	if err != nil {
		return fmt.Errorf("volume at %s: %w", v.Destination, err)
	}
	defer point.Close()
	var of unix.Statfs_t
	if err := unix.Fstatfs(int(point.Fd()), &of); err != nil {
		return fmt.Errorf("volume at %s: %w", v.Destination, err)
	}
	if of.Type == unix.PROC_SUPER_MAGIC { // by a link of the image's: a Spec with such a name is refused
		return fmt.Errorf("%w: mount at %s leads into /proc, which is the container's own", container.ErrStart, v.Destination)
	}
	return v.attachTo(point)
}

func (v *volume) attachTo(point *os.File) error {
	const byDescriptors = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(v.tree.Fd()), "", int(point.Fd()), "", byDescriptors); err != nil {
		return fmt.Errorf("volume at %s: %w", v.Destination, err)
	}
	return nil
}

// mountPoint opens the place of a mount. Another container of the pod may have made links on the way, in a volume that is mounted already:
// they lead to this container's files only.
func mountPoint(path string, dir bool) (*os.File, error) {
	point, err := beneath.InRoot("/", path, unix.O_PATH)
	if !errors.Is(err, fs.ErrNotExist) || path == "/" {
		return point, err
	}
	parent, err := mountPoint(filepath.Dir(path), true)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	at, name := int(parent.Fd()), filepath.Base(path)
	if dir {
		err = unix.Mkdirat(at, name, 0o755)
	} else {
		err = unix.Mknodat(at, name, unix.S_IFREG|0o644, 0)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "make", Path: path, Err: err}
	}
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// aside opens a directory of the machine by a mount that is nowhere attached: nothing leads from it to what is above it, whoever finds a
// way to this process's descriptors.
func aside(dir string) (*os.Root, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}
