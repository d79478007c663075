// Package tree removes directories of what containers have written, which are as deep as these like.
package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
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
	_, err := program.Command{Path: "rm", Args: []string{"-rf", "--", dir}, Limit: limit}.Output(context.Background())
	return err
}
