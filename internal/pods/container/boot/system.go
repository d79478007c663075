package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

const noExec = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountSystem mounts /proc, /sys and /dev, which an image need not have: what it has there must be directories.
func mountSystem(s *container.Spec) error {
	for _, name := range []string{"/proc", "/sys", "/dev"} {
		err := os.Mkdir(name, 0o755)
		if info, _ := os.Lstat(name); err != nil && (info == nil || !info.IsDir()) {
			return fmt.Errorf("%w: %s of the image is no directory", container.ErrStart, name)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", noExec, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", noExec, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	// By the mount's own flag: the superblock is shared with the network namespace's other ones.
	if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noExec, ""); err != nil {
		return fmt.Errorf("make /sys read-only: %w", err)
	}
	if err := makeDev(); err != nil {
		return fmt.Errorf("make /dev: %w", err)
	}
	return guardProc(s.Privileged)
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
		err = unix.Mount("tmpfs", name, "tmpfs", unix.MS_RDONLY|noExec, "")
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
			err = unix.Mount("", name, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noExec, "")
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

// devices are the nodes that every container has: the OCI runtime specification's default devices.
var devices = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

func makeDev() error {
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=65536k"); err != nil {
		return err
	}
	for _, d := range devices {
		name := "/dev/" + d.name
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if err := unix.Chmod(name, 0o666); err != nil { // past the umask
			return err
		}
	}
	links := map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
	for name, target := range links {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	for name, mode := range map[string]uint32{"pts": 0o755, "shm": 0o1777} {
		if err := os.Mkdir("/dev/"+name, 0o755); err != nil {
			return err
		}
		if err := unix.Chmod("/dev/"+name, mode); err != nil {
			return err
		}
	}
	return unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
}
