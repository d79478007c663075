package nodeimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"packetwalk.dev/internal/base/program"
)

// A Recipe is what an image is made of.
type Recipe struct {
	Arch     string // GOARCH
	Debian   Tree   // what Choose has chosen
	Programs Tree
	Labels   map[string]string // annotations of the image, too
	Created  time.Time
	Compress bool // the layers: smaller, and slower to make
}

// Make makes an image for one architecture. Files by Source are read again whenever its layers are.
func Make(ctx context.Context, r Recipe) (v1.Image, error) {
	var layers []mutate.Addendum
	for _, t := range []struct {
		what string
		Tree
	}{{"Debian's programs", r.Debian}, {"packetwalk's programs", r.Programs}} {
		l, err := newLayer(ctx, t.Tree, r.Compress)
		if err != nil {
			return nil, fmt.Errorf("the layer of %s: %w", t.what, err)
		}
		history := v1.History{Created: v1.Time{Time: r.Created}, CreatedBy: "make image", Comment: t.what}
		layers = append(layers, mutate.Addendum{Layer: l, History: history, MediaType: l.kind})
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
	config.OS, config.Architecture, config.Created = "linux", r.Arch, v1.Time{Time: r.Created}
	config.Config = v1.Config{Env: []string{"PATH=" + program.Path}, Labels: maps.Clone(r.Labels), WorkingDir: "/"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, r.Labels).(v1.Image), nil
}

// Index makes one of the images of several architectures.
func Index(labels map[string]string, images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return mutate.Annotations(index, labels).(v1.ImageIndex), nil
}

// Local makes an image for this machine of programs, by their paths in the image, and of what this machine has of Debian's packages: in
// seconds, for tests, and by root alone. Its layers are not compressed, and it has no list of what is in it.
func Local(ctx context.Context, programs map[string]string, version string) (v1.Image, error) {
	all, err := machine(ctx)
	if err != nil {
		return nil, err
	}
	chosen, err := Choose(all, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return Make(ctx, Recipe{Arch: runtime.GOARCH, Debian: chosen, Programs: Programs(programs), Created: epoch,
		Labels: map[string]string{"org.opencontainers.image.version": version}})
}

// WriteLocal writes the image of Local with packetwalk's program, by a name, to a file as WriteArchive does.
func WriteLocal(ctx context.Context, file, name, program, version string) error {
	img, err := Local(ctx, map[string]string{"usr/bin/packetwalk": program}, version)
	if err != nil {
		return err
	}
	return WriteArchive(ctx, file, name, img)
}

// Programs are files of this machine by their paths in an image.
func Programs(files map[string]string) Tree {
	t := Tree{}
	for name, source := range files {
		t[trimSlash(name)] = File{Mode: 0o755, Source: source}
	}
	return t
}

// A layer is one whose content is made anew whenever it is read, or in memory where it is compressed.
type layer struct {
	tree         Tree
	ctx          context.Context // ends what reads it
	kind         types.MediaType
	digest, diff v1.Hash
	size         int64
	packed       []byte
}

func newLayer(ctx context.Context, t Tree, compress bool) (*layer, error) {
	l := &layer{tree: t, ctx: ctx, kind: types.OCIUncompressedLayer}
	plain, whole := sha256.New(), &counter{}
	var packed bytes.Buffer
	to := io.MultiWriter(plain, whole)
	var z *gzip.Writer
	if compress {
		z, _ = gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is a valid one
		to = io.MultiWriter(plain, z)
	}
	if err := t.write(ctx, to); err != nil {
		return nil, err
	}
	l.diff = v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", plain.Sum(nil))}
	l.digest, l.size = l.diff, whole.n
	if compress {
		if err := z.Close(); err != nil {
			return nil, err
		}
		l.kind, l.packed, l.size = types.OCILayer, packed.Bytes(), int64(packed.Len())
		l.digest = v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(l.packed))}
	}
	return l, nil
}

// counter counts octets.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diff, nil }
func (l *layer) Size() (int64, error)                { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.kind, nil }

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(l.tree.write(l.ctx, w)) }()
	return r, nil
}

// Compressed is the layer as it goes to a registry, which for some is not compressed.
func (l *layer) Compressed() (io.ReadCloser, error) {
	if l.packed != nil {
		return io.NopCloser(bytes.NewReader(l.packed)), nil
	}
	return l.Uncompressed()
}
