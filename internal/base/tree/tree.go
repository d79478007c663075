// Package tree removes directories of what containers have written, which are as deep as these like.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"packetwalk.dev/internal/base/program"
)

// limit is for millions of files.
const limit = 2 * time.Minute

// Remove is [os.RemoveAll], which keeps a descriptor for each level, of which there may be more than this process can have: rm keeps a few,
// and follows no link. Its errors are not those of system calls.
func Remove(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return remove("", dir)
}

// RemoveIn is Remove of a file or directory, by its name, in a directory that is open, whoever may move it or make links on the way to it.
func RemoveIn(dir *os.File, name string) error {
	if strings.ContainsRune(name, '/') {
		return fmt.Errorf("remove %q: it is no name of a file", name)
	}
	return remove(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd()), name)
}

func remove(dir, name string) error {
	_, err := program.Command{Path: "rm", Args: []string{"-rf", "--", name}, Dir: dir, Limit: limit}.Output(context.Background())
	return err
}
