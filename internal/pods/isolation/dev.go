package isolation

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A Device is a node of a character device in /dev.
type Device struct {
	Name         string // below /dev
	Major, Minor uint32
	ReadOnly     bool // it may be read alone; for who enforces that
}

// Devices are those that every container has: the OCI runtime specification's default ones.
var Devices = []Device{
	{Name: "null", Major: 1, Minor: 3}, {Name: "zero", Major: 1, Minor: 5}, {Name: "full", Major: 1, Minor: 7},
	{Name: "random", Major: 1, Minor: 8}, {Name: "urandom", Major: 1, Minor: 9}, {Name: "tty", Major: 5, Minor: 0},
}

// MakeDev mounts a /dev with these devices, pseudo-terminals of its own, the usual links and an empty shm.
func MakeDev(devices []Device) error {
	if err := MountAt("tmpfs", "/dev", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=65536k"); err != nil {
		return err
	}
	for _, d := range devices {
		name := filepath.Join("/dev", d.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.Major, d.Minor))); err != nil {
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
	if err := os.Mkdir("/dev/shm", 0o755); err != nil {
		return err
	}
	if err := unix.Chmod("/dev/shm", 0o1777); err != nil {
		return err
	}
	return MountAt("devpts", "/dev/pts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
}
