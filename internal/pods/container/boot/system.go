package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/rootfs"
)

// mountSystem mounts /proc, /sys and /dev, which an image need not have: what it has there must be directories.
func mountSystem(s *container.Spec) error {
	for _, name := range []string{"/proc", "/sys", "/dev"} {
		err := os.Mkdir(name, 0o755)
		if info, _ := os.Lstat(name); err != nil && (info == nil || !info.IsDir()) {
			return fmt.Errorf("%w: %s of the image is no directory", container.ErrStart, name)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", rootfs.NoExec, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", rootfs.NoExec, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if list := groupMounts(s); len(list) > 0 && list[0].Destination != groupsAt {
		if err := rootfs.MountAt("tmpfs", groupsAt, rootfs.NoExec, "mode=0755,size=4k"); err != nil {
			return err
		}
		for _, m := range list {
			if err := os.Mkdir(m.Destination, 0o755); err != nil {
				return err
			}
		}
		if err := rootfs.ReadOnly(groupsAt); err != nil {
			return err
		}
	}
	if err := rootfs.ReadOnly("/sys"); err != nil { // its superblock is shared with the network namespace's other ones
		return err
	}
	if err := rootfs.MakeDev(rootfs.Devices); err != nil {
		return fmt.Errorf("make /dev: %w", err)
	}
	return guardProc(s.Privileged)
}

// groupsAt is where programs look for what they are limited to.
const groupsAt = "/sys/fs/cgroup"

// groupMounts are the container's own control groups there; of cgroup v2 alone it is the root of all. Volumes have the place before them.
func groupMounts(s *container.Spec) (list []container.Mount) {
	for _, m := range s.Mounts {
		if dest := filepath.Clean(m.Destination); strings.HasPrefix(groupsAt+"/", dest+"/") || strings.HasPrefix(dest, groupsAt+"/") {
			return nil
		}
	}
	for _, m := range s.Group {
		at := filepath.Join(groupsAt, m.In)
		if len(s.Group) == 1 && m.In == (cgroup.Hierarchy{}).Dir() {
			at = groupsAt
		}
		list = append(list, container.Mount{Source: m.Dir, Destination: at, ReadOnly: true})
	}
	return list
}

// masked is what tells of the machine, and is empty in a container; unwritable is where writing would change the machine. Both are
// container engines' defaults (github.com/moby/moby, oci/defaults.go).
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	unwritable = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// mask makes a file or a directory empty; what is not there stays so.
func mask(name string) error {
	err := unix.Mount("/dev/null", name, "", unix.MS_BIND, "")
	if errors.Is(err, unix.ENOTDIR) {
		err = unix.Mount("tmpfs", name, "tmpfs", unix.MS_RDONLY|rootfs.NoExec, "")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mask %s: %w", name, err)
	}
	return nil
}

// guardProc protects what in /proc and /sys is the machine's: writing there would change more than the container, reading it tell more. A
// privileged container may change its network's settings.
func guardProc(privileged bool) error {
	for _, name := range masked {
		if err := mask(name); err != nil {
			return err
		}
	}
	writable := -1
	if privileged {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/proc/sys/net", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open /proc/sys/net: %w", err)
		}
		writable = fd
		defer unix.Close(fd)
	}
	for _, name := range unwritable {
		err := unix.Mount(name, name, "", unix.MS_BIND, "")
		if err == nil {
			err = rootfs.ReadOnly(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make %s read-only: %w", name, err)
		}
	}
	if writable >= 0 {
		if err := unix.MoveMount(writable, "", unix.AT_FDCWD, "/proc/sys/net", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("make /proc/sys/net writable: %w", err)
		}
	}
	return nil
}
