package nodeimage

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/pods/distribution"
)

// machine is what containers of a lab have of this machine's packages, read into memory.
func machine(ctx context.Context) (Tree, error) {
	s, err := distribution.Select(ctx, "/", distribution.Whole)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "packetwalk-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	top := filepath.Join(dir, "files")
	if _, err := s.Assemble(ctx, top); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readTree(root)
}

// readTree reads a directory; modes are those of files that everybody may read.
func readTree(root *os.Root) (Tree, error) {
	t := Tree{}
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
			return err
		case d.Type() == fs.ModeSymlink:
			link, err := root.Readlink(name)
			t[name] = File{Mode: 0o777, Link: link}
			return err
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no file, folder or link", name)
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		data, err := bounded.Read(f, maxFile)
		t[name] = File{Mode: mode, Data: data}
		return err
	})
	return t, err
}

func trimSlash(name string) string { return strings.TrimPrefix(name, "/") }
