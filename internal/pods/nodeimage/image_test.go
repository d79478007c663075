package nodeimage

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestMake: images and their index are whole by go-containerregistry's own checks; compressed or not, the same files make the same archive,
// and another time or file another image, whose first layer is the same.
func TestMake(t *testing.T) {
	debian := Tree{"usr/sbin/nft": {Mode: 0o755, Data: bytes.Repeat([]byte("nft"), 10_000)}, "bin": {Link: "usr/bin"}}
	recipe := func(arch string, compress bool) Recipe {
		return Recipe{Arch: arch, Debian: maps.Clone(debian), Programs: Tree{"usr/bin/packetwalk": {Mode: 0o755, Data: []byte(arch)}},
			Labels: map[string]string{"a": "b"}, Created: time.Unix(1764000000, 0).UTC(), Compress: compress}
	}
	for _, compress := range []bool{false, true} {
		var archives [2]bytes.Buffer
		for n := range archives {
			amd64, arm64 := mustMake(t, recipe("amd64", compress)), mustMake(t, recipe("arm64", compress))
			index, err := Index(map[string]string{"a": "b"}, amd64, arm64)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(index); err != nil && compress { // it takes all layers for compressed ones
				t.Error(err)
			}
			if err := writeArchive(t.Context(), &archives[n], "packetwalk.dev/packetwalk:v1", index); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(archives[0].Bytes(), archives[1].Bytes()) {
			t.Errorf("compressed %v: the same files make two archives", compress)
		}
	}
	img := mustMake(t, recipe("arm64", true))
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Labels: map[string]string{"a": "b"},
		WorkingDir: "/"}
	if diff := cmp.Diff(want, config.Config); diff != "" || config.Architecture != "arm64" || config.OS != "linux" {
		t.Errorf("%s %s %s", config.OS, config.Architecture, diff)
	}
	later := recipe("arm64", true)
	later.Created, later.Programs = later.Created.Add(time.Hour), Tree{"usr/bin/packetwalk": {Mode: 0o755, Data: []byte("other")}}
	first, second := digests(t, img), digests(t, mustMake(t, later))
	if first[0] == second[0] || first[1] != second[1] || first[2] == second[2] {
		t.Errorf("image, Debian's layer, packetwalk's: %v, and later %v", first, second)
	}
}

// mustMake makes an image.
func mustMake(t *testing.T, r Recipe) v1.Image {
	t.Helper()
	img, err := Make(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// digests are the image's and its layers'.
func digests(t *testing.T, img v1.Image) []string {
	t.Helper()
	own, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{own.String()}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d.String())
	}
	return all
}
