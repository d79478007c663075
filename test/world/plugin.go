package world

import (
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/base/release"
	"packetwalk.dev/internal/pods/nodeimage"
)

// PluginImage puts the image of kubectl packetwalk, with the program that was built, into the machine's store, if it is not there, until
// the test ends.
func (w *World) PluginImage(t *testing.T) {
	t.Helper()
	said := strings.Fields(w.Run(t, "--version"))
	version := said[len(said)-1]
	name := release.Image(version)
	if strings.Contains(w.Run(t, "image", "list"), name+" ") {
		return
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := nodeimage.WriteLocal(t.Context(), archive, name, filepath.Join(w.Root, "bin", "packetwalk"), version); err != nil {
		t.Fatal(err)
	}
	w.Run(t, "image", "load", archive)
	t.Cleanup(func() { w.Run(t, "image", "rm", name) })
}
