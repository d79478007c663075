// Package localimage makes packetwalk's own image of what nodes have of Debian, for tests and figures: in seconds, and without a network.
// Unlike the image that make image makes it has a shell, and whatever else nodes have.
package localimage

import (
	"context"
	"path/filepath"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
)

// Make makes the image of a version in the machine's store, with a program of bin as /usr/bin/packetwalk.
func Make(ctx context.Context, program, version string) error {
	root, err := (&source.BuiltIn{Base: filepath.Join(filepath.Dir(program), "base"), Roots: source.RootsDir}).Root(ctx)
	if err != nil {
		return err
	}
	dir, err := images.Dir()
	if err != nil {
		return err
	}
	store, err := images.Open(dir)
	if err != nil {
		return err
	}
	_, err = store.Assemble(ctx, images.Assembly{Name: imageref.Image(version), Layers: []images.Layer{
		{Dir: root}, {Files: []images.File{{Path: "/usr/bin/packetwalk", Source: program}}},
	}})
	return err
}
