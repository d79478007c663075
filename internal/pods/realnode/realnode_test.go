package realnode

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

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
		spec, err := json.MarshalIndent(c.spec("/own", nil), "", "  ")
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
