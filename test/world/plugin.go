package world

import (
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/testing/localimage"
)

// PluginImage puts the image of kubectl packetwalk, with the program that was built, into the machine's store, if it is not there, until
// the test ends. It returns the image's name.
func (w *World) PluginImage(t *testing.T) string {
	t.Helper()
	said := strings.Fields(w.Run(t, "--version"))
	version := said[len(said)-1]
	name := imageref.Image(version)
	if strings.Contains(w.Run(t, "image", "list"), name+" ") {
		return name
	}
	if err := localimage.Make(t.Context(), filepath.Join(w.Root, "bin", "packetwalk"), version); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Run(t, "image", "rm", name) })
	return name
}
