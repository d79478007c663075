package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/base/program"
)

// part is some of the files of the archive that scripts/base makes.
type part string

const (
	small part = "small" // of images of one program: a shell, and what a request, a ping and a look at the network take
	whole part = "whole" // of nodes, and of images that are a distribution
)

// archive finds what scripts/base made, where the link leads. The directory's name tells archives of other content apart.
func (b *BuiltIn) archive() (dir string, err error) {
	dir, err = filepath.EvalSymlinks(b.Base)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there are no files of Debian for nodes and images in %s; 'make controlplane' makes them", b.Base)
	}
	return dir, err
}

// unpack makes a directory of a part's files, with their owners, modes and capabilities: 2 seconds for all of them.
func unpack(ctx context.Context, archive string, p part, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	args := []string{"--extract", "--file", filepath.Join(archive, "whole.tar"), "--directory", dir, "--numeric-owner", "--xattrs",
		"--xattrs-include=security.capability"}
	if p == small {
		args = append(args, "--no-recursion", "--files-from", filepath.Join(archive, "small.list"))
	}
	_, err := program.Command{Path: "tar", Args: args, Limit: longestBuild}.Output(ctx)
	return errors.Join(err, os.Chmod(dir, 0o755)) // whatever the umask
}
