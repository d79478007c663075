package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/images"
)

// TestMakeImage: the archive of an index can be loaded; the same files make the same archive, and another time or file another image, whose
// first layer is the same.
func TestMakeImage(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("program"), 0o4711); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"a": "b"}
	made := func(r recipe) v1.Image {
		t.Helper()
		r.labels, r.debian = labels, []images.File{{Path: "/usr/sbin/nft", Text: strings.Repeat("nft", 10_000), Mode: 0o755},
			{Path: "/bin", Link: "usr/bin"}}
		img, err := makeImage(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	at := time.Unix(1764000000, 0).UTC()
	files := []images.File{{Path: "/usr/bin/packetwalk", Source: source}, {Path: "/tmp/", Mode: 0o1777}}
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var archives [2][]byte
	for n := range archives {
		all := []v1.Image{made(recipe{arch: "amd64", programs: files, created: at}), made(recipe{arch: "arm64", programs: files, created: at})}
		slices.Reverse(files) // their order does not matter
		index, err := makeIndex(labels, all...)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := writeArchive(t.Context(), file, "packetwalk.dev/packetwalk:v1", index, all); err != nil {
			t.Fatal(err)
		}
		if loaded, err := store.Load(t.Context(), file); err != nil || len(loaded) != 1 || loaded[0].Layers != 2 {
			t.Errorf("%+v, %v", loaded, err)
		}
		if archives[n], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same files make two archives")
	}
	img := made(recipe{arch: "arm64", programs: files, created: at})
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{Env: []string{"PATH=" + program.Path}, Labels: labels, WorkingDir: "/"}
	if diff := cmp.Diff(want, config.Config); diff != "" || config.Architecture != "arm64" || config.OS != "linux" {
		t.Errorf("%s %s %s", config.OS, config.Architecture, diff)
	}
	later := made(recipe{arch: "arm64", programs: []images.File{{Path: "/usr/bin/packetwalk", Text: "other"}}, created: at.Add(time.Hour)})
	first, second := digests(t, img), digests(t, later)
	if first[0] == second[0] || first[1] != second[1] || first[2] == second[2] {
		t.Errorf("image, Debian's layer, packetwalk's: %v, and later %v", first, second)
	}
	_, err = newLayer(t.Context(), []images.File{{Path: "/a"}, {Path: "/a", Link: "b"}})
	if err == nil || !strings.Contains(err.Error(), "/a is there twice") {
		t.Error(err)
	}
}

// digests returns the digests of the image and of its layers.
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
