package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/realnode"
)

// A detachedMount is one of the machine's on its way to a path of the node's. It is not mounted there before that is the root: links in a
// directory that pods of an earlier start could write to lead within it then.
type detachedMount struct {
	target string
	tree   *os.File
}

// makeRoot makes the node's file system and changes the root to it. The machine's mounts are gone afterwards, and the machine sees none of
// the node's.
func makeRoot(s *realnode.Spec, groups []group) error {
	if err := isolation.IsolateMounts(unix.MS_PRIVATE); err != nil {
		return err
	}
	if err := overlay(s); err != nil {
		return err
	}
	var mounts []detachedMount
	for _, b := range s.Binds {
		m, err := cloneMount(b)
		if err != nil {
			return err
		}
		mounts = append(mounts, m)
	}
	if err := isolation.Pivot(s.Root()); err != nil {
		return err
	}
	// /run first: what is imported is below it.
	if err := isolation.MountAt("tmpfs", "/run", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
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
	return isolation.Overlay{Lower: s.Lower, Upper: s.Upper(), Work: s.Work()}.Mount(s.Root(), 0)
}

// cloneMount clones a directory of the machine as a detached mount.
func cloneMount(b realnode.Bind) (detachedMount, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return detachedMount{}, fmt.Errorf("open %s: %w", b.Source, err)
	}
	return detachedMount{target: b.Target, tree: os.NewFile(uintptr(fd), b.Source)}, nil
}

// attach mounts it in the node's root.
func (m detachedMount) attach() error {
	defer m.tree.Close()
	err := os.MkdirAll(m.target, 0o755)
	if err == nil {
		err = unix.MoveMount(int(m.tree.Fd()), "", unix.AT_FDCWD, m.target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("mount at %s: %w", m.target, err)
	}
	return nil
}

// mountSystem mounts /proc, /sys with the node's control groups, and /dev.
func mountSystem(groups []group) error {
	if err := isolation.MountAt("proc", "/proc", isolation.NoExec, ""); err != nil {
		return err
	}
	if err := coverTunables(); err != nil {
		return err
	}
	// In a user namespace the kernel mounts proc only where the mount namespace has one with nothing mounted over its files
	// (fs/namespace.c, mount_too_revealing).
	if err := isolation.MountAt("proc", wholeProc, isolation.NoExec, ""); err != nil {
		return err
	}
	if err := isolation.MountAt("sysfs", "/sys", isolation.NoExec, ""); err != nil {
		return err
	}
	if err := mountGroups(groups); err != nil {
		return err
	}
	if err := isolation.ReadOnly("/sys"); err != nil { // its superblock is shared with the network namespace's other ones
		return err
	}
	return makeDev()
}

// wholeProc is the proc of nodes without covered tunables, for pods with user namespaces.
const wholeProc = "/run/packetwalk/proc"

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

// devices are all that a node has: none of the machine's disks, terminals and other hardware. kmsg is the kernel's log, which kubelet
// reads.
var devices = append([]isolation.Device{
	{Name: "kmsg", Major: 1, Minor: 11, ReadOnly: true}, {Name: "net/tun", Major: 10, Minor: 200}, {Name: "fuse", Major: 10, Minor: 229},
}, isolation.Devices...)

// makeDev makes /dev.
func makeDev() error {
	if err := isolation.MakeDev(devices); err != nil {
		return err
	}
	if err := isolation.MountAt("tmpfs", "/dev/shm", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	return isolation.MountAt("mqueue", "/dev/mqueue", isolation.NoExec, "")
}
