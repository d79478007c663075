package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/mounts"
	"packetwalk.dev/internal/base/program"
)

// A lab's light nodes and container groups have a file system of their own, in a file, whose size bounds what containers write: their
// writable layers, volumes, logs, files of the nodes.

// Disk is where it is mounted: a directory for each node.
func (d Dir) Disk() string { return filepath.Join(d.State(), "disk") }

// groupsDisk is the directory of container groups there; no node has such a name.
const groupsDisk = ".groups"

// nodeDisk is a light node's directory.
func (d Dir) nodeDisk(node string) string { return filepath.Join(d.Disk(), node) }

// The size of the file, which takes only what is written: half of what is free on its own disk, in bytes.
const (
	largestDisk  = 64 << 30
	smallestDisk = 64 << 20
)

// makeDisk makes the file system, or finds it mounted. An error is why there is none: the directory is one of the machine's disk then, and
// nothing bounds it.
func (d Dir) makeDisk(ctx context.Context) error {
	if err := os.MkdirAll(d.Disk(), 0o700); err != nil {
		return err
	}
	mounted, err := mounts.Own()
	if err != nil || slices.ContainsFunc(mounted, func(m mounts.Mount) bool { return m.Point == d.Disk() }) {
		return err
	}
	file := filepath.Join(d.State(), "disk.img")
	if err := makeSparse(file); err != nil {
		return err
	}
	// Of tables that are not made in advance, and without a journal: after a power cut nothing of a lab is left.
	_, err = program.Command{Path: "mkfs.ext4", Args: []string{"-q", "-F", "-m", "0", "-O", "^has_journal",
		"-E", "nodiscard,lazy_itable_init=1,root_owner=0:0", file}}.Output(ctx)
	if err == nil {
		_, err = program.Command{Path: "mount",
			Args: []string{"-t", "ext4", "-o", "loop,nodev,noatime,noinit_itable", file, d.Disk()}}.Output(ctx)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return os.Chmod(d.Disk(), 0o700)
}

// makeSparse makes a file without content.
func makeSparse(file string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(file), &st); err != nil {
		return err
	}
	size := min(int64(st.Bavail)*st.Bsize/2, largestDisk)
	if size < smallestDisk {
		return fmt.Errorf("the disk of %s is full", filepath.Dir(file))
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) { // of a lab process that was killed before it was mounted
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}
