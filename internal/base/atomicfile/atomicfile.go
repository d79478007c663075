// Package atomicfile replaces files so that no reader, and no later process, ever finds a part of one. It imports nothing of ours.
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

// WriteIn is [Write] for a file of a folder that is open, whoever may write there or move it.
func WriteIn(dir *os.Root, name string, data []byte, mode fs.FileMode) (err error) {
	next := fmt.Sprintf(".%s.%d", name, rand.Uint64())
	f, err := dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // nobody else's file
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(next)
		}
	}()
	_, err = f.Write(data)
	// Sync costs nothing on a tmpfs; elsewhere it keeps a power cut from leaving an empty file under the name.
	if err = errors.Join(err, f.Chmod(mode.Perm()), f.Sync(), f.Close()); err != nil {
		return err
	}
	return dir.Rename(next, name)
}
