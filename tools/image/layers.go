package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/images"
)

// A recipe lists the parts of an image.
type recipe struct {
	arch             string        // GOARCH
	debian, programs []images.File // of its two layers
	labels           map[string]string
	created          time.Time
}

// makeImage makes an image for one architecture.
func makeImage(ctx context.Context, r recipe) (v1.Image, error) {
	var layers []mutate.Addendum
	for _, l := range []struct {
		what  string
		files []images.File
	}{{"Debian's programs", r.debian}, {"packetwalk's programs", r.programs}} {
		layer, err := newLayer(ctx, l.files)
		if err != nil {
			return nil, fmt.Errorf("layer of %s: %w", l.what, err)
		}
		history := v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "make image", Comment: l.what}
		layers = append(layers, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer})
	}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", r.arch, v1.Time{Time: r.created}
	config.Config = v1.Config{Env: []string{"PATH=" + program.Path}, Labels: maps.Clone(r.labels), WorkingDir: "/"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, r.labels).(v1.Image), nil
}

// newLayer makes a layer of files, whose order does not matter. Each path must be there once.
func newLayer(ctx context.Context, files []images.File) (v1.Layer, error) {
	files = slices.SortedFunc(slices.Values(files), func(a, b images.File) int { return strings.Compare(a.Path, b.Path) })
	for n, f := range files[1:] {
		if f.Path == files[n].Path {
			return nil, fmt.Errorf("%s is there twice", f.Path)
		}
	}
	var archive bytes.Buffer
	if err := (images.Layer{Files: files}).WriteTar(ctx, &archive); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching,
		tarball.WithMediaType(types.OCILayer))
}

// makeIndex makes an index of the images of several architectures.
func makeIndex(labels map[string]string, all ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range all {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return mutate.Annotations(index, labels).(v1.ImageIndex), nil
}
