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

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/container"
)

// makeRoot makes the container's file system and changes the root to it: writable layers on a tmpfs that exists in this mount namespace
// only, above the base and the machine's directories of app.Distribution. links are programs of the image, files its files. The machine's
// mounts are gone afterwards.
func makeRoot(s *container.Spec, links []string, files []app.File) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	mounts := s.Mounts
	if len(links) > 0 {
		mounts = append([]container.Mount{{Source: "/proc/self/exe", Destination: selfPath, ReadOnly: true}}, mounts...)
	}
	// A mount below another comes after it.
	mounts = slices.SortedStableFunc(slices.Values(mounts), func(a, b container.Mount) int {
		return strings.Count(filepath.Clean(a.Destination), "/") - strings.Count(filepath.Clean(b.Destination), "/")
	})
	volumes, err := openVolumes(mounts)
	if err != nil {
		return err
	}
	layers, err := mountRoot(s)
	if err != nil {
		return err
	}
	if err := pivot(s.Dir + "/root"); err != nil {
		return err
	}
	if err := mountSystem(s); err != nil {
		return err
	}
	if err := fill(s, links, files); err != nil {
		return fmt.Errorf("fill the container's root: %w", err)
	}
	lock := func() error { return nil }
	if s.ReadOnlyRoot {
		if lock, err = readOnly(layers); err != nil {
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

const defaultLayer = 256 << 20

// mountRoot mounts the container's file system at Dir/root: all of Dir is a tmpfs by then that the machine does not see. layers are the
// directories that are mounts of their own, the root first.
func mountRoot(s *container.Spec) (layers []string, err error) {
	size := s.Tmpfs
	if size <= 0 {
		size = defaultLayer
	}
	if err := unix.Mount("tmpfs", s.Dir, "tmpfs", unix.MS_NODEV, fmt.Sprintf("mode=0755,size=%d", size)); err != nil {
		return nil, fmt.Errorf("mount a tmpfs for the writable layer: %w", err)
	}
	if err := overlay(s.Dir, s.Base, "/"); err != nil {
		return nil, err
	}
	layers = []string{"/"}
	for _, name := range app.Distribution {
		info, err := os.Lstat(name)
		if err != nil || !info.IsDir() || strings.HasPrefix(name, "/etc/") {
			continue // it is not there, or in the base
		}
		if err := overlay(s.Dir, name, name); err != nil {
			return nil, err
		}
		layers = append(layers, name)
	}
	return layers, nil
}

// overlay mounts a directory of the machine's in the new root, with a writable layer of its own above it.
func overlay(dir, lower, name string) error {
	id := strings.ReplaceAll(name, "/", "_")
	upper, work, point := dir+"/upper"+id, dir+"/work"+id, dir+"/root"+name
	var st unix.Stat_t
	err := unix.Stat(lower, &st)
	for _, d := range []string{upper, work} {
		if err == nil {
			err = os.Mkdir(d, 0o755)
		}
	}
	if err == nil {
		err = os.Chown(upper, int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = unix.Chmod(upper, st.Mode&0o7777)
	}
	if err == nil {
		err = os.MkdirAll(point, 0o755)
	}
	if err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escapeOption(lower), escapeOption(upper), escapeOption(work))
	err = unix.Mount("overlay", point, "overlay", unix.MS_NODEV, options)
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

// readOnly takes hold of mounts, and gives what makes them read-only: not before the volumes have their places in them.
func readOnly(mounts []string) (lock func() error, err error) {
	var points []*os.File
	for _, name := range mounts {
		point, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		points = append(points, point)
	}
	return func() error {
		for _, p := range points {
			if err := unix.MountSetattr(int(p.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
				return fmt.Errorf("make the root read-only: %w", err)
			}
			p.Close()
		}
		return nil
	}, nil
}

func hostsFile(hostname string) []byte {
	text := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
	if hostname != "" {
		text += "127.0.1.1\t" + hostname + "\n"
	}
	return []byte(text)
}

// selfPath is where this binary is in a container, for the image's programs that are links to it.
const selfPath = "/.packetwalk/app"

// fill makes what the container has of its own. It is the root by now: links in the distribution lead within it.
func fill(s *container.Spec, links []string, files []app.File) error {
	hosts := s.Hosts
	if hosts == nil {
		hosts = hostsFile(s.Hostname)
	}
	files = append([]app.File{
		{Path: "/etc/resolv.conf", Text: string(s.ResolvConf)}, {Path: "/etc/hosts", Text: string(hosts)},
		{Path: "/etc/hostname", Text: s.Hostname + "\n"},
	}, files...)
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, []byte(f.Text), 0o644); err != nil {
			return err
		}
	}
	for _, name := range links {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // the machine's program of the name
			return err
		}
		if err := os.Symlink(selfPath, name); err != nil {
			return err
		}
	}
	return nil
}
