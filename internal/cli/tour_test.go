//go:build linux

package cli

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/tour"
)

// TestBookmarks: a reader's place counts for the same page, and goes with the lab's files.
func TestBookmarks(t *testing.T) {
	place := tour.Bookmark{Step: 3, Names: []tour.LearnedName{{Kind: "pod", Page: "a", Here: "b"}}}
	here := lab.Dir(t.TempDir())
	marks := bookmarks{here, "# page"}
	if d := cmp.Diff(tour.Bookmark{}, marks.read()); d != "" {
		t.Errorf("without a file: %s", d)
	}
	marks.write(place)
	if d := cmp.Diff(place, marks.read()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(tour.Bookmark{}, bookmarks{here, "# other page"}.read()); d != "" {
		t.Errorf("for another page: %s", d)
	}
	if err := os.WriteFile(marks.file(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(tour.Bookmark{}, marks.read()); d != "" {
		t.Errorf("from a damaged file: %s", d)
	}
	if err := os.RemoveAll(string(here)); err != nil {
		t.Fatal(err)
	}
	marks.write(place)
	if _, err := os.Stat(string(here)); !os.IsNotExist(err) {
		t.Errorf("a tour without a lab wrote its place: %v", err)
	}
}
