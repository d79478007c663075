// Package layertest unpacks images of a store, for tests that look at their files or run them.
package layertest

import (
	"encoding/json"
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"packetwalk.dev/internal/base/program"
)

// Unpack unpacks each layer of the image with a manifest into a directory, the lowest first. Whiteouts stay files. blob opens a blob of the
// store. tar(1) does the work; only root gets the files' owners.
func Unpack(t testing.TB, blob func(digest string) (*os.File, error), manifest string) (dirs []string) {
	t.Helper()
	open := func(digest string) *os.File {
		f, err := blob(digest)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	var m v1.Manifest
	if err := json.NewDecoder(open(manifest)).Decode(&m); err != nil {
		t.Fatal(err)
	}
	for _, l := range m.Layers {
		dir := t.TempDir()
		args := []string{"-xpf", open(l.Digest.String()).Name(), "-C", dir, "--delay-directory-restore", "--xattrs", "--xattrs-include=*"}
		if _, err := (program.Command{Path: "tar", Args: args}).Output(t.Context()); err != nil {
			t.Fatalf("unpack layer %s: %v", l.Digest, err)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}
