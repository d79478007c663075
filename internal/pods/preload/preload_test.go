package preload

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestFind finds a file system by its images and by containerd's program.
func TestFind(t *testing.T) {
	c := newCache(t)
	images := Images{"docker.io/a:1": "sha256:1", "docker.io/b:1": "sha256:2"}
	if _, err := c.Find(images); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("without a file: %v", err)
	}
	key, err := c.key(images)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(c.Dir, key), "")
	if file, err := c.Find(images); err != nil || filepath.Base(file) != key {
		t.Errorf("%s, %v", file, err)
	}
	for name, other := range map[string]Images{
		"another digest": {"docker.io/a:1": "sha256:1", "docker.io/b:1": "sha256:3"}, "an image less": {"docker.io/a:1": "sha256:1"},
	} {
		if _, err := c.Find(other); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(t, c.Containerd, "another version")
	if _, err := c.Find(images); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another containerd: %v", err)
	}
}

// TestBuildFails reports why an archive cannot be written, and leaves nothing behind.
func TestBuildFails(t *testing.T) {
	c := newCache(t)
	write(t, c.App, "#!/bin/sh\ncat <&3 >/dev/null\nexit 0\n")
	broken := errors.New("the store is damaged")
	if err := c.Build(t.Context(), Images{"a:1": "sha256:1"}, func(context.Context, io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	left, err := os.ReadDir(c.Dir)
	if err != nil || len(left) != 1 || left[0].Name() != "lock" {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestBuildWithoutSpace builds nothing on a disk that is nearly full.
func TestBuildWithoutSpace(t *testing.T) {
	kerneltest.NeedRoot(t)
	c := newCache(t)
	if err := unix.Mount("tmpfs", c.Dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(c.Dir, 0); err != nil {
			t.Error(err)
		}
	})
	err := c.Build(t.Context(), Images{"a:1": "sha256:1"}, func(context.Context, io.Writer) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "1 MiB free, and a file system of images needs 2048") {
		t.Errorf("%v", err)
	}
}

// TestRemoveOld keeps the file systems used last.
func TestRemoveOld(t *testing.T) {
	c := newCache(t)
	for i, name := range []string{"preload-d", "preload-a", "preload-c", "preload-b", "other"} {
		file := filepath.Join(c.Dir, name)
		write(t, file, "")
		used := time.Unix(int64(1000-i), 0)
		if err := os.Chtimes(file, used, used); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.removeOld(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"preload-d": true, "preload-a": true, "preload-c": true, "preload-b": false, "other": true} {
		if _, err := os.Lstat(filepath.Join(c.Dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPrepare makes a node's containerd root from a file system, once, and never over what containerd has of its own.
func TestPrepare(t *testing.T) {
	disk, dir := t.TempDir(), filepath.Join(t.TempDir(), "containerd")
	write(t, filepath.Join(disk, root, imagesDB), "images")
	write(t, filepath.Join(disk, root, snapshotsDB), "snapshots")
	write(t, filepath.Join(disk, root, blobs, "abc"), "blob")
	write(t, filepath.Join(disk, root, snapshots, "7/fs/bin/sh"), "shell")
	if layers, err := Prepare(dir, ""); err != nil || len(layers) > 0 {
		t.Fatalf("without a file system: %v, %v", layers, err)
	}
	for range 2 { // the node starts again
		layers, err := Prepare(dir, disk)
		if err != nil || len(layers) != 1 || layers[0] != (Layer{filepath.Join(disk, root, snapshots, "7/fs"), snapshots + "/7/fs"}) {
			t.Fatalf("%+v, %v", layers, err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, imagesDB)); err != nil || string(text) != "images" {
			t.Errorf("databases: %q, %v", text, err)
		}
		if to, err := os.Readlink(filepath.Join(dir, blobs, "abc")); err != nil || to != NodeDir+"/containerd/"+blobs+"/abc" {
			t.Errorf("blobs: %q, %v", to, err)
		}
		if info, err := os.Stat(filepath.Join(dir, snapshots, "7/fs")); err != nil || !info.IsDir() {
			t.Errorf("layers: %v", err)
		}
	}
	if layers, err := Prepare(dir, ""); err != nil || len(layers) > 0 {
		t.Fatalf("the file system is gone: %v, %v", layers, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("containerd's root refers to a file system that is gone: %v", err)
	}
	write(t, filepath.Join(dir, imagesDB), "of its own")
	if layers, err := Prepare(dir, disk); err != nil || len(layers) > 0 {
		t.Errorf("a node that pulled its images: %v, %v", layers, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, imagesDB)); err != nil || string(text) != "of its own" {
		t.Errorf("a node that pulled its images: %q, %v", text, err)
	}
}

// TestPrepareLinks: links that a privileged pod made in containerd's root do not lead the machine's root out of it, and a layer that
// containerd has removed is not mounted again.
func TestPrepareLinks(t *testing.T) {
	disk, dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "containerd"), t.TempDir()
	write(t, filepath.Join(disk, root, imagesDB), "images")
	write(t, filepath.Join(disk, root, snapshotsDB), "snapshots")
	write(t, filepath.Join(disk, root, blobs, "abc"), "blob")
	write(t, filepath.Join(disk, root, snapshots, "7/fs/bin/sh"), "shell")
	for _, link := range []string{filepath.Dir(imagesDB), snapshotter, "io.containerd.content.v1.content"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
		if _, err := Prepare(dir, disk); err == nil {
			t.Errorf("%s is a link, and the root is made", link)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Fatalf("%s is a link: it led to %v, %v", link, left, err)
		}
	}
	if layers, err := Prepare(dir, disk); err != nil || len(layers) != 1 {
		t.Fatalf("after the links: %v, %v", layers, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, snapshots, "7")); err != nil {
		t.Fatal(err)
	}
	if layers, err := Prepare(dir, disk); err != nil || len(layers) > 0 {
		t.Errorf("a removed layer: %v, %v", layers, err)
	}
}

func newCache(t *testing.T) Cache {
	t.Helper()
	dir := t.TempDir()
	c := Cache{Dir: filepath.Join(dir, "preloads"), Containerd: filepath.Join(dir, "containerd"), Ctr: "ctr", App: filepath.Join(dir, "app")}
	write(t, c.Containerd, "a version")
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
