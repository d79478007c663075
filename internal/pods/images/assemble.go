package images

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

const (
	whiteout   = ".wh."          // before the name of what a layer removes (OCI image specification, layer.md)
	attributes = "SCHILY.xattr." // before an extended attribute's name (PAX)
)

// An Assembly says what an image is made of that is ours.
type Assembly struct {
	Name string
	// From is the name of an image of the store, whose layers are the lowest; "" for none.
	From                 string
	Layers               []Layer // above those, the lowest first
	Entrypoint, Cmd, Env []string
	User                 string
	Ports                []int // of TCP
}

// A Layer holds the files of a directory with their owners, modes and capabilities, or Files, which are root's. All times are the epoch.
type Layer struct {
	Dir   string
	Files []File
}

// A File is a copy of the file at Source, mode 0755 where it has no other; or a symbolic link to Link; or a directory, where Path ends with
// a slash; or else Text, mode 0644.
type File struct {
	Path               string // absolute; directories above it that are not in the layer yet have the mode 0755
	Source, Link, Text string
	Mode               int64 // as tar has it: 04755 with setuid
}

// Assemble makes an image. The same files make the same image, with the same digest; layers that the store has are not made again in it.
func (s *Store) Assemble(ctx context.Context, a Assembly) (Image, error) {
	named, err := normalize(a.Name)
	if err != nil {
		return Image{}, err
	}
	img, err := s.make(ctx, named, func(l *loader) (loadedImage, error) { return l.assemble(ctx, a) })
	if err != nil {
		return Image{}, fmt.Errorf("assemble %s: %w", a.Name, err)
	}
	return img, nil
}

// make has an image made in a stage, and names it.
func (s *Store) make(ctx context.Context, named string, in func(*loader) (loadedImage, error)) (Image, error) {
	st, err := s.newStage(ctx, "make-"+strconv.FormatUint(rand.Uint64(), 36))
	if err != nil {
		return Image{}, err
	}
	l := &loader{store: s, stage: st, left: s.most.image, limit: s.most.image, manifests: s.most.manifests}
	img, err := in(l)
	if err == nil {
		img.Annotations = map[string]string{refName: named}
		_, err = l.commit(ctx, []loadedImage{img})
	}
	if err := errors.Join(err, st.close()); err != nil {
		return Image{}, s.explain(err)
	}
	return s.image(img.entry, img.contents), nil
}

func (l *loader) assemble(ctx context.Context, a Assembly) (loadedImage, error) {
	config := v1.ConfigFile{OS: here.OS, Architecture: here.Architecture, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: a.Entrypoint, Cmd: a.Cmd, User: a.User, Env: append([]string{defaultPath}, a.Env...),
			ExposedPorts: map[string]struct{}{}}}
	for _, p := range a.Ports {
		config.Config.ExposedPorts[fmt.Sprintf("%d/tcp", p)] = struct{}{}
	}
	var layers []entry
	if a.From != "" {
		_, below, err := l.store.lookUp(a.From)
		if err != nil {
			return loadedImage{}, err
		}
		config.RootFS.DiffIDs, layers = slices.Clone(below.config.RootFS.DiffIDs), slices.Clone(below.manifest.Layers)
	}
	for _, layer := range a.Layers {
		b, err := l.pipe(func(to io.Writer) error { return layer.WriteTar(ctx, to) })
		if err != nil {
			return loadedImage{}, err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, b.digest)
		layers = append(layers, entry{MediaType: types.OCIUncompressedLayer, Size: b.size, Digest: b.digest})
	}
	return l.describe(config, layers)
}

// describe makes the configuration and the manifest of an image whose layers are in the stage.
func (l *loader) describe(config v1.ConfigFile, layers []entry) (loadedImage, error) {
	described, err := l.spillJSON(types.OCIConfigJSON, config)
	if err != nil {
		return loadedImage{}, err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: described, Layers: layers}
	if described, err = l.spillJSON(m.MediaType, m); err != nil {
		return loadedImage{}, err
	}
	return loadedImage{described, contents{&m, &config}}, nil
}

// pipe takes to the stage what write writes.
func (l *loader) pipe(write func(io.Writer) error) (blob, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(write(w)) }()
	b, err := l.spill(r)
	r.CloseWithError(errors.New("the reader stopped"))
	return b, err
}

// WriteTar writes a layer's archive: directories above a file of Files that are not in the layer yet come before it.
func (l Layer) WriteTar(ctx context.Context, to io.Writer) error {
	w := layerWriter{tar.NewWriter(to), ctx}
	if l.Dir != "" {
		return errors.Join(w.directory(l.Dir), w.Close())
	}
	made := map[string]bool{".": true}
	for _, f := range l.Files {
		if err := w.made(strings.TrimPrefix(path.Clean(f.Path), "/"), f, made); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return w.Close()
}

// made writes a file, and the directories above it that are not in made.
func (w layerWriter) made(name string, f File, made map[string]bool) error {
	var above []string
	for dir := path.Dir(name); !made[dir]; dir = path.Dir(dir) {
		above, made[dir] = append(above, dir+"/"), true
	}
	for _, dir := range slices.Backward(above) {
		if err := w.header(tar.TypeDir, dir, 0o755, 0, ""); err != nil {
			return err
		}
	}
	switch {
	case f.Link != "":
		return w.header(tar.TypeSymlink, name, 0o777, 0, f.Link)
	case strings.HasSuffix(f.Path, "/"):
		made[name] = true
		return w.header(tar.TypeDir, name+"/", cmp.Or(f.Mode, 0o755), 0, "")
	case f.Source == "":
		return w.text(name, f.Text, cmp.Or(f.Mode, 0o644))
	}
	from, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer from.Close()
	return w.file(name, cmp.Or(f.Mode, 0o755), from)
}

// directory writes what a directory has.
func (w layerWriter) directory(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if strings.Contains("/"+name, "/"+whiteout) {
			return fmt.Errorf("%s would remove a file, and be none", name)
		}
		return w.writeFile(root, name, d)
	})
}

// writeFile writes a file as it is.
func (w layerWriter) writeFile(root *os.Root, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	if d.Type() == fs.ModeSymlink {
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s has no owner", name)
	}
	h = &tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: target, Mode: h.Mode, Uid: int(owner.Uid), Gid: int(owner.Gid), ModTime: epoch,
		Format: tar.FormatPAX}
	switch d.Type() {
	case fs.ModeDir:
		h.Name += "/"
		return w.WriteHeader(h)
	case fs.ModeSymlink:
		return w.WriteHeader(h)
	case 0:
		return w.content(root, h)
	}
	return fmt.Errorf("%s is no file, folder or link", name)
}

func (w layerWriter) content(root *os.Root, h *tar.Header) error {
	f, err := openRegular(root, h.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	capability := make([]byte, 64)
	if n, err := unix.Fgetxattr(int(f.Fd()), "security.capability", capability); err == nil {
		h.PAXRecords = map[string]string{attributes + "security.capability": string(capability[:n])}
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, &guardedReader{ctx: w.ctx, r: f, limit: h.Size})
	return err
}
