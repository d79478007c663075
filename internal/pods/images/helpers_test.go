package images

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
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
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/layertest"
)

// A file is an entry of a layer: a regular file unless its header has another type.
type file struct {
	tar.Header
	body string
}

func regular(name, body string) file {
	return file{tar.Header{Name: name, Mode: 0o644, ModTime: time.Unix(1_700_000_000, 0)}, body}
}

func link(kind byte, name, target string) file {
	return file{tar.Header{Name: name, Typeflag: kind, Linkname: target, ModTime: time.Unix(1_500_000_000, 0)}, ""}
}

// tarOf returns an archive of files.
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

// imageOf returns an image for this machine, of archives. change sets what else it says, and may be nil.
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

// leftovers returns the files in a store that should not be there.
func leftovers(t testing.TB, s *Store) []string {
	t.Helper()
	left, err := s.names(tmpDir)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// find returns an image of the store.
func find(s *Store, ref string) (Image, error) {
	d, c, err := s.lookUp(ref)
	if err != nil {
		return Image{}, err
	}
	return s.image(d, c), nil
}

// unpack returns an image, and a directory for each of its layers.
func unpack(t testing.TB, s *Store, ref string) (Image, []string) {
	t.Helper()
	img, err := find(s, ref)
	if err != nil {
		t.Fatal(err)
	}
	return img, layertest.Unpack(t, s.Blob, img.Digest)
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
