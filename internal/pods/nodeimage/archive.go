package nodeimage

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

// WriteArchive writes an image (v1.Image) or images for several architectures (v1.ImageIndex), by a name, to a file that docker load, ctr
// images import and packetwalk image load take. The file is replaced when the archive is whole. Of an index, versions of docker that read
// none take the first image.
func WriteArchive(ctx context.Context, file, name string, what partial.Describable) (err error) {
	unfinished := file + ".partial"
	f, err := os.OpenFile(unfinished, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", file, err), os.Remove(unfinished))
		}
	}()
	if err := errors.Join(writeArchive(ctx, f, name, what), f.Close()); err != nil {
		return err
	}
	return os.Rename(unfinished, file)
}

func writeArchive(ctx context.Context, to io.Writer, name string, what partial.Describable) error {
	a := images.NewArchiveWriter(to)
	d, err := partial.Descriptor(what)
	if err != nil {
		return err
	}
	var first *v1.Manifest
	switch what := what.(type) {
	case v1.Image:
		first, err = writeImage(ctx, a, what)
	case v1.ImageIndex:
		first, err = writeIndex(ctx, a, what, *d)
	default:
		err = fmt.Errorf("%T is no image", what)
	}
	if err != nil {
		return err
	}
	if err := a.Image(*d, first, name); err != nil {
		return err
	}
	return a.Close()
}

// writeIndex writes an index with its images, and gives the first one's manifest.
func writeIndex(ctx context.Context, a *images.ArchiveWriter, index v1.ImageIndex, d v1.Descriptor) (first *v1.Manifest, err error) {
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, of := range list.Manifests {
		img, err := index.Image(of.Digest)
		if err != nil {
			return nil, err
		}
		m, err := writeImage(ctx, a, img)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = m
		}
	}
	if first == nil {
		return nil, errors.New("there is no image in it")
	}
	raw, err := index.RawManifest()
	if err != nil {
		return nil, err
	}
	return first, a.Blob(ctx, d, bytes.NewReader(raw))
}

func writeImage(ctx context.Context, a *images.ArchiveWriter, img v1.Image) (*v1.Manifest, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for n, l := range layers {
		if a.Has(m.Layers[n]) {
			continue
		}
		content, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		err = a.Blob(ctx, m.Layers[n], content)
		if err := errors.Join(err, content.Close()); err != nil {
			return nil, err
		}
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	d, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	return m, errors.Join(a.Blob(ctx, m.Config, bytes.NewReader(config)), a.Blob(ctx, *d, bytes.NewReader(raw)))
}
