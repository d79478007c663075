package rootfs

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

// escapeOption protects what separates overlay's options and layers.
func escapeOption(s string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace(s)
}

// Alone keeps the mounts of this mount namespace from the machine's.
func Alone() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	return nil
}

// Pivot makes a directory the root and lets go of the old one (pivot_root(2), "pivot_root(".", ".")").
func Pivot(root string) error {
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
	if err != nil {
		return fmt.Errorf("change the root to %s: %w", root, err)
	}
	return nil
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
