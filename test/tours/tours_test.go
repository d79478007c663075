package tours

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/test/world"
)

var update = flag.Bool("update", false, "write what commands print into the examples' pages")

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

// TestTours: every command of every example's page prints what the page has.
func TestTours(t *testing.T) {
	pages, err := filepath.Glob("../../examples/*/README.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, page := range pages {
		folder := filepath.Dir(page)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel() // a page mostly waits for what its commands show
			tour(t, folder)
		})
	}
}

func tour(t *testing.T, folder string) {
	w := world.Own(t, fmt.Sprintf("tours-%d-%s", os.Getpid(), filepath.Base(folder)))
	// The folder, not what the program has within: a page that was just changed counts.
	args := []string{"tour", "--name", w.Name, "--yes", folder}
	if *update {
		args = append(args, "--update")
	}
	out, err := w.Try(15*time.Minute, args...)
	if err == nil {
		t.Log(out[strings.LastIndex(out, "\ntour ")+1:]) // how many steps, and how long
		return
	}
	t.Errorf("%v", err)
	if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
		t.Logf("%v", err) // the page's last command may have done it
	}
}
