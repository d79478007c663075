package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/program"
)

// A Recipe says what an image is built of.
type Recipe struct {
	Name   string // of the image
	Source string // a program, or a directory with a Go main package
	// What containers get is the program, as entrypoint unless there is another, with Env beside a PATH.
	Entrypoint, Env  []string
	User, WorkingDir string
	Add              []Addition
}

// An Addition is a directory whose files come into an image.
type Addition struct {
	Dir  string
	Path string // where in the image, absolute
}

// defaultPath is where containers look for programs.
const defaultPath = "PATH=" + program.Path

// certificates is where programs look for the authorities that they trust: Debian's place, which Go, curl and OpenSSL know; and where the
// distributions have them.
const certificates = "etc/ssl/certs/ca-certificates.crt"

var certificateFiles = []string{"/" + certificates, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// accounts are the users and groups of every image that is built.
var accounts = map[string]string{
	"etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
	"etc/group":  "root:x:0:\nnogroup:x:65534:\nnonroot:x:65532:\n",
}

// Build makes an image of one layer, with a static program, users and groups, /tmp, the authorities that this machine trusts, and what is
// added. The same files make the same image, with the same digest. Links among what is added are taken over as links; nothing is read
// through them.
func (s *Store) Build(ctx context.Context, r Recipe) (Image, error) {
	named, err := normalize(r.Name)
	if err == nil && strings.Contains(named, "@") {
		err = fmt.Errorf("%q has a digest, which is the image's to give: write a name, and a tag if you like", r.Name)
	}
	if err := errors.Join(err, checkFree(named)); err != nil {
		return Image{}, err
	}
	program, name, err := openProgram(ctx, r.Source)
	if err != nil {
		return Image{}, err
	}
	defer program.Close()
	img, err := s.make(ctx, named, func(l *loader) (loadedImage, error) { return l.build(ctx, r, program, name) })
	if err != nil {
		return Image{}, fmt.Errorf("build %s: %w", r.Source, err)
	}
	return img, nil
}

func (l *loader) build(ctx context.Context, r Recipe, program *os.File, name string) (loadedImage, error) {
	layer, err := l.pipe(func(to io.Writer) error { return writeLayer(ctx, to, r.Add, program, name) })
	if err != nil {
		return loadedImage{}, err
	}
	if len(r.Entrypoint) == 0 {
		r.Entrypoint = []string{"/" + name}
	}
	config := v1.ConfigFile{OS: here.OS, Architecture: here.Architecture, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.digest}},
		Config: v1.Config{Entrypoint: r.Entrypoint, Env: append([]string{defaultPath}, r.Env...), User: r.User, WorkingDir: r.WorkingDir}}
	return l.describe(config, []entry{{MediaType: types.OCIUncompressedLayer, Size: layer.size, Digest: layer.digest}})
}

// spillJSON writes a manifest or a configuration to the stage.
func (l *loader) spillJSON(kind types.MediaType, v any) (entry, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return entry{}, err
	}
	b, err := l.spill(bytes.NewReader(text))
	return entry{MediaType: kind, Size: b.size, Digest: b.digest}, err
}

// A layerWriter writes an archive whose times and owners are always the same.
type layerWriter struct {
	*tar.Writer
	ctx context.Context
}

// epoch is every file's time.
var epoch = time.Unix(0, 0)

func (w layerWriter) header(kind byte, name string, mode, size int64, target string) error {
	return w.WriteHeader(&tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: size, Linkname: target, ModTime: epoch,
		Format: tar.FormatPAX})
}

func (w layerWriter) file(name string, mode int64, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.header(tar.TypeReg, name, mode, info.Size(), ""); err != nil {
		return err
	}
	_, err = io.Copy(w, &guardedReader{ctx: w.ctx, r: f, limit: info.Size()})
	return err
}

func (w layerWriter) text(name, text string, mode int64) error {
	if err := w.header(tar.TypeReg, name, mode, int64(len(text)), ""); err != nil {
		return err
	}
	_, err := io.WriteString(w, text)
	return err
}

func writeLayer(ctx context.Context, to io.Writer, add []Addition, program *os.File, name string) error {
	w := layerWriter{tar.NewWriter(to), ctx}
	var err error
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/"} {
		err = errors.Join(err, w.header(tar.TypeDir, dir, 0o755, 0, ""))
	}
	err = errors.Join(err, w.header(tar.TypeDir, "tmp/", 0o1777, 0, ""))
	for _, name := range []string{"etc/group", "etc/passwd"} {
		err = errors.Join(err, w.text(name, accounts[name], 0o644))
	}
	for _, file := range certificateFiles {
		text, e := limitio.ReadFile(file, 16<<20)
		if e == nil {
			err = errors.Join(err, w.text(certificates, string(text), 0o644))
			break
		}
	}
	if err := errors.Join(err, w.file(name, 0o755, program)); err != nil {
		return err
	}
	for _, a := range add {
		if err := w.add(a); err != nil {
			return fmt.Errorf("add %s: %w", a.Dir, err)
		}
	}
	return w.Close()
}

// add writes the files of a directory, sorted by their names.
func (w layerWriter) add(a Addition) error {
	root, err := os.OpenRoot(a.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := strings.TrimPrefix(path.Join("/", a.Path, name), "/")
		if strings.Contains("/"+at, "/"+whiteout) {
			return fmt.Errorf("%s would remove a file, and be none: no name in an image begins with %s", at, whiteout)
		}
		switch d.Type() {
		case fs.ModeDir:
			if at == "" {
				return nil
			}
			return w.header(tar.TypeDir, at+"/", 0o755, 0, "")
		case fs.ModeSymlink:
			target, err := root.Readlink(name)
			if err != nil {
				return err
			}
			return w.header(tar.TypeSymlink, at, 0o777, 0, target)
		case 0:
			return w.copy(root, name, at)
		}
		return fmt.Errorf("%s is no file, folder or link", name)
	})
}

// copy writes a file that may have become something else meanwhile.
func (w layerWriter) copy(root *os.Root, name, at string) error {
	f, err := openRegular(root, name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return w.file(at, mode, f)
}

// openRegular opens a file, and nothing that leads elsewhere or is waited for.
func openRegular(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openProgram opens the program that an image is of, and gives its name; one that has to be made first is made.
func openProgram(ctx context.Context, source string) (*os.File, string, error) {
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%s: no such file; give a static program, or a folder with a Go main package", source)
	}
	if err != nil {
		return nil, "", err
	}
	var f *os.File
	var name string
	switch {
	case info.IsDir():
		f, name, err = compile(ctx, source)
	case info.Mode().IsRegular():
		name = filepath.Base(source)
		f, err = os.Open(source)
	default:
		err = fmt.Errorf("%s is neither a program nor a folder", source)
	}
	if err != nil {
		return nil, "", err
	}
	if err := checkProgram(f); err != nil {
		f.Close()
		return nil, "", fmt.Errorf("%s %w", source, err)
	}
	if slices.Contains([]string{"etc", "tmp", "dev", "proc", "sys"}, name) || strings.HasPrefix(name, whiteout) {
		f.Close()
		return nil, "", fmt.Errorf("a program cannot be called %s in an image: rename it", name)
	}
	return f, name, nil
}
