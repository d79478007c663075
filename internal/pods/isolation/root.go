package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// NoExec are the flags of mounts that hold no programs, set-user-ID files and devices.
const NoExec = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// An Overlay is directories, one's files above the others' (Documentation/filesystems/overlayfs.rst).
type Overlay struct {
	Lower       []string // the first above the others; absolute
	Upper, Work string   // the writable one, above all, and a directory beside it
	// Volatile: what is written is of no use after this mount, and not brought to the disk when it ends, or when a program asks for that.
	Volatile bool
}

// Mount mounts it at target, with mount(2)'s flags. It changes the working directory: the names of several layers are relative where they
// are in one directory, because mount(2) takes a page of options, and an image may have a hundred layers. Who looks for what is mounted
// (mounts.Named) finds layers by their last elements then, and one alone by its whole name.
func (o Overlay) Mount(target string, flags uintptr) error {
	dir := filepath.Dir(o.Lower[0])
	lower := make([]string, len(o.Lower))
	for i, layer := range o.Lower {
		if len(lower) > 1 && filepath.Dir(layer) == dir {
			layer = filepath.Base(layer)
		}
		lower[i] = escapeOption(layer)
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(lower, ":"), escapeOption(o.Upper), escapeOption(o.Work))
	if o.Volatile {
		options += ",volatile"
	}
	err := unix.Mount("overlay", target, "overlay", flags, options)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("mount overlay: %w; load the kernel module: modprobe overlay", err)
	}
	if err != nil {
		return fmt.Errorf("mount overlay (%s): %w", options, err)
	}
	return nil
}

// TryUpper reports why the file system of a directory cannot have an overlay's writable layer. It mounts one at no directory.
func TryUpper(dir string) error {
	top, err := os.MkdirTemp(dir, ".overlay-*")
	if err != nil {
		return err
	}
	return errors.Join(tryOverlay(top), os.RemoveAll(top))
}

func tryOverlay(top string) error {
	context, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	defer unix.Close(context)
	for _, name := range []string{"lowerdir", "upperdir", "workdir"} {
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := unix.FsconfigSetString(context, name, dir); err != nil {
			return fmt.Errorf("%s %s: %w", name, dir, err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return fmt.Errorf("overlay on %s: %w", top, err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	return unix.Close(fd)
}

// escapeOption protects what separates overlay's options and layers.
func escapeOption(s string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace(s)
}

// IsolateMounts keeps the mounts of this mount namespace from the machine's. propagation is MS_PRIVATE, or MS_SLAVE to see the machine's
// later mounts. A root directory that is not a mount point, as chroot(8) leaves it, becomes one: all threads of a process that share the
// file system's root (CLONE_FS) see it.
func IsolateMounts(propagation uintptr) error {
	err := unix.Mount("", "/", "", unix.MS_REC|propagation, "")
	if errors.Is(err, unix.EINVAL) {
		err = mountOwnRoot(propagation)
	}
	if err != nil {
		return fmt.Errorf("isolate the mount namespace: %w", err)
	}
	return nil
}

// mountOwnRoot mounts a copy of the root directory, with all mounts below it, and changes the root to it. The mount point is /proc, which
// can be made private, unlike the mount that the root directory is part of. Otherwise the machine would get the new mount too.
func mountOwnRoot(propagation uintptr) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("copy the mounts of the root directory: %w", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Propagation: uint64(propagation)}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("set the propagation of mounts: %w", err)
	}
	const point = "/proc"
	if err := unix.Mount("", point, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("%s is not mounted in this root: %w; run \"mount -t proc proc /proc\" there", point, err)
	}
	err = unix.MoveMount(tree, "", unix.AT_FDCWD, point, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err == nil {
		err = unix.Fchdir(tree)
	}
	if err == nil {
		err = unix.Chroot(".")
	}
	if err != nil {
		return fmt.Errorf("mount the root directory: %w", err)
	}
	return nil
}

// Pivot makes a directory the root and lets go of the old one.
func Pivot(root string) error {
	err := pivot(root)
	if errors.Is(err, unix.EINVAL) { // the root is below a shared mount, which is outside of it and so cannot be made private
		if err = mountOwnRoot(unix.MS_PRIVATE); err == nil {
			err = pivot(root)
		}
	}
	if err != nil {
		return fmt.Errorf("change the root to %s: %w", root, err)
	}
	return nil
}

// pivot follows pivot_root(2), "pivot_root(".", ".")".
func pivot(root string) error {
	err := os.Chdir(root)
	if err == nil {
		err = unix.PivotRoot(".", ".")
	}
	if err == nil {
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	if err == nil {
		err = os.Chdir("/")
	}
	return err
}

// MountAt mounts a file system of a kind, which has no source, at a directory, which is made where it is missing.
func MountAt(kind, target string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, target, err)
	}
	return nil
}

// ReadOnly makes a mount with the flags NoExec read-only, by its own flag: a superblock is shared with others.
func ReadOnly(target string) error {
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|NoExec, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}
