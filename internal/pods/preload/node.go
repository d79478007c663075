package preload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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

// Prepare makes a node's containerd root, a directory, from the file system that is mounted at disk, unless containerd has used it, and
// returns its layers. disk "" is none: then containerd starts without images, also where its root refers to a file system that is gone.
func Prepare(dir, disk string) ([]Layer, error) {
	_, err := os.Lstat(filepath.Join(dir, marker))
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if made && disk == "" {
		return nil, removetree.Remove(dir)
	}
	if disk == "" {
		return nil, nil
	}
	if !made {
		if _, err := os.Lstat(filepath.Join(dir, imagesDB)); err == nil {
			return nil, nil // containerd has pulled what it has
		}
		if err := copyRoot(dir, filepath.Join(disk, root)); err != nil {
			return nil, fmt.Errorf("preload images: %w", errors.Join(err, removetree.Remove(dir)))
		}
	}
	return layers(disk)
}

// layers returns the layers of a file system.
func layers(disk string) (all []Layer, err error) {
	names, err := os.ReadDir(filepath.Join(disk, root, snapshots))
	for _, n := range names {
		path := filepath.Join(snapshots, n.Name(), "fs")
		all = append(all, Layer{Source: filepath.Join(disk, root, path), Path: path})
	}
	return all, err
}

// copyRoot makes containerd's root of the file system's: copies of its databases, links to its blobs, and places for its layers.
func copyRoot(dir, from string) error {
	for _, name := range []string{imagesDB, snapshotsDB} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o711); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, blobs), 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(filepath.Join(from, blobs))
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := os.Symlink(filepath.Join(NodeDir, root, blobs, n.Name()), filepath.Join(dir, blobs, n.Name())); err != nil {
			return err
		}
	}
	if names, err = os.ReadDir(filepath.Join(from, snapshots)); err != nil {
		return err
	}
	for _, n := range names {
		if err := os.MkdirAll(filepath.Join(dir, snapshots, n.Name(), "fs"), 0o700); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(dir, snapshots, n.Name(), "work"), 0o711); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, marker), nil, 0o600)
}
