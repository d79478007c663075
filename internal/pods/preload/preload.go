package preload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/filelock"
	"packetwalk.dev/internal/base/loopmount"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/removetree"
)

// A Cache is the directory of the machine's file systems, for all labs. Only root can write to it.
type Cache struct {
	Dir string
	// Containerd and Ctr are upstream's programs, and App is packetwalk-app.
	Containerd, Ctr, App string
}

// Images are manifests' digests, "sha256:…", by the full names that containerd has for images.
type Images map[string]string

// buildTime bounds a build, which takes seconds on a quiet machine.
const buildTime = 15 * time.Minute

// diskSize is the size of a file system in bytes. Its file takes only what is written.
const diskSize = 16 << 30

// freeSpace is how much of the disk must be free for a build, in bytes: a file system of images takes a third of it.
const freeSpace = 2 << 30

// checkSpace returns an error if the disk has too little room for a build.
func (c Cache) checkSpace() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.Dir, &disk); err != nil {
		return fmt.Errorf("measure the disk of %s: %w", c.Dir, err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < freeSpace {
		return fmt.Errorf("the disk of %s has %d MiB free, and a file system of images needs %d", c.Dir, free>>20, freeSpace>>20)
	}
	return nil
}

// key identifies a file system by all that decides what is in it.
func (c Cache) key(images Images) (string, error) {
	program, err := filepath.EvalSymlinks(c.Containerd)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(program)
	if err != nil {
		return "", err
	}
	lines := []string{fmt.Sprintf("%s %d %d", program, info.Size(), info.ModTime().UnixNano())}
	for name, digest := range images {
		lines = append(lines, name+" "+digest)
	}
	slices.Sort(lines[1:])
	return fmt.Sprintf("preload-%.12x", sha256.Sum256([]byte(strings.Join(lines, "\n")))), nil
}

// Find returns the file of the file system with exactly these images, and notes its use. Where it is missing, the error wraps
// [fs.ErrNotExist].
func (c Cache) Find(images Images) (file string, err error) {
	key, err := c.key(images)
	if err != nil {
		return "", err
	}
	file = filepath.Join(c.Dir, key)
	now := time.Now()
	return file, os.Chtimes(file, now, now)
}

// Build makes the file system of these images, unless it exists, from the archive that write writes (see images.ArchiveWriter). Of the
// others it keeps those used last. Another process that builds one is waited for.
func (c Cache) Build(ctx context.Context, images Images, write func(context.Context, io.Writer) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildTime, fmt.Errorf("not done within %v", buildTime))
	defer cancel()
	lock, err := os.OpenFile(filepath.Join(c.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := filelock.Take(ctx, lock, nil); err != nil {
		return fmt.Errorf("wait for the lock of %s: %w", c.Dir, err)
	}
	file, err := c.Find(images)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := c.checkSpace(); err != nil {
		return err
	}
	work := filepath.Join(c.Dir, "unfinished")
	if err := removetree.Remove(work); err != nil { // left by a process that was killed
		return err
	}
	defer func() { _ = removetree.Remove(work) }()
	disk := filepath.Join(work, "disk")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	if err := loopmount.Create(ctx, disk, diskSize); err != nil {
		return err
	}
	if err := c.fill(ctx, work, write); err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	return errors.Join(os.Rename(disk, file), c.removeOld())
}

// fill has containerd import an archive into the file system in work. All that it mounts and runs ends with this call or this process.
func (c Cache) fill(ctx context.Context, work string, write func(context.Context, io.Writer) error) error {
	archive, to, err := os.Pipe()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	written := make(chan error, 1)
	go func() { written <- errors.Join(write(ctx, to), to.Close()) }()
	_, err = program.Command{
		Path: c.App, Args: []string{stage, work, c.Containerd, c.Ctr}, Env: []string{"PATH=" + program.Path}, Files: []*os.File{archive},
		Limit: buildTime,
	}.Output(ctx)
	cancel()
	archive.Close() // so that write ends
	if e := <-written; e != nil && !errors.Is(e, unix.EPIPE) && !errors.Is(e, context.Canceled) {
		return e
	}
	return err
}

// kept is how many file systems stay: labs of other programs or images, in turn with those of the current one, find theirs again.
const kept = 3

// removeOld removes all but the last used file systems. A lab that has mounted one of them keeps it. The caller holds the lock.
func (c Cache) removeOld() error {
	files, err := filepath.Glob(filepath.Join(c.Dir, "preload-*"))
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	for _, file := range files {
		if info, err := os.Lstat(file); err == nil {
			used[file] = info.ModTime()
		}
	}
	slices.SortFunc(files, func(a, b string) int { return used[b].Compare(used[a]) })
	for _, file := range files[min(kept, len(files)):] {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}
