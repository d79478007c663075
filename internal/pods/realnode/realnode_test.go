package realnode

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/testing/goldentest"
)

// TestPrivate: what holds a secret is for the node's root only.
func TestPrivate(t *testing.T) {
	dir := t.TempDir()
	if err := WriteLayer(dir, []File{{Path: "/a/secret", Private: true}, {Path: "/a/other"}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"secret": 0o600, "other": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, "a", name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info, err, want)
		}
	}
	files, err := Config{Registries: "secret"}.files()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Private != (f.Text == "secret") {
			t.Errorf("%s is private: %v", f.Path, f.Private)
		}
	}
}

// TestNode: what a node's first process is given, and the files that the node's programs read.
func TestNode(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) (out []txtar.File) {
		var c Config
		if err := json.Unmarshal(in[0].Data, &c); err != nil {
			t.Fatal(err)
		}
		files, err := c.files()
		if err != nil {
			t.Fatal(err)
		}
		spec, err := json.MarshalIndent(c.spec("/own"), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, txtar.File{Name: "spec", Data: append(spec, '\n')})
		for _, f := range files {
			text := f.Text
			if f.Link != "" {
				text = "-> " + f.Link + "\n"
			}
			if len(text) > 0 && text[len(text)-1] != '\n' {
				text += "\n"
			}
			out = append(out, txtar.File{Name: f.Path, Data: []byte(text)})
		}
		return out
	})
}

// TestWriteImage reads an image as containerd's importer does: manifest, configuration, layers by their digests.
func TestWriteImage(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "image.tar")
	layer0 := []ImageFile{{Path: "/bin/pause", Source: program}}
	images := []Image{
		{Reference: "registry.k8s.io/pause:3.10.1", Entrypoint: []string{"/bin/pause", "now"}, Layers: [][]ImageFile{layer0}},
		{Reference: "example.com/b:1", Layers: [][]ImageFile{layer0, {{Path: "/b", Link: "/bin/pause"}}}},
	}
	if err := WriteImages(path, images); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 2 || len(manifest[0].Layers) != 1 ||
		len(manifest[1].Layers) != 2 || manifest[1].Layers[0] != manifest[0].Layers[0] {
		t.Fatalf("manifest: %v: %s", err, files["manifest.json"])
	}
	if diff := cmp.Diff([]string{"registry.k8s.io/pause:3.10.1"}, manifest[0].RepoTags); diff != "" {
		t.Error(diff)
	}
	var config struct {
		OS     string                        `json:"os"`
		Config struct{ Entrypoint []string } `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	layer := files[manifest[0].Layers[0]]
	if diff := cmp.Diff([]string{"sha256:" + digest(layer)}, config.RootFS.DiffIDs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/bin/pause", "now"}, config.Config.Entrypoint); diff != "" {
		t.Error(diff)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 || len(files) != 5 {
		t.Errorf("beside the archive are %v, in it %d files", left, len(files))
	}
	if got := untar(t, layer); len(got) != 1 || string(got["bin/pause"]) != "binary" {
		t.Errorf("the layer has %q", got)
	}
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
