package nodeimage

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"packetwalk.dev/internal/base/release"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/layertest"
)

// TestLocal: the image of this machine's packages is the same each time, comes into a store by its name, and its programs run there, with
// their libraries and no shell.
func TestLocal(t *testing.T) {
	kerneltest.NeedRoot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	build := func() v1.Image {
		t.Helper()
		img, err := Local(t.Context(), map[string]string{"/usr/bin/packetwalk": self}, "v1")
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	img := build()
	digest, _ := img.Digest()
	if again, _ := build().Digest(); again != digest {
		t.Errorf("the same files: %s and %s", digest, again)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	name := release.Image("v1")
	if err := WriteArchive(t.Context(), file, name, img); err != nil {
		t.Fatal(err)
	}
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	loaded, err := store.Manifest(name)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Digest != digest.String() {
		t.Errorf("loaded as %s, made as %s", loaded.Digest, digest)
	}
	runAll(t, layertest.Unpack(t, store.Blob, loaded.Digest)[0])
}
