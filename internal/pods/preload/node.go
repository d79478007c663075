package preload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/removetree"
)

// Of a file system, and of what containerd has in its root (github.com/containerd/containerd, docs/ops.md).
const (
	root        = "containerd" // containerd's root
	imagesDB    = "io.containerd.metadata.v1.bolt/meta.db"
	snapshotter = "io.containerd.snapshotter.v1.overlayfs"
	snapshotsDB = snapshotter + "/metadata.db"
	snapshots   = snapshotter + "/snapshots"
	blobs       = "io.containerd.content.v1.content/blobs/sha256"
)

// NodeDir is where a node has the file system.
const NodeDir = "/var/lib/packetwalk-images"

// marker names the file in a node's containerd root that says that it was made from a file system.
const marker = ".packetwalk-images"

// A Layer is a directory that a node has to see at a path below containerd's root: an unpacked layer of the file system.
type Layer struct{ Source, Path string }

// maxDatabase bounds a database of containerd's, in bytes. Those of ten images have 100 kB.
const maxDatabase = 64 << 20

// Prepare makes a node's containerd root, a directory, from the file system that is mounted at disk, unless containerd has used it, and
// returns its layers. disk "" is none: then containerd starts without images, also where its root refers to a file system that is gone.
// Privileged pods write to the directory: no link in it leads out of it.
func Prepare(dir, disk string) ([]Layer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	to, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	made, err := exists(to, marker)
	switch {
	case err != nil:
		return nil, err
	case disk == "" && made:
		return nil, removetree.Remove(dir)
	case disk == "":
		return nil, nil
	case !made:
		if used, err := exists(to, imagesDB); err != nil || used {
			return nil, removeAfter(err, dir) // containerd has pulled what it has
		}
		if err := copyRoot(to, filepath.Join(disk, root)); err != nil {
			return nil, removeAfter(err, dir)
		}
	}
	return layers(to, disk)
}

// removeAfter removes a directory that cannot be used for the error, if that is one.
func removeAfter(err error, dir string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("preload images: %w", errors.Join(err, removetree.Remove(dir)))
}

func exists(in *os.Root, name string) (bool, error) {
	_, err := in.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// layers returns the layers of a file system that containerd has not removed.
func layers(in *os.Root, disk string) (all []Layer, err error) {
	names, err := os.ReadDir(filepath.Join(disk, root, snapshots))
	for _, n := range names {
		path := filepath.Join(snapshots, n.Name(), "fs")
		if _, err := in.Lstat(path); err == nil {
			all = append(all, Layer{Source: filepath.Join(disk, root, path), Path: path})
		}
	}
	return all, err
}

// copyRoot makes containerd's root of the file system's: copies of its databases, links to its blobs, and places for its layers.
func copyRoot(to *os.Root, from string) error {
	for _, name := range []string{imagesDB, snapshotsDB} {
		text, err := limitio.ReadFile(filepath.Join(from, name), maxDatabase)
		if err != nil {
			return err
		}
		if err := to.MkdirAll(filepath.Dir(name), 0o711); err != nil {
			return err
		}
		if err := to.WriteFile(name, text, 0o600); err != nil {
			return err
		}
	}
	if err := to.MkdirAll(blobs, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(filepath.Join(from, blobs))
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := to.Symlink(filepath.Join(NodeDir, root, blobs, n.Name()), filepath.Join(blobs, n.Name())); err != nil {
			return err
		}
	}
	if names, err = os.ReadDir(filepath.Join(from, snapshots)); err != nil {
		return err
	}
	for _, n := range names {
		for _, name := range []string{"fs", "work"} {
			if err := to.MkdirAll(filepath.Join(snapshots, n.Name(), name), 0o711); err != nil {
				return err
			}
		}
	}
	return to.WriteFile(marker, nil, 0o600)
}
