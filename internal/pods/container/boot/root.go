package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/rootfs"
)

// makeRoot makes the container's file system, which exists in this mount namespace only, and changes the root to it: a writable layer above
// the image's. The machine's mounts are gone afterwards.
func makeRoot(s *container.Spec) error {
	if err := rootfs.IsolateMounts(unix.MS_PRIVATE); err != nil {
		return err
	}
	mounts := slices.Concat(groupMounts(s), s.Mounts)
	// A mount below another comes after it.
	mounts = slices.SortedStableFunc(slices.Values(mounts), func(a, b container.Mount) int {
		return strings.Count(filepath.Clean(a.Destination), "/") - strings.Count(filepath.Clean(b.Destination), "/")
	})
	volumes, err := openVolumes(mounts)
	if err != nil {
		return err
	}
	if err := mountRoot(s); err != nil {
		return err
	}
	if err := rootfs.Pivot(s.Dir + "/root"); err != nil {
		return err
	}
	if err := mountSystem(s); err != nil {
		return err
	}
	if err := fill(s); err != nil {
		return fmt.Errorf("%w: fill the container's root: %w", container.ErrStart, err)
	}
	for _, dir := range s.Volumes {
		if err := keepWritable(dir); err != nil {
			return err
		}
	}
	lock := func() error { return nil }
	if s.ReadOnlyRoot {
		if lock, err = readOnly(); err != nil {
			return err
		}
	}
	for i := range volumes {
		if err := volumes[i].attach(); err != nil {
			return err
		}
	}
	return lock()
}

// memoryLayer is how large a writable layer in memory may be, in bytes.
const memoryLayer = 256 << 20

// mountRoot mounts the container's file system at Dir/root. With a layer in memory all of Dir is a tmpfs by then that the machine does not
// see.
func mountRoot(s *container.Spec) error {
	layer := s.Layer()
	if s.Upper == "" {
		if err := unix.Mount("tmpfs", layer, "tmpfs", unix.MS_NODEV, fmt.Sprintf("mode=0755,size=%d", memoryLayer)); err != nil {
			return fmt.Errorf("mount a tmpfs for the writable layer: %w", err)
		}
	}
	o := rootfs.Overlay{Lower: slices.Clone(s.Layers), Upper: layer + "/upper", Work: layer + "/work", Volatile: true}
	slices.Reverse(o.Lower)
	root := s.Dir + "/root"
	for _, d := range []string{o.Upper, o.Work, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	return o.Mount(root, unix.MS_NODEV)
}

// readOnly takes hold of the root, and gives what makes it read-only: not before the volumes have their places in it.
func readOnly() (lock func() error, err error) {
	point, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer point.Close()
		if err := unix.MountSetattr(int(point.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make the root read-only: %w", err)
		}
		return nil
	}, nil
}

// keepWritable makes a directory of the root a mount of its own, with what the image has in it, which a read-only root leaves as it is.
// What is in another file system, also by a link of the image's, is none of its files: a mount of /proc there would not have its guards.
func keepWritable(dir string) error {
	point, err := mountPoint(filepath.Clean(dir), true)
	if err != nil {
		return fmt.Errorf("%w: volume %s of the image: %w", container.ErrStart, dir, err)
	}
	defer point.Close()
	var root, at unix.Stat_t
	if err := errors.Join(unix.Stat("/", &root), unix.Fstat(int(point.Fd()), &at)); err != nil {
		return fmt.Errorf("volume %s of the image: %w", dir, err)
	}
	if at.Dev != root.Dev {
		return nil
	}
	fd, err := unix.OpenTree(int(point.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("volume %s of the image: %w", dir, err)
	}
	v := volume{container.Mount{Destination: dir}, os.NewFile(uintptr(fd), dir)}
	defer v.tree.Close()
	return v.attachTo(point)
}

// fill makes what the container has of its own.
func fill(s *container.Spec) error {
	hosts := s.Hosts
	switch {
	case hosts == nil && s.Hostname == "":
		hosts = []byte(rootfs.Hosts())
	case hosts == nil:
		hosts = []byte(rootfs.Hosts("127.0.1.1\t" + s.Hostname))
	}
	for path, text := range map[string][]byte{
		"/etc/resolv.conf": s.ResolvConf, "/etc/hosts": hosts, "/etc/hostname": []byte(s.Hostname + "\n"),
	} {
		if err := replace(path, text); err != nil {
			return err
		}
	}
	return nil
}

// replace removes what the image has at a path, a link, a file or an empty directory, and writes a file there. Links on the way lead within
// the root, which is the container's by now, and none of /proc is followed.
func replace(path string, text []byte) error {
	parent, err := mountPoint(filepath.Dir(path), true)
	if err != nil {
		return err
	}
	defer parent.Close()
	dir, name := int(parent.Fd()), filepath.Base(path)
	if err = unix.Unlinkat(dir, name, 0); errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	fd := -1
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	}
	if err != nil {
		return &os.PathError{Op: "replace", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}
