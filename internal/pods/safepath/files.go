package safepath

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A File is one that a volume holds. Its name may have directories in it.
type File struct {
	Name string
	Data []byte
	Mode os.FileMode
}

// dataLink is the link that a volume's files are reached through, so that all of them change at once (upstream: volume/util.AtomicWriter).
const dataLink = "..data"

// WriteFiles makes a volume's directory hold just these files, all of them replaced in one rename; with a group they are its to read. What
// is right already is left alone. Whatever is in the directory already, nothing is written or removed outside of it.
func WriteFiles(dir string, files []File, group *int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	old, _ := root.Readlink(dataLink)
	if upToDate(root, old, files) {
		return nil
	}
	fresh := time.Now().UTC().Format("..2006_01_02_15_04_05.") + rand.Text()
	if err := writeAll(root, fresh, files, group); err != nil {
		return errors.Join(err, root.RemoveAll(fresh))
	}
	if err := relink(root, fresh, dataLink); err != nil {
		return err
	}
	return tidy(root, files, old)
}

func writeAll(root *os.Root, name string, files []File, group *int64) error {
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	fresh, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer fresh.Close()
	if err := fresh.Chmod(".", 0o755); err != nil { // whatever the umask
		return err
	}
	for _, f := range files {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("file name %q leaves the volume", f.Name)
		}
		if err := writeFile(fresh, f, group); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(root *os.Root, f File, group *int64) error {
	if err := root.MkdirAll(filepath.Dir(f.Name), 0o755); err != nil {
		return err
	}
	m := f.Mode
	if group != nil {
		m |= 0o040
	}
	if err := root.WriteFile(f.Name, f.Data, m); err != nil {
		return err
	}
	if group != nil {
		if err := root.Chown(f.Name, -1, int(*group)); err != nil {
			return err
		}
	}
	return root.Chmod(f.Name, m)
}

// relink makes name a link to target, atomically.
func relink(root *os.Root, target, name string) error {
	tmp := name + "_tmp"
	if err := root.RemoveAll(tmp); err != nil {
		return err
	}
	if err := root.Symlink(target, tmp); err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

// top returns the first name of a file's, which stands in the volume's directory.
func top(name string) string {
	first, _, _ := strings.Cut(filepath.Clean(name), "/")
	return first
}

// tidy makes the links that users see and removes those, and the old data, that are no longer wanted. Directories are mount points.
func tidy(root *os.Root, files []File, old string) error {
	for _, f := range files {
		name := top(f.Name)
		target := filepath.Join(dataLink, name)
		if is, err := root.Readlink(name); err == nil && is == target {
			continue
		}
		if info, err := root.Lstat(name); err == nil && info.IsDir() {
			continue
		}
		if err := relink(root, target, name); err != nil {
			return err
		}
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		wanted := slices.ContainsFunc(files, func(f File) bool { return top(f.Name) == e.Name() })
		if !e.IsDir() && !strings.HasPrefix(e.Name(), "..") && !wanted {
			_ = root.Remove(e.Name())
		}
	}
	if strings.HasPrefix(old, "..2") { // what this made, by its name
		_ = root.RemoveAll(filepath.Base(old))
	}
	return nil
}

// MakeMountPoint makes the directory at which another volume is mounted in one that is read-only in containers (upstream:
// pkg/volume/util/nested_volumes.go): dir is the volume's, at and other where the two are mounted. An other that is not below at needs
// none.
func MakeMountPoint(dir, at, other string) error {
	name, err := filepath.Rel(at, other)
	if err != nil || name == "." || !filepath.IsLocal(name) {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.MkdirAll(name, 0o755)
}

// upToDate reports whether the data directory holds just these files.
func upToDate(root *os.Root, data string, files []File) bool {
	entries, err := fs.ReadDir(root.FS(), dataLink)
	if err != nil || data != filepath.Base(data) {
		return false
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return false // rewriting is the simple answer
		}
	}
	for _, f := range files {
		b, err := root.ReadFile(filepath.Join(data, f.Name))
		if err != nil || !bytes.Equal(b, f.Data) {
			return false
		}
		if link, err := root.Readlink(f.Name); err != nil || link != filepath.Join(dataLink, f.Name) {
			return false
		}
	}
	return len(entries) == len(files)
}
