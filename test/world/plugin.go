package world

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/testing/localimage"
)

// PluginImage puts the image of kubectl packetwalk, with the program that was built, into the machine's store until the test ends. It
// returns the image's name, which no other test's image has.
func (w *World) PluginImage(t *testing.T) string {
	t.Helper()
	version := fmt.Sprintf("test-%d", os.Getpid())
	if err := localimage.Make(t.Context(), filepath.Join(w.Root, "bin", "packetwalk"), version); err != nil {
		t.Fatal(err)
	}
	name := imageref.Image(version)
	t.Cleanup(func() { w.Run(t, "image", "rm", name) })
	return name
}
