package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"packetwalk.dev/internal/pods/images"
)

// writeArchive writes the images of an index, by a name, to a file that docker load, ctr images import and packetwalk image load take. The
// file is replaced when the archive is whole. Versions of docker that read no index take the first image.
func writeArchive(ctx context.Context, file, name string, index v1.ImageIndex, all []v1.Image) (err error) {
	unfinished := file + ".partial"
	f, err := os.Create(unfinished)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", file, err), os.Remove(unfinished))
		}
	}()
	if err := errors.Join(writeIndex(ctx, f, name, index, all), f.Close()); err != nil {
		return err
	}
	return os.Rename(unfinished, file)
}

func writeIndex(ctx context.Context, to io.Writer, name string, index v1.ImageIndex, all []v1.Image) error {
	a := images.NewArchiveWriter(to)
	for _, img := range all {
		if err := writeImage(ctx, a, img); err != nil {
			return err
		}
	}
	first, err := all[0].Manifest()
	if err != nil {
		return err
	}
	d, err := partial.Descriptor(index)
	if err != nil {
		return err
	}
	raw, err := index.RawManifest()
	if err != nil {
		return err
	}
	return errors.Join(a.Blob(ctx, *d, bytes.NewReader(raw)), a.Image(*d, first, name), a.Close())
}

func writeImage(ctx context.Context, a *images.ArchiveWriter, img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		d, err := partial.Descriptor(l)
		if err != nil {
			return err
		}
		content, err := l.Compressed()
		if err != nil {
			return err
		}
		if err := errors.Join(a.Blob(ctx, *d, content), content.Close()); err != nil {
			return err
		}
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	d, err := partial.Descriptor(img)
	if err != nil {
		return err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return err
	}
	return errors.Join(a.Blob(ctx, m.Config, bytes.NewReader(config)), a.Blob(ctx, *d, bytes.NewReader(raw)))
}
