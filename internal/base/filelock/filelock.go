// Package filelock waits for locks of files (flock(2)), which go with the process that has them.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
)

// ErrHeld is that another has the lock.
var ErrHeld = errors.New("another process has the lock")

// pauseTime is between two looks at a lock that another has.
const pauseTime = 20 * time.Millisecond

// Try takes the lock of an open file, until it is closed; the error is ErrHeld where another has it.
func Try(f *os.File) error {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrHeld
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// Take waits for the lock of an open file until ctx ends, whose cause is the error then. waits, if it is not nil, is called once when
// another has the lock.
func Take(ctx context.Context, f *os.File, waits func()) error {
	for first := true; ; first = false {
		err := Try(f)
		if !errors.Is(err, ErrHeld) {
			return err
		}
		if first && waits != nil {
			waits()
		}
		if !pause.For(ctx, pauseTime) {
			return context.Cause(ctx)
		}
	}
}
