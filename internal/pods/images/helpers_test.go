package images

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// A file is an entry of a layer: a regular file unless its header has another type.
type file struct {
	tar.Header
	body string
}

func regular(name, body string) file {
	return file{tar.Header{Name: name, Mode: 0o644, ModTime: time.Unix(1_700_000_000, 0)}, body}
}

func folder(name string, mode int64) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, ModTime: time.Unix(1_600_000_000, 0)}, ""}
}

func link(kind byte, name, target string) file {
	return file{tar.Header{Name: name, Typeflag: kind, Linkname: target, ModTime: time.Unix(1_500_000_000, 0)}, ""}
}

// tarOf is an archive of files.
func tarOf(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := f.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Size == 0 {
			h.Size = int64(len(f.body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layerOf(t testing.TB, archive []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf is an image for this machine, of archives; what else it says is for change to set, which may be nil.
func imageOf(t testing.TB, change func(*v1.ConfigFile), layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, l := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, layerOf(t, l)); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if change != nil {
		change(config)
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// saveDocker writes what docker save did.
func saveDocker(t testing.TB, img v1.Image, tag string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	ref, err := name.ParseReference(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(path, ref, img); err != nil {
		t.Fatal(err)
	}
	return path
}

// saveLayout writes an OCI image layout; ref may be "".
func saveLayout(t testing.TB, what mutate.Appendable, ref string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "saved")
	add := mutate.IndexAddendum{Add: what}
	if ref != "" {
		add.Annotations = map[string]string{refName: ref}
	}
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, add)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pack makes an archive of a directory.
func pack(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "packed.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func newStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// leftovers are what is in a store that should not be.
func leftovers(t testing.TB, s *Store) []string {
	t.Helper()
	left, err := s.names(tmpDir)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// namesBelow are all files of a directory.
func namesBelow(t testing.TB, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		names = append(names, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names[1:]
}

// privately runs f on a thread of its own in a mount namespace of its own, which ends with it.
func privately(t testing.TB, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func mustLoad(t testing.TB, s *Store, path string) []Image {
	t.Helper()
	list, err := s.Load(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// cutLayer is an image with the first half of its only layer.
func cutLayer(t testing.TB, img v1.Image) v1.Image {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	diff, err := layers[0].DiffID()
	if err != nil {
		t.Fatal(err)
	}
	cut, err := mutate.Append(empty.Image, mutate.Addendum{Layer: half{static.NewLayer(data[:len(data)/2], types.DockerLayer), diff}})
	if err != nil {
		t.Fatal(err)
	}
	return cut
}

// half is a layer with the diff ID of the whole.
type half struct {
	v1.Layer
	diff v1.Hash
}

func (h half) DiffID() (v1.Hash, error) { return h.diff, nil }
