package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

const chart = "../../../deploy/chart"

// TestPack packs a release's chart twice: the archives are identical, and have the version, the digest and the comments of values.yaml.
func TestPack(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	var archives [][]byte
	for range 2 {
		file, err := pack(chart, "v1.2.0-rc.1", digest, time.Unix(1700000000, 0), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(file); name != "packetwalk-1.2.0-rc.1.tgz" {
			t.Errorf("file %s", name)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, text)
		time.Sleep(1100 * time.Millisecond) // archives have whole seconds
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the second archive differs")
	}
	c, err := loader.LoadArchive(bytes.NewReader(archives[0]))
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != "1.2.0-rc.1" || c.Metadata.AppVersion != "v1.2.0-rc.1" {
		t.Errorf("version %s, of the app %s", c.Metadata.Version, c.Metadata.AppVersion)
	}
	if image := c.Values["image"].(map[string]any); image["digest"] != digest || image["tag"] != "" {
		t.Errorf("image %v", image)
	}
}

func TestPackInvalid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "packetwalk")
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "values.yaml"), []byte("image:\n  digest: sha256:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pack(dir, "v1.2.0", "sha256:1", time.Unix(0, 0), t.TempDir()); err == nil {
		t.Error("a chart that has a digest was packed")
	}
	if _, err := pack(t.TempDir(), "v1.2.0", "sha256:1", time.Unix(0, 0), t.TempDir()); err == nil {
		t.Error("an empty folder was packed")
	}
}
