package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// A volume is a mount that is made but not attached: open_tree(2) takes hold of the source while the machine's files can still be seen,
// move_mount(2) puts it in place in the container's own, so that links in the destination's path are the container's.
type volume struct {
	container.Mount
	tree int // -1 where there is no source
}

func openVolumes(mounts []container.Mount) ([]volume, error) {
	volumes := make([]volume, len(mounts))
	for i, m := range mounts {
		volumes[i] = volume{m, -1}
		if m.Source == "" {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return nil, fmt.Errorf("volume for %s: open %s: %w", m.Destination, m.Source, err)
		}
		volumes[i].tree = fd
	}
	return volumes, nil
}

// attach puts the volume in its place; aside is a free name on a tmpfs, for a content.
func (v *volume) attach(aside string) error {
	var err error
	switch {
	case v.tree >= 0:
		err = v.attachTree()
	case v.Tmpfs:
		err = mkdir(v.Destination)
		if err == nil {
			err = unix.Mount("tmpfs", v.Destination, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
		}
	default:
		err = v.attachContent(aside)
	}
	if err == nil && v.ReadOnly {
		err = unix.MountSetattr(unix.AT_FDCWD, v.Destination, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	if err != nil {
		return fmt.Errorf("volume at %s: %w", v.Destination, err)
	}
	return nil
}

func (v *volume) attachTree() error {
	defer unix.Close(v.tree)
	var st unix.Stat_t
	if err := unix.Fstat(v.tree, &st); err != nil {
		return err
	}
	target := mkfile
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		target = mkdir
	}
	if err := target(v.Destination); err != nil {
		return err
	}
	// A device node is the machine's device, and a read-only mount does not keep from writing to it.
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(v.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return err
	}
	return unix.MoveMount(v.tree, "", unix.AT_FDCWD, v.Destination, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
}

// attachContent binds a file that has lost its name: nothing but the volume leads to it.
func (v *volume) attachContent(aside string) error {
	if err := mkfile(v.Destination); err != nil {
		return err
	}
	if err := os.WriteFile(aside, v.Content, 0o644); err != nil {
		return err
	}
	defer os.Remove(aside)
	return unix.Mount(aside, v.Destination, "", unix.MS_BIND, "")
}

// hide covers in a volume what the container does not see of the machine in its own root either: a read-only mount does not keep from
// connecting to a socket in /run.
func (v *volume) hide() error {
	for _, h := range hidden {
		below, err := filepath.Rel(v.Source, h.name)
		if v.Source == "" || err != nil || below == "." || !filepath.IsLocal(below) {
			continue
		}
		var st unix.Stat_t
		name := filepath.Join(v.Destination, below)
		if unix.Lstat(name, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if err := unix.Mount("tmpfs", name, "tmpfs", noExec|unix.MS_RDONLY, "size=4k,mode=0755"); err != nil {
			return fmt.Errorf("hide %s: %w", name, err)
		}
	}
	return nil
}

// A procMount is a mount of a proc file system.
type procMount struct{ id, root, point string }

// procMounts lists the caller's, parents first.
func procMounts() ([]procMount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseProcMounts(string(b)), nil
}

// parseProcMounts reads proc_pid_mountinfo(5).
func parseProcMounts(mountinfo string) (mounts []procMount) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		if f := strings.Fields(before); len(f) >= 5 && strings.HasPrefix(after, "proc ") {
			mounts = append(mounts, procMount{f[0], unescape.Replace(f[3]), unescape.Replace(f[4])})
		}
	}
	return mounts
}

// coverProc puts the container's own /proc over each one that came with a volume. The machine's leads, by /proc/PID/root of whatever runs there
// with no more rights than the container, to its files as they are, past all read-only mounts.
func coverProc(own []procMount) error {
	mounts, err := procMounts()
	if err != nil {
		return err
	}
	covered := ""
	for _, m := range mounts {
		if slices.ContainsFunc(own, func(o procMount) bool { return o.id == m.id }) || covered != "" && strings.HasPrefix(m.point, covered+"/") {
			continue
		}
		covered = m.point
		if err := unix.Mount(path.Join("/proc", m.root), m.point, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("%w: volume with the machine's /proc%s at %s: it is not in the container's own: %w", container.ErrStart, m.root, m.point, err)
		}
	}
	return nil
}

func mkdir(path string) error { return os.MkdirAll(path, 0o755) }

func mkfile(path string) error {
	if err := mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// bindAll mounts over the machine's files, for a command on a host. Nothing is made in the machine's own file system: a destination that is not
// there is an error. Contents are files of a tmpfs that has /sys for its place as long as it needs one; the caller mounts /sys afterwards.
func bindAll(mounts []container.Mount) error {
	volumes, err := openVolumes(mounts)
	if err != nil || len(volumes) == 0 {
		return err
	}
	if err := unix.Mount("tmpfs", "/sys", "tmpfs", noExec, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs for files: %w", err)
	}
	for i := range volumes {
		v := &volumes[i]
		if _, err := os.Stat(v.Destination); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		if err := v.attach(fmt.Sprintf("/sys/%d", i)); err != nil {
			return err
		}
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the tmpfs for files: %w", err)
	}
	return nil
}

// A layer is the writable layer of the container while it is filled, before it is mounted: a directory on a tmpfs.
type layer struct{ root string }

// dir makes a directory that merges with the machine's of that name, whose mode and owner it takes.
func (l layer) dir(name string) error {
	if name == "/" || name == "." {
		return nil
	}
	full := l.root + name
	if _, err := os.Lstat(full); err == nil {
		return nil
	}
	if err := l.dir(path.Dir(name)); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Stat(name, &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return os.Mkdir(full, 0o755)
	}
	if err == nil {
		err = os.Mkdir(full, 0o700)
	}
	if err == nil {
		err = os.Chown(full, int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = unix.Chmod(full, st.Mode&0o7777)
	}
	return err
}

// empty makes a directory that hides the machine's of that name: an opaque one (kernel: Documentation/filesystems/overlayfs.rst).
func (l layer) empty(name string, mode uint32) error {
	if err := l.dir(path.Dir(name)); err != nil {
		return err
	}
	full := l.root + name
	err := os.Mkdir(full, 0o755)
	if err == nil {
		err = unix.Chmod(full, mode)
	}
	if err == nil {
		err = unix.Setxattr(full, "trusted.overlay.opaque", []byte("y"), 0)
	}
	return err
}

func (l layer) file(name string, data []byte) error {
	if err := l.dir(path.Dir(name)); err != nil {
		return err
	}
	return os.WriteFile(l.root+name, data, 0o644)
}

func (l layer) link(name, target string) error {
	if err := l.dir(path.Dir(name)); err != nil {
		return err
	}
	return os.Symlink(target, l.root+name)
}

// hidden are the directories of the machine that a container does not see: what changes, what is somebody's own, and the labs' state.
var hidden = []struct {
	name string
	mode uint32
}{
	{"/tmp", 0o1777}, {"/run", 0o755}, {"/root", 0o700}, {"/home", 0o755}, {"/var/tmp", 0o1777}, {"/var/lib/packetwalk", 0o755}, {"/mnt", 0o755}, {"/media", 0o755},
}

func hostsFile(hostname string) []byte {
	text := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
	if hostname != "" {
		text += "127.0.1.1\t" + hostname + "\n"
	}
	return []byte(text)
}

// fill puts into the layer what the container has of its own.
func (l layer) fill(s *container.Spec, links []string, files map[string]string) error {
	for _, h := range hidden {
		if err := l.empty(h.name, h.mode); err != nil {
			return err
		}
	}
	hosts := s.Hosts
	if hosts == nil {
		hosts = hostsFile(s.Hostname)
	}
	for name, data := range map[string][]byte{"/etc/resolv.conf": s.ResolvConf, "/etc/hosts": hosts, "/etc/hostname": []byte(s.Hostname + "\n")} {
		if err := l.file(name, data); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := l.file(name, []byte(data)); err != nil {
			return err
		}
	}
	for _, name := range links {
		if err := l.link(name, selfPath); err != nil {
			return err
		}
	}
	if len(links) > 0 {
		return l.file(selfPath, nil)
	}
	return nil
}

// selfPath is where this binary is in a container, for the image's programs that are links to it.
const selfPath = "/.packetwalk/app"

// makeRoot makes the container's file system and changes the root to it: an overlay of the machine's root file system and a tmpfs that exists
// in this mount namespace only. links are programs of the image, files its files. The machine's mounts are gone afterwards.
func makeRoot(s *container.Spec, links []string, files map[string]string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	mounts := systemMounts()
	if len(links) > 0 {
		mounts = append(mounts, container.Mount{Source: "/proc/self/exe", Destination: selfPath, ReadOnly: true})
	}
	volumes, err := openVolumes(append(mounts, s.Mounts...))
	if err != nil {
		return err
	}
	if err := mountOverlay(s, links, files); err != nil {
		return err
	}
	if err := pivot(s.Dir + "/root"); err != nil {
		return err
	}
	if err := mountSystem(s); err != nil {
		return err
	}
	own, err := procMounts()
	if err != nil {
		return err
	}
	for i := range volumes {
		if err := volumes[i].attach("/dev/.content"); err != nil {
			return err
		}
		if err := volumes[i].hide(); err != nil {
			return err
		}
	}
	if err := coverProc(own); err != nil {
		return err
	}
	if s.ReadOnlyRoot {
		if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make the root read-only: %w", err)
		}
	}
	return nil
}

// systemMounts are the directories with programs that are file systems of their own on this machine, and so not part of the overlay.
func systemMounts() (mounts []container.Mount) {
	var root, st unix.Stat_t
	if unix.Lstat("/", &root) != nil {
		return nil
	}
	for _, name := range []string{"/usr", "/opt", "/nix", "/etc/alternatives"} {
		if unix.Lstat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Dev != root.Dev {
			mounts = append(mounts, container.Mount{Source: name, Destination: name, ReadOnly: true})
		}
	}
	return mounts
}

const defaultLayer = 256 << 20

// mountOverlay mounts the container's file system at Dir/root, which, like all of Dir, is a tmpfs by then that the machine does not see.
func mountOverlay(s *container.Spec, links []string, files map[string]string) error {
	size := s.Tmpfs
	if size <= 0 {
		size = defaultLayer
	}
	if err := unix.Mount("tmpfs", s.Dir, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%d", size)); err != nil {
		return fmt.Errorf("mount a tmpfs for the writable layer: %w", err)
	}
	for _, name := range []string{"/upper", "/work", "/root"} {
		if err := os.Mkdir(s.Dir+name, 0o755); err != nil {
			return err
		}
	}
	l := layer{s.Dir + "/upper"}
	if err := l.fill(s, links, files); err != nil {
		return fmt.Errorf("fill the writable layer: %w", err)
	}
	options := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", escapeOption(s.Dir), escapeOption(s.Dir))
	err := unix.Mount("overlay", s.Dir+"/root", "overlay", unix.MS_NODEV, options)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("mount the container's root: %w; load the kernel module: modprobe overlay", err)
	}
	if err != nil {
		return fmt.Errorf("mount the container's root as an overlay of / (%s): %w", options, err)
	}
	return nil
}

// escapeOption protects what separates overlay's options and layers.
func escapeOption(s string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace(s)
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

const noExec = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountSystem mounts /proc, /sys and /dev.
func mountSystem(s *container.Spec) error {
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

// guardProc protects what in /proc is the machine's: writing there would change more than the container, reading it tell more. The list is the
// one that container engines have by default.
func guardProc(privileged bool) error {
	for _, name := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"} {
		if err := unix.Mount("/dev/null", name, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("mask %s: %w", name, err)
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
	for _, name := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"} {
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
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
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
