package distribution

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/filelock"
	"packetwalk.dev/internal/base/mounts"
)

// Dir is the directory of layers that all labs share. It is root's alone: an old layer may have an old program that is setuid.
const Dir = "/var/cache/packetwalk/distribution"

// A Store makes the layer of the machine's packages and keeps it. It is safe for concurrent use, also by several processes.
type Store struct {
	// Dir is where layers are kept, and Machine the root directory whose packages they are of; "" for [Dir] and "/".
	Dir, Machine string

	mu      sync.Mutex // of the one who asks
	layer   string
	missing []string
}

// patience is how long a layer may take, with the wait for another process that makes one.
const patience = 3 * time.Minute

// The names in a layer's directory, and of the lock beside the layers.
const (
	rootDir     = "root"    // what overlayfs has as its lowest layer
	missingFile = "missing" // a line for each
	lockFile    = "lock"
	unfinished  = "making-" // begins the name of a directory that is none yet
)

// Layer gives the directory with the distribution's files, absolute; never change it. It is made where it is not there yet, which takes a
// second or so; later calls, of any process, find it as long as the packages are the same. missing tells what of the list it does not have:
// packages that are not installed, by name, and files that the machine does not have as the package brought them, by absolute path. An
// error is that of a machine without dpkg or bash, of a full disk, or that ctx has ended.
func (s *Store) Layer(ctx context.Context) (dir string, missing []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := os.Lstat(s.layer); s.layer != "" && err == nil {
		return s.layer, s.missing, nil
	}
	if s.Dir == "" {
		s.Dir = Dir
	}
	if s.Machine == "" {
		s.Machine = "/"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took longer than %v", patience))
	defer cancel()
	if err := s.find(ctx); err != nil {
		return "", nil, fmt.Errorf("assemble containers' programs from this machine's packages: %w", err)
	}
	return s.layer, s.missing, nil
}

// Root is [Store.Layer] for who does not ask what is missing.
func (s *Store) Root(ctx context.Context) (dir string, err error) {
	dir, _, err = s.Layer(ctx)
	return dir, err
}

func (s *Store) find(ctx context.Context) error {
	all, err := installed(ctx, s.Machine)
	if err != nil {
		return err
	}
	chosen, missing := closure(all, wanted)
	for _, name := range required {
		if slices.Contains(missing, name) {
			return fmt.Errorf("the package %s is not installed: apt-get install %s", name, name)
		}
	}
	dir, err := openOwn(s.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if s.Dir, err = filepath.EvalSymlinks(s.Dir); err != nil {
		return err
	}
	name := key(chosen)
	if !s.take(dir, name, missing) {
		if err := s.make(ctx, dir, name, chosen); err != nil {
			return err
		}
		if !s.take(dir, name, missing) {
			return fmt.Errorf("the layer %s is gone again", name)
		}
	}
	return nil
}

// openOwn opens a directory that nobody else may write to, and makes it where it is missing.
func openOwn(name string) (*os.Root, error) {
	if err := os.MkdirAll(name, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
			err = fmt.Errorf("%s is not this user's alone; remove it", name)
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// take takes a layer that is there, and notes that it is used.
func (s *Store) take(dir *os.Root, name string, packages []string) bool {
	files, err := dir.ReadFile(name + "/" + missingFile)
	if err != nil {
		return false
	}
	_ = dir.Chtimes(name, time.Time{}, time.Now()) // tells removeOld only
	s.layer, s.missing = filepath.Join(s.Dir, name, rootDir), slices.Concat(packages, strings.Fields(string(files)))
	return true
}

// make makes a layer, if no other process has when it is this one's turn.
func (s *Store) make(ctx context.Context, dir *os.Root, name string, chosen []debian) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := dir.Lstat(name); err == nil {
		return nil
	}
	removeOld(dir)
	machine, err := os.OpenRoot(s.Machine)
	if err != nil {
		return err
	}
	defer machine.Close()
	next := unfinished + name
	err = build(ctx, machine, dir, next, chosen)
	if err == nil {
		err = dir.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, dir.RemoveAll(next))
	}
	return nil
}

func build(ctx context.Context, machine, dir *os.Root, next string, chosen []debian) error {
	if err := dir.Mkdir(next, 0o755); err != nil {
		return err
	}
	if err := errors.Join(dir.Mkdir(next+"/"+rootDir, 0o755), dir.Chmod(next+"/"+rootDir, 0o755)); err != nil { // whatever the umask
		return err
	}
	layer, err := dir.OpenRoot(next + "/" + rootDir)
	if err != nil {
		return err
	}
	defer layer.Close()
	missing, err := assemble(ctx, machine, layer, chosen)
	if err != nil {
		return err
	}
	f, err := dir.Create(next + "/" + missingFile)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(missing, "\n") + "\n")
	// After a power cut a layer is there whole or not at all.
	return errors.Join(err, unix.Syncfs(int(f.Fd())), f.Close())
}

// lock waits until no other process makes a layer.
func lock(ctx context.Context, dir *os.Root) (unlock func(), err error) {
	f, err := dir.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Take(ctx, f, nil); err != nil {
		f.Close()
		return nil, fmt.Errorf("another process makes it: %w", err)
	}
	return func() { f.Close() }, nil
}

// unused is how long after its last use a layer stays that no container has.
const unused = 24 * time.Hour

// removeOld removes what processes that died left half made, and layers of packages of yore. What cannot be removed stays: it only takes
// room.
func removeOld(dir *os.Root) {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	busy, err := mounts.Named(context.Background(), names)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() {
			continue
		}
		old := time.Since(info.ModTime()) > unused && !slices.Contains(busy, e.Name())
		name := e.Name()
		if old { // whoever looks for it now finds all of it or nothing
			name = unfinished + e.Name()
			if dir.Rename(e.Name(), name) != nil {
				continue
			}
		}
		if strings.HasPrefix(name, unfinished) {
			_ = dir.RemoveAll(name)
		}
	}
}
