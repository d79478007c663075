package nodeimage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/pods/deb"
	"packetwalk.dev/internal/pods/distribution"
)

// A Tree is files by their paths, without the first slash. Directories above them need not be in it.
type Tree map[string]File

// A File is a file, a symbolic link, or a directory by its mode. All are root's.
type File struct {
	Mode    fs.FileMode // permission bits, and fs.ModeDir and fs.ModeSticky
	Link    string      // where a symbolic link leads
	Data    []byte
	Source  string // the file on this machine that has the content, in place of Data
	Package string // the Debian package that it came in, "" for none
}

// Add takes over the files of a package, to where they are when /bin and its like are links into /usr. Modes are those of files that
// everybody may read, and no more: nothing is setuid. Its record becomes a file, too.
func (t Tree) Add(p *deb.Package) error {
	t[records+p.Name] = File{Mode: 0o644, Data: []byte(p.Control), Package: p.Name}
	for name, f := range p.Files {
		mode := fs.FileMode(0o644)
		if f.Mode&0o111 != 0 {
			mode = 0o755
		}
		to := strings.TrimPrefix(distribution.InLayer("/"+name), "/")
		file := File{Mode: mode, Data: f.Data, Package: p.Name}
		if f.Link != "" {
			file = File{Mode: 0o777, Link: distribution.MovedLink(name, f.Link), Package: p.Name}
		}
		if other, ok := t[to]; ok && (other.Link != file.Link || !bytes.Equal(other.Data, file.Data)) {
			return fmt.Errorf("/%s is in two packages, %s and %s", to, other.Package, p.Name)
		}
		t[to] = file
	}
	return nil
}

// records is where scanners look for packages in an image without dpkg, a file for each, as in Google's distroless images.
const records = "var/lib/dpkg/status.d/"

// open reads a file's content.
func (f File) open() (io.ReadCloser, int64, error) {
	if f.Source == "" {
		return io.NopCloser(bytes.NewReader(f.Data)), int64(len(f.Data)), nil
	}
	file, err := os.Open(f.Source)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", f.Source)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// epoch is the time of all files.
var epoch = time.Unix(0, 0)

// whiteout begins the names by which a layer removes files of those below (OCI image specification, layer.md).
const whiteout = ".wh."

// write writes the tree as a layer's archive: the same tree makes the same octets.
func (t Tree) write(ctx context.Context, to io.Writer) error {
	w := tar.NewWriter(to)
	dirs := map[string]bool{".": true}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		f := t[name]
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !fs.ValidPath(name) || name == "." || strings.Contains("/"+name, "/"+whiteout) {
			return fmt.Errorf("%q is no name of a file in an image", name)
		}
		if err := t.writeDirs(w, dirs, path.Dir(name)); err != nil {
			return err
		}
		if err := f.write(w, name); err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
		dirs[name] = f.Mode.IsDir()
	}
	return w.Close()
}

// writeDirs writes the directories above a file that are not in the tree. One that is a link there would lead elsewhere.
func (t Tree) writeDirs(w *tar.Writer, dirs map[string]bool, name string) error {
	if is, ok := dirs[name]; ok {
		if !is {
			return fmt.Errorf("/%s is not a folder, and yet has files", name)
		}
		return nil
	}
	if err := t.writeDirs(w, dirs, path.Dir(name)); err != nil {
		return err
	}
	dirs[name] = true
	return File{Mode: fs.ModeDir | 0o755}.write(w, name)
}

func (f File) write(w *tar.Writer, name string) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(f.Mode.Perm()), ModTime: epoch, Format: tar.FormatPAX}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return w.WriteHeader(h)
	case f.Link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		return w.WriteHeader(h)
	}
	content, size, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close()
	h.Size = size
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w, io.LimitReader(content, size))
	if err == nil && n != size {
		err = errors.New("it became shorter while it was read")
	}
	return err
}
