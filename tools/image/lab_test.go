package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestMakeLab makes the image twice: the archive's bytes are a layer as they are, and the second image is the same.
func TestMakeLab(t *testing.T) {
	root := t.TempDir()
	entry := filepath.Join(root, "deploy", "lab-image", "entrypoint")
	base := filepath.Join(root, "whole.tar")
	archive := filepath.Join(root, "lab.tar.zst")
	text, err := os.ReadFile("../../deploy/lab-image/entrypoint")
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(entry), 0o755), os.WriteFile(entry, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"tar", "-cf", base, entry}, {"tar", "--zstd", "-cf", archive, entry}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var images [2][]byte
	for i := range images {
		m := maker{root: root, options: options{version: "v1.2.0", archs: []string{"arm64"}, lab: archive,
			labRoot: base, archive: filepath.Join(root, "image.tar")}}
		if err := errors.Join(os.Chtimes(entry, time.Time{}, time.Unix(int64(i), 0)), m.makeLab(t.Context())); err != nil {
			t.Fatal(err)
		}
		if images[i], err = os.ReadFile(m.archive); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Error("the second image differs")
	}
	layer, err := os.ReadFile(archive)
	if err != nil || !bytes.Contains(images[0], layer) {
		t.Errorf("the archive is no layer of the image: %v", err)
	}
}
