package images

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An ArchiveWriter writes images as an archive that docker load, podman load, ctr images import and [Store.Load] take: an OCI image layout
// (OCI image specification, image-layout.md), and the manifest.json that older versions of docker read. The same images make the same
// archive.
type ArchiveWriter struct {
	tar     *tar.Writer
	written map[v1.Hash]bool
	index   v1.IndexManifest
	docker  []savedImage
}

// NewArchiveWriter writes to w; the archive is whole when Close has returned nil.
func NewArchiveWriter(w io.Writer) *ArchiveWriter {
	return &ArchiveWriter{tar: tar.NewWriter(w), written: map[v1.Hash]bool{},
		index: v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}}
}

// Has reports whether a blob is written.
func (a *ArchiveWriter) Has(d v1.Descriptor) bool { return a.written[d.Digest] }

// Blob writes a layer, a configuration, a manifest or an index, once. Content that is not what its descriptor says is an error.
func (a *ArchiveWriter) Blob(ctx context.Context, d v1.Descriptor, content io.Reader) error {
	if d.Digest.Algorithm != "sha256" || d.Size < 0 {
		return fmt.Errorf("digest %q of %d bytes is not of sha256", d.Digest, d.Size)
	}
	if a.Has(d) {
		return nil
	}
	w := layerWriter{a.tar, ctx}
	if err := w.header(tar.TypeReg, blobPath(d.Digest), 0o644, d.Size, ""); err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(a.tar, h), &guardedReader{ctx: ctx, r: content, limit: d.Size})
	if err != nil {
		return fmt.Errorf("%s: %w", d.Digest, err)
	}
	if sum := fmt.Sprintf("%x", h.Sum(nil)); n != d.Size || sum != d.Digest.Hex {
		return fmt.Errorf("%s of %d bytes has other content, %s of %d bytes: it was damaged, or changed", d.Digest, d.Size, sum, n)
	}
	a.written[d.Digest] = true
	return nil
}

// Image names what was written: an image's manifest, or an index of images for several platforms, by the names of an image. one is the
// manifest that docker takes which reads no index: the image's own, or one of the index's.
func (a *ArchiveWriter) Image(d v1.Descriptor, one *v1.Manifest, names ...string) error {
	d.Annotations = nil
	s := savedImage{Config: blobPath(one.Config.Digest)}
	for _, l := range one.Layers {
		s.Layers = append(s.Layers, blobPath(l.Digest))
	}
	var described []v1.Descriptor
	for _, n := range names {
		full, tag, err := written(n)
		if err != nil {
			return err
		}
		d := d
		if d.Annotations = map[string]string{"io.containerd.image.name": full}; tag != "" {
			d.Annotations[refName] = tag
			s.RepoTags = append(s.RepoTags, full)
		}
		described = append(described, d)
	}
	if len(names) == 0 {
		described = append(described, d)
	}
	a.index.Manifests = append(a.index.Manifests, described...)
	a.docker = append(a.docker, s)
	return nil
}

// written returns a name as containerd has it, whole, and its tag.
func written(ref string) (full, tag string, err error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return "", "", err
	}
	if t, ok := r.(name.Tag); ok {
		tag = t.TagStr()
	}
	full = r.Name()
	if hub, ok := strings.CutPrefix(full, name.DefaultRegistry+"/"); ok {
		full = "docker.io/" + hub
	}
	return full, tag, nil
}

// FullTag returns the whole name that containerd has for an image's short name. It reports false for a name without a tag.
func FullTag(short string) (full string, isTag bool) {
	full, tag, err := written(short)
	return full, err == nil && tag != ""
}

// Close ends the archive.
func (a *ArchiveWriter) Close() error {
	w := layerWriter{a.tar, context.Background()}
	index, err := json.Marshal(a.index)
	if err != nil {
		return err
	}
	docker, err := json.Marshal(a.docker)
	if err != nil {
		return err
	}
	for _, f := range []struct{ name, text string }{
		{indexFile, string(index)}, {"manifest.json", string(docker)}, {layoutFile, layoutVersion},
	} {
		if err := w.text(f.name, f.text, 0o644); err != nil {
			return err
		}
	}
	return a.tar.Close()
}

// Save writes images by what refs mean to an archive, each with its name; see [ArchiveWriter]. Of an image that came from an index for
// several platforms the store has this machine's, and that is saved. [ErrNotFound] is in the error's chain where one is not there.
func (s *Store) Save(ctx context.Context, to io.Writer, refs ...string) error {
	var all []RenamedImage
	for _, ref := range refs {
		all = append(all, RenamedImage{Ref: ref})
	}
	return s.SaveAs(ctx, to, all)
}

// A RenamedImage is an image of the store with its name in an archive. An empty Name keeps the store's.
type RenamedImage struct{ Ref, Name string }

// SaveAs writes images to an archive as Save does, with other names.
func (s *Store) SaveAs(ctx context.Context, to io.Writer, all []RenamedImage) error {
	a := NewArchiveWriter(to)
	for _, n := range all {
		ref := n.Ref
		d, c, err := s.lookUp(ref)
		if err == nil {
			err = s.save(ctx, a, d, c, n.Name)
		}
		if err != nil {
			return fmt.Errorf("save image %s: %w", ref, s.explain(err))
		}
	}
	return a.Close()
}

func (s *Store) save(ctx context.Context, a *ArchiveWriter, d entry, c contents, name string) error {
	for _, b := range slices.Concat(c.manifest.Layers, []v1.Descriptor{c.manifest.Config}, []v1.Descriptor{d}) {
		f, err := s.Blob(b.Digest.String())
		if err != nil {
			return s.damaged(err)
		}
		if err := errors.Join(a.Blob(ctx, b, f), f.Close()); err != nil {
			return err
		}
	}
	var names []string
	if n := cmp.Or(name, d.Annotations[refName]); n != "" {
		names = []string{n}
	}
	return a.Image(d, c.manifest, names...)
}
