package layout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/loopmount"
	"packetwalk.dev/internal/base/mounts"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/isolation"
)

// A lab has a file system in a file, whose size bounds what its nodes and processes write: images, writable layers, volumes, logs.

// Disk returns where it is mounted.
func (d Dir) Disk() string { return filepath.Join(d.State(), "disk") }

// The size of the file, which takes only what is written: half of what is free on its own disk, in bytes.
const (
	largestDisk  = 64 << 30
	smallestDisk = 64 << 20
)

// MakeDisk makes the file system, or finds it mounted. An error is why there is none: the directory is one of the machine's disk then, and
// nothing bounds it.
func (d Dir) MakeDisk(ctx context.Context) error {
	if err := os.MkdirAll(d.Disk(), 0o700); err != nil {
		return err
	}
	if mounted, err := d.hasDisk(); err != nil || mounted {
		return err
	}
	file := filepath.Join(d.State(), "disk.img")
	size, err := diskSize(filepath.Dir(file))
	if err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) { // of a lab process that was killed before it was mounted
		return err
	}
	if err = loopmount.Create(ctx, file, size); err == nil {
		err = d.mountDisk(file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return os.Chmod(d.Disk(), 0o700)
}

// mountDisk mounts the file system where nothing is that it would hide: a lab that began without one goes on without.
func (d Dir) mountDisk(file string) error {
	there, err := os.ReadDir(d.Disk())
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return errors.New("the lab started without its file system; the next lab will have one")
	}
	return loopmount.Mount(file, d.Disk())
}

// maxLogs bounds the file system that logs have without the lab's disk. It is in memory.
const maxLogs = "64m"

// MakeLogs makes the lab's disk and, on it, the directory of logs. Why there is no disk is for bounds to say.
func (d Dir) MakeLogs(ctx context.Context) error {
	noDisk := d.MakeDisk(ctx)
	if err := os.MkdirAll(d.Logs(), 0o700); err != nil {
		return err
	}
	if noDisk != nil {
		if err := unix.Mount("tmpfs", d.Logs(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size="+maxLogs); err != nil {
			return fmt.Errorf("mount a file system for logs: %w", err)
		}
	}
	return os.Mkdir(filepath.Join(d.Logs(), containerGroup), 0o700)
}

// diskSize returns the size of a lab's file system whose file is in a directory, in bytes.
func diskSize(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	size := min(int64(st.Bavail)*st.Bsize/2, largestDisk)
	if size < smallestDisk {
		return 0, fmt.Errorf("the disk of %s is full", dir)
	}
	return size, nil
}

func (d Dir) hasDisk() (bool, error) {
	mounted, err := mounts.Own()
	return isPoint(mounted, d.Disk()), err
}

func isPoint(mounted []mounts.Mount, path string) bool {
	return slices.ContainsFunc(mounted, func(m mounts.Mount) bool { return m.Point == path })
}

// nodesDisk is the directory of nodes on the lab's disk.
const nodesDisk = ".nodes"

// Images returns the mount point of the images that nodes have from their start (see preload), "" where there are none.
func (d Dir) Images() (string, error) {
	mounted, err := mounts.Own()
	if err != nil || !isPoint(mounted, d.imagesPoint()) {
		return "", err
	}
	return d.imagesPoint(), nil
}

func (d Dir) imagesPoint() string { return filepath.Join(d.State(), "images") }

// MountImages mounts a file of images, unless one is mounted.
func (d Dir) MountImages(file string) error {
	if dir, err := d.Images(); err != nil || dir != "" {
		return err
	}
	if err := os.MkdirAll(d.imagesPoint(), 0o700); err != nil {
		return err
	}
	return loopmount.MountReadOnly(file, d.imagesPoint())
}

// MakeNodesDir makes the directory of nodes, on the lab's disk where there is one. Where nodes of this lab are already, they stay.
func (d Dir) MakeNodesDir() error {
	nodes := d.NodeState("")
	if err := os.MkdirAll(nodes, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(nodes)
	if err != nil || len(there) > 0 {
		return err
	}
	mounted, err := mounts.Own()
	if err != nil || isPoint(mounted, nodes) {
		return err
	}
	if !isPoint(mounted, d.Disk()) {
		if err := isolation.TryUpper(nodes); err != nil {
			return fmt.Errorf("nodes need a file system that overlayfs can write to: %w; mount one at %s, in a container as a volume", err,
				StateRoot)
		}
		return nil
	}
	onDisk := filepath.Join(d.Disk(), nodesDisk)
	if err := os.MkdirAll(onDisk, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(onDisk, nodes, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("put nodes on the lab's disk: %w", err)
	}
	return nil
}

// RemoveNodeState takes away what a real node, whose processes have ended, leaves of itself. What is not there is no error.
func (d Dir) RemoveNodeState(node string) error {
	return errors.Join(cgroup.Remove(d.Cgroup(node)), removetree.Remove(d.NodeState(node)))
}

// RemoveState takes away what all nodes leave.
func (d Dir) RemoveState() error {
	err := errors.Join(cgroup.Remove(d.Cgroup("")), UnmountBelow(d.State()))
	if err == nil {
		err = removetree.Remove(d.State())
	}
	_ = os.Remove(StateRoot) // only when this was the last lab
	return err
}

// UnmountBelow detaches what is still mounted below dir, the deepest first.
func UnmountBelow(dir string) error {
	all, err := mounts.Own()
	if err != nil {
		return err
	}
	var points []string
	for _, m := range all {
		if strings.HasPrefix(m.Point, dir+"/") {
			points = append(points, m.Point)
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points)))
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	return nil
}
