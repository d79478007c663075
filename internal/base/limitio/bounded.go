// Package limitio reads what others made, up to a limit, so that no input fills the memory.
package limitio

import (
	"fmt"
	"io"
	"os"
)

// A TooLongError says that there is more than is read.
type TooLongError struct{ Limit int64 } // bytes

func (e *TooLongError) Error() string {
	if e.Limit >= 1<<20 {
		return fmt.Sprintf("it has more than %d MiB, which is the most that is read", e.Limit>>20)
	}
	return fmt.Sprintf("it has more than %d bytes, which is the most that is read", e.Limit)
}

// Read reads to the end; what is longer than limit bytes is a *TooLongError.
func Read(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, &TooLongError{limit}
	}
	return data, err
}

// ReadFile reads a file of at most limit bytes; its errors name the file.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := Read(f, limit)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}
