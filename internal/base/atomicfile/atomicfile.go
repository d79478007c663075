// Package atomicfile replaces files so that no reader, and no later process, ever finds a part of one. It imports nothing of ours.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes the file at path hold data, with exactly these permission bits from the first moment on. What was there stays until all
// of data is on the disk; a link at path is replaced, not followed. Folders are not made.
func Write(path string, data []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600, O_EXCL: nobody else's file
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	// Sync costs nothing on a tmpfs; elsewhere it keeps a power cut from leaving an empty file under the name.
	if err = errors.Join(err, f.Chmod(mode.Perm()), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
