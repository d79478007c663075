package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// A Source is what a registry has of one image. What it gives is untrusted.
type Source interface {
	// Manifest is the one that the image's name means, or an index for several platforms.
	Manifest(ctx context.Context) (Manifest, error)
	// Open reads what a descriptor of these describes: another manifest, a configuration or a layer.
	Open(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)
}

// Fetch takes an image from a registry into the store, under the reference's name: the one for this machine's platform. Digests are
// checked; what the store has already is not fetched again. A name that another image has goes over to the new one.
func (s *Store) Fetch(ctx context.Context, ref string, from Source) (Image, error) {
	named, err := normalize(ref)
	if err := errors.Join(err, checkFree(named)); err != nil {
		return Image{}, err
	}
	st, err := s.newStage(ctx, fmt.Sprintf("fetch-%x", sha256.Sum256([]byte(named)))) // one at a time
	if err != nil {
		return Image{}, err
	}
	l := &loader{store: s, stage: st, left: s.most.image, limit: s.most.image, manifests: s.most.manifests}
	l.files = &remoteFiles{l, from}
	img, err := l.fetchImage(ctx, named, from)
	if err == nil {
		_, err = l.commit(ctx, []loadedImage{img})
	}
	if err := errors.Join(err, st.close()); err != nil {
		return Image{}, s.explain(err)
	}
	return s.image(img.entry, img.contents), nil
}

func (l *loader) fetchImage(ctx context.Context, named string, from Source) (loadedImage, error) {
	m, err := from.Manifest(ctx)
	if err != nil {
		return loadedImage{}, err
	}
	b, err := l.spill(bytes.NewReader(m.Content))
	if err != nil {
		return loadedImage{}, err
	}
	if want := digestOf(named); want != "" && want != b.digest.String() {
		return loadedImage{}, fmt.Errorf("the registry has other content for %s, %s", want, b.digest)
	}
	if said := mediaType(m.Content); said != "" {
		m.MediaType = said
	}
	c, err := l.described(ctx, entry{MediaType: types.MediaType(m.MediaType), Digest: b.digest, Size: b.size,
		Annotations: map[string]string{refName: named}})
	return c.loadedImage, err
}

// remoteFiles are a registry's files.
type remoteFiles struct {
	*loader
	from Source
}

func (f *remoteFiles) get(context.Context, string) (blob, error) {
	return blob{}, errors.ErrUnsupported
}

// blob returns what the store has already, or else the registry. No more comes than its descriptor says.
func (f *remoteFiles) blob(ctx context.Context, d entry) (blob, error) {
	if b, err := f.known(ctx, d); err == nil {
		return b, nil
	}
	r, err := f.from.Open(ctx, d)
	if err != nil {
		return blob{}, err
	}
	defer r.Close()
	return f.spill(&guardedReader{ctx: ctx, r: io.LimitReader(r, d.Size+1), limit: d.Size + 1})
}

// known takes a blob of the store to the stage, by a link. One that is damaged is fetched.
func (f *remoteFiles) known(ctx context.Context, d entry) (blob, error) {
	file, err := f.store.root.Open(blobPath(d.Digest))
	if err != nil {
		return blob{}, err
	}
	defer file.Close()
	h := sha256.New()
	n, err := io.Copy(h, &guardedReader{ctx: ctx, r: file, limit: d.Size + 1})
	if err != nil {
		return blob{}, err
	}
	b := blob{v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", h.Sum(nil))}, n}
	if b.digest != d.Digest {
		return blob{}, os.ErrNotExist
	}
	return b, f.store.root.Link(blobPath(d.Digest), f.stage.name+"/"+d.Digest.Hex)
}
