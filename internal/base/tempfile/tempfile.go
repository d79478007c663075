// Package tempfile makes temporary files that are removed when they are closed.
package tempfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// File is a temporary file. Close removes it.
type File struct {
	*os.File
	named bool
}

// Create makes a file in a directory for the user alone. Where the system allows it, the file has no name from then on, and is gone with
// the process, too. Windows does not allow it.
func Create(dir string) (*File, error) {
	f, err := os.CreateTemp(dir, ".packetwalk-*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &File{f, os.Remove(f.Name()) != nil}, nil
}

// Close closes the file and removes it.
func (f *File) Close() error {
	err := f.File.Close()
	if f.named {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Explain adds the remedy to an error of an operation in the directory for temporary files: where that is full or missing.
func Explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; make room in %s, or set TMPDIR to another directory that exists", err, os.TempDir())
	}
	return err
}
