package layout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"packetwalk.dev/internal/base/pause"
)

// LockFile returns the pid file that the lab process locks.
func (d Dir) LockFile() string { return d.Path("lab.pid") }

// Process returns the pid of the lab process, or 0 when none runs. The pid file is locked for as long as the process that wrote
// it lives, so a stale or reused pid is never taken for the lab's.
func (d Dir) Process() int {
	f, err := os.Open(d.LockFile())
	if err != nil {
		return 0
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return 0
	}
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil {
		return 0
	}
	return pid
}

// errRunning says that another lab process holds the lab.
var errRunning = errors.New("the lab is already running")

// Claim locks the lab for this process until it ends. The lock belongs to the open file (fcntl_locking(2), F_OFD_SETLK), so
// that reading the file elsewhere in this process does not release it.
func (d Dir) Claim() error {
	f, err := os.OpenFile(d.LockFile(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return errRunning
		}
		return fmt.Errorf("lock %s: %w", d.LockFile(), err)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	claimed = append(claimed, f)
	return err
}

// claimed keeps the lock files open for the life of the process.
var claimed []*os.File

// Acquire makes the lab's directory and holds a lock on it. A directory that was removed while this waited is made anew.
func (d Dir) Acquire(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longestTurn, fmt.Errorf("another command works on lab %s, for %v", d.Name(), longestTurn))
	defer cancel()
	for {
		if err := os.MkdirAll(string(d), 0o700); err != nil {
			return nil, err
		}
		dir, err := os.Open(string(d))
		if err == nil {
			if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil && isStill(dir, string(d)) {
				return func() { dir.Close() }, nil
			}
			dir.Close()
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", d, err)
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
}

// IsLocked reports whether a command that makes, changes or removes the lab is running.
func (d Dir) IsLocked() bool {
	dir, err := os.Open(string(d))
	if err != nil {
		return false
	}
	defer dir.Close()
	return errors.Is(unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// isStill reports whether the path leads to the open directory.
func isStill(dir *os.File, path string) bool {
	opened, err := dir.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(opened, there)
}

// longestTurn is how long to wait for another command that works on the same lab.
const longestTurn = 15 * time.Minute
