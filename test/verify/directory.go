package verify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
)

// runsDirectory holds a directory for every run, and in it the mounts of its namespaces.
const runsDirectory = "/run/packetwalk-verify"

// Directory is where one run mounts its namespaces. A lock that the run holds reports whether it still lives.
type Directory struct {
	path string
	lock *os.File
}

// OpenDirectory makes a directory for this run, and takes away those that dead runs left.
func OpenDirectory() (*Directory, error) {
	if err := os.MkdirAll(runsDirectory, 0o700); err != nil {
		return nil, err
	}
	runs, err := lockRuns()
	if err != nil {
		return nil, err
	}
	defer runs.Close()
	removeDead()
	path, err := os.MkdirTemp(runsDirectory, "run")
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Directory{path: path, lock: lock}, nil
}

// Close unmounts every namespace of the run, whatever state it is in.
func (d *Directory) Close() error {
	runs, err := lockRuns()
	if err != nil {
		return err
	}
	defer runs.Close()
	return errors.Join(removeAll(d.path), d.lock.Close())
}

// lockRuns keeps other runs from beginning and ending until the file is closed. A directory has no lock of its run just then, and must not be
// taken for a dead run's.
func lockRuns() (*os.File, error) {
	f, err := os.Open(runsDirectory)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", runsDirectory, err)
	}
	return f, nil
}

func lockFile(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func removeDead() {
	dirs, _ := filepath.Glob(runsDirectory + "/run*")
	for _, dir := range dirs {
		if lock, err := lockFile(dir); err == nil {
			_ = removeAll(dir)
			lock.Close()
		}
	}
}

func removeAll(dir string) error {
	mounts, err := netns.Mounted(dir)
	for path := range mounts {
		err = errors.Join(err, netns.Remove(path))
	}
	return errors.Join(err, os.RemoveAll(dir))
}
