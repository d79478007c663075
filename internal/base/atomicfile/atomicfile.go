// Package atomicfile replaces files so that no reader, and no later process, ever finds a part of one.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Write makes the file at path hold data, with exactly these permission bits from the first moment on. What was there stays until all
// of data is on the disk; a link at path is replaced, not followed. Folders are not made.
func Write(path string, data []byte, mode fs.FileMode) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return WriteIn(dir, filepath.Base(path), data, mode)
}

// WriteIn does what [Write] does for a file of an open folder, whoever may write there or move it.
func WriteIn(dir *os.Root, name string, data []byte, mode fs.FileMode) error {
	f, err := create(dir, name, mode)
	if err != nil {
		return err
	}
	defer f.discard()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit()
}

// File is a file that is being written, beside the one that it will replace.
type File struct {
	f          *os.File
	dir        *os.Root
	name, next string
	mode       fs.FileMode
}

// Create begins a file that takes the place of the one at path when it is committed, as [Write] does it at once.
func Create(path string, mode fs.FileMode) (*File, error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	f, err := create(dir, filepath.Base(path), mode)
	if err != nil {
		_ = dir.Close()
	}
	return f, err
}

func create(dir *os.Root, name string, mode fs.FileMode) (*File, error) {
	next := fmt.Sprintf(".%s.%d", name, rand.Uint64())
	f, err := dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // a new file, never another process's
	if err != nil {
		return nil, err
	}
	return &File{f, dir, name, next, mode}, nil
}

// Write appends to the file.
func (f *File) Write(p []byte) (int, error) { return f.f.Write(p) }

// Commit puts the file in its place, when all of it is on the disk.
func (f *File) Commit() error {
	// Sync costs nothing on a tmpfs; elsewhere it keeps a power cut from leaving an empty file under the name.
	if err := errors.Join(f.f.Chmod(f.mode.Perm()), f.f.Sync(), f.f.Close()); err != nil {
		return err
	}
	err := f.dir.Rename(f.next, f.name)
	if err == nil {
		f.next = ""
	}
	return err
}

// Close takes away what was not committed. It must be called in any case.
func (f *File) Close() error {
	f.discard()
	return f.dir.Close()
}

func (f *File) discard() {
	if f.next != "" {
		_ = f.f.Close() // which a failed Commit may have done
		_ = f.dir.Remove(f.next)
	}
}
