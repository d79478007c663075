// Package goldentest is for tests whose expectations are files: txtar archives that begin with what goes in and go on with what must come
// out. With the test flag -update what comes out is written into them.
package goldentest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Run has a subtest for each archive that pattern finds, at least one. f gets the archive's first files, as many as inputs says, and
// returns what the others must be, names and contents.
func Run(t *testing.T, pattern string, inputs int, f func(t *testing.T, in []txtar.File) (out []txtar.File)) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files %s: %v", pattern, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Files) < inputs {
				t.Fatalf("%s has %d files, want the %d that go in at least", path, len(a.Files), inputs)
			}
			want := string(txtar.Format(a))
			a.Files = append(a.Files[:inputs:inputs], f(t, a.Files[:inputs])...)
			got := txtar.Format(a)
			if t.Failed() {
				return // what came of it is not to be kept
			}
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Errorf("%s (-want +got); -update rewrites it:\n%s", path, diff)
			}
		})
	}
}

// File compares a whole file, such as a generated page, with its text.
func File(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got); -update rewrites it:\n%s", path, diff)
	}
}
