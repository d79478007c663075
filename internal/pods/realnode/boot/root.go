package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/realnode"
)

// A placed mount is one of the machine's on its way to a path of the node's. It is not mounted there before that is the root: links in a
// directory that pods of an earlier start could write to lead within it then.
type placed struct {
	target string
	tree   *os.File
	file   bool // it is one, not a directory
}

// makeRoot makes the node's file system and changes the root to it. The machine's mounts are gone afterwards, and the machine sees none of
// the node's.
func makeRoot(s *realnode.Spec, groups []group) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	if err := overlay(s); err != nil {
		return err
	}
	var mounts []placed
	for _, b := range s.Binds {
		m, err := take(b)
		if err != nil {
			return err
		}
		mounts = append(mounts, m)
	}
	if err := pivot(s.Root()); err != nil {
		return err
	}
	// /run first: the node's spec is bound below it.
	if err := mountAt("tmpfs", "/run", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := m.attach(); err != nil {
			return err
		}
	}
	if err := mountSystem(groups); err != nil {
		return err
	}
	// kubelet and containerd want mounts to propagate from the node to its pods, where a pod asks for it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts with pods: %w", err)
	}
	return nil
}

// overlay mounts the node's root in its mount namespace.
func overlay(s *realnode.Spec) error {
	for _, dir := range []string{s.Upper(), s.Work(), s.Root()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	var lower []string
	for _, dir := range s.Lower {
		lower = append(lower, escapeOption(dir))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(lower, ":"), escapeOption(s.Upper()), escapeOption(s.Work()))
	err := unix.Mount("overlay", s.Root(), "overlay", 0, options)
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

// take takes hold of a directory or file of the machine.
func take(b realnode.Bind) (placed, error) {
	info, err := os.Stat(b.Source)
	if err != nil {
		return placed{}, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return placed{}, fmt.Errorf("open %s: %w", b.Source, err)
	}
	if b.ReadOnly {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err != nil {
			unix.Close(fd)
			return placed{}, fmt.Errorf("make %s read-only: %w", b.Target, err)
		}
	}
	return placed{target: b.Target, tree: os.NewFile(uintptr(fd), b.Source), file: !info.IsDir()}, nil
}

// attach mounts it in the node's root.
func (m placed) attach() error {
	defer m.tree.Close()
	var err error
	if m.file {
		err = makeFile(m.target)
	} else {
		err = os.MkdirAll(m.target, 0o755)
	}
	if err == nil {
		err = unix.MoveMount(int(m.tree.Fd()), "", unix.AT_FDCWD, m.target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("mount at %s: %w", m.target, err)
	}
	return nil
}

// makeFile makes an empty file to mount another one at, where there is none.
func makeFile(name string) error {
	if _, err := os.Stat(name); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, nil, 0o644)
}

// pivot makes a directory the root and lets go of the old one (pivot_root(2), "pivot_root(".", ".")").
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
	if err != nil {
		return fmt.Errorf("change the root to %s: %w", root, err)
	}
	return nil
}

func mountAt(kind, target string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, target, err)
	}
	return nil
}

const noExec = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountSystem mounts /proc, /sys with the node's control groups, and /dev.
func mountSystem(groups []group) error {
	if err := mountAt("proc", "/proc", noExec, ""); err != nil {
		return err
	}
	if err := coverTunables(); err != nil {
		return err
	}
	if err := mountAt("sysfs", "/sys", noExec, ""); err != nil {
		return err
	}
	if err := mountGroups(groups); err != nil {
		return err
	}
	// By the mount's own flag: the superblock is shared with the network namespace's other ones.
	if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noExec, ""); err != nil {
		return fmt.Errorf("make /sys read-only: %w", err)
	}
	return makeDev()
}

// tunables are what kubelet sets at its start, if they are not so (k8s.io/kubernetes, pkg/kubelet/cm, setupKernelTunables): settings of the
// whole machine.
var tunables = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// coverTunables has the node see them as kubelet wants them, and the machine keep its own.
func coverTunables() error {
	const dir = "/run/packetwalk/tunables"
	for name, value := range tunables {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(value+"\n"), 0o444)
		}
		if err == nil {
			err = unix.Mount(file, "/proc/sys/"+name, "", unix.MS_BIND, "")
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cover /proc/sys/%s: %w", name, err)
		}
	}
	return nil
}

// A device is a character device that a node has, and may use.
type device struct {
	name         string // below /dev
	major, minor uint32
	readOnly     bool
}

// devices are all that a node has: none of the machine's disks, terminals and other hardware. kmsg is the kernel's log, which kubelet
// reads.
var devices = []device{
	{name: "null", major: 1, minor: 3}, {name: "zero", major: 1, minor: 5}, {name: "full", major: 1, minor: 7},
	{name: "random", major: 1, minor: 8}, {name: "urandom", major: 1, minor: 9}, {name: "kmsg", major: 1, minor: 11, readOnly: true},
	{name: "tty", major: 5, minor: 0}, {name: "net/tun", major: 10, minor: 200}, {name: "fuse", major: 10, minor: 229},
}

// makeDev makes /dev.
func makeDev() error {
	if err := mountAt("tmpfs", "/dev", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return err
	}
	if err := os.Mkdir("/dev/net", 0o755); err != nil {
		return err
	}
	for _, d := range devices {
		name := "/dev/" + d.name
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if err := unix.Chmod(name, 0o666); err != nil { // whatever the umask is
			return err
		}
	}
	for link, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, "/dev/"+link); err != nil {
			return err
		}
	}
	if err := mountAt("devpts", "/dev/pts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return err
	}
	if err := mountAt("tmpfs", "/dev/shm", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	return mountAt("mqueue", "/dev/mqueue", noExec, "")
}
