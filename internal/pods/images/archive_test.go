package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// saveIn saves images of a store to a file.
func saveIn(t *testing.T, s *Store, refs ...string) (file string) {
	t.Helper()
	var b bytes.Buffer
	if err := s.Save(t.Context(), &b, refs...); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// unpackTo makes a directory of an archive.
func unpackTo(t *testing.T, archive []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(r)
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(h.Name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, h.Name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSave: what is saved and loaded elsewhere is the same image by the same name, and older docker finds it, too; the same images make the
// same archive; one that came from an index is this machine's alone.
func TestSave(t *testing.T) {
	s := newStore(t)
	mustLoad(t, s, saveDocker(t, sample(t), "shop:v1"))
	other := imageOf(t, nil, tarOf(t, regular("other", "text")))
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &here}},
		mutate.IndexAddendum{Add: imageOf(t, func(c *v1.ConfigFile) { c.Architecture = "s390x" }, tarOf(t, regular("z", ""))),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}})
	mustLoad(t, s, saveLayout(t, index, "ghcr.io/user/app:v1"))

	file := saveIn(t, s, "shop:v1", "ghcr.io/user/app:v1")
	to := newStore(t)
	loaded := mustLoad(t, to, file)
	var got []string
	for _, i := range loaded {
		was, _, err := s.lookUp(i.Name)
		if err != nil || was.Digest.String() != i.Digest {
			t.Errorf("%s: %s, and was %s; %v", i.Name, i.Digest, was.Digest, err)
		}
		got = append(got, i.Name)
	}
	if diff := cmp.Diff([]string{"shop:v1", "ghcr.io/user/app:v1"}, got); diff != "" {
		t.Error(diff)
	}
	first, _ := os.ReadFile(file)
	second, _ := os.ReadFile(saveIn(t, s, "shop:v1", "ghcr.io/user/app:v1"))
	if !bytes.Equal(first, second) {
		t.Error("the same images make two archives")
	}

	// docker before containerd's store reads manifest.json alone.
	dir := unpackTo(t, first)
	if err := os.Remove(filepath.Join(dir, indexFile)); err != nil {
		t.Fatal(err)
	}
	old := newStore(t)
	names := []string{}
	for _, i := range mustLoad(t, old, pack(t, dir)) {
		names = append(names, i.Name)
	}
	if diff := cmp.Diff([]string{"shop:v1", "ghcr.io/user/app:v1"}, names); diff != "" {
		t.Error(diff)
	}
}

// TestSavedLayout: go-containerregistry reads the layout, and containerd's name is whole.
func TestSavedLayout(t *testing.T) {
	s := newStore(t)
	mustLoad(t, s, saveDocker(t, sample(t), "shop:v1"))
	data, err := os.ReadFile(saveIn(t, s, "shop:v1"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(unpackTo(t, data))
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%d images, %v", len(m.Manifests), err)
	}
	want := map[string]string{"io.containerd.image.name": "docker.io/library/shop:v1", refName: "v1"}
	if diff := cmp.Diff(want, m.Manifests[0].Annotations); diff != "" {
		t.Error(diff)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
}

// TestSaveWhatIsNot: an image that is not there, and one that is damaged, are errors that say so.
func TestSaveWhatIsNot(t *testing.T) {
	s := newStore(t)
	if err := s.Save(t.Context(), &bytes.Buffer{}, "shop:v1"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	mustLoad(t, s, saveDocker(t, sample(t), "shop:v1"))
	_, c, err := s.lookUp("shop:v1")
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(s.dir, blobPath(c.manifest.Layers[0].Digest))
	for _, change := range []func() error{
		func() error {
			return os.WriteFile(layer, bytes.Repeat([]byte("x"), int(c.manifest.Layers[0].Size)), 0o600)
		},
		func() error { return os.Truncate(layer, 1) },
		func() error { return os.WriteFile(layer, make([]byte, 1<<20), 0o600) },
		func() error { return os.Remove(layer) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := s.Save(t.Context(), &bytes.Buffer{}, "shop:v1"); err == nil || !strings.HasPrefix(err.Error(), "save image shop:v1: ") {
			t.Errorf("a damaged image: %v", err)
		}
	}
}
