package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"packetwalk.dev/internal/base/pause"
)

// MaxLog is the size in bytes from which a log is set aside, as NAME.1, the one before being lost. A log is looked at every 5 seconds.
const MaxLog = 4 << 20

// Aside returns the name of what was set aside of a log.
func Aside(path string) string { return path + ".1" }

// RemoveLog removes a log with what was set aside of it. What is missing is no error.
func RemoveLog(path string) error {
	var errs []error
	for _, p := range []string{path, Aside(path)} {
		if err := os.Remove(p); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// logPause is between two looks at a log's size.
const logPause = 5 * time.Second

// openLog opens a log for a process to append to.
func openLog(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// BoundLog keeps a log near MaxLog until ctx ends, while a process appends to it. Where nothing could be set aside, the log says so.
func BoundLog(ctx context.Context, path string) {
	for pause.For(ctx, logPause) {
		_ = trimLog(path) // a log that cannot be opened can hold no message either
	}
}

// trimLog sets a log aside that is too long. The process has it open, and goes on at its new end: O_APPEND. What it writes between the copy
// and the truncation is lost.
func trimLog(path string) error {
	log, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() <= MaxLog {
		return err
	}
	if _, err := log.Seek(-MaxLog, io.SeekEnd); err != nil { // it may have come to more than a log between two looks
		return err
	}
	lost := copyTo(Aside(path), log) // a disk that is full has no room for the copy
	if err := log.Truncate(0); err != nil || lost == nil {
		return err
	}
	_, err = fmt.Fprintf(log, "packetwalk: the log up to here is lost: %v\n", lost)
	return err
}

// copyTo replaces the file at path, so that readers of the old one are not disturbed.
func copyTo(path string, from io.Reader) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.LimitReader(from, MaxLog))
	if err := errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("set the log aside: %w", err)
	}
	return nil
}
