package lab

import (
	"os"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/lab/layout"
)

// TestLabsIn: labs of which only nodes' disks are left are among all, once each, and directories that are no labs' are not.
func TestLabsIn(t *testing.T) {
	run, disks := t.TempDir(), t.TempDir()
	for _, dir := range []string{run + "/b", run + "/.hidden", disks + "/a", disks + "/b", disks + "/lost+found"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for want, roots := range map[string][]string{"b": {run, run + "/none"}, "a b": {run, disks}} {
		dirs, err := labsIn(roots...)
		var names []string
		for _, d := range dirs {
			names = append(names, d.Name())
		}
		if err != nil || !slices.Equal(names, strings.Fields(want)) {
			t.Errorf("in %q are %q, %v", roots, names, err)
		}
	}
}

// TestNotFoundError names the labs that exist.
func TestNotFoundError(t *testing.T) {
	for want, labs := range map[string][]layout.Dir{
		`no lab called "x"; there are: a, b`: {DirOf("a"), DirOf("b")},
		`no lab called "x", nor any other`:   nil,
	} {
		if got := (&NotFoundError{"x", labs}).Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
