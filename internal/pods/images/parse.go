package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
)

// here is what this machine runs.
var here = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// A candidate is an image of an archive, with what that says of its name.
type candidate struct {
	loadedImage
	tag string // without a name
}

// images returns all images of what is loaded.
func (l *loader) images(ctx context.Context) ([]candidate, error) {
	b, err := l.files.get(ctx, indexFile)
	if err == nil {
		return l.layout(ctx, b)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	b, err = l.files.get(ctx, "manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("it has neither index.json nor manifest.json: %w", errNoArchive)
	}
	if err != nil {
		return nil, err
	}
	return l.docker(ctx, b)
}

// layout reads an OCI image layout (OCI image specification, image-layout.md).
func (l *loader) layout(ctx context.Context, b blob) ([]candidate, error) {
	var i v1.IndexManifest
	if err := l.parse(indexFile, b, &i); err != nil {
		return nil, err
	}
	var list []candidate
	var others []string // platforms
	for _, d := range i.Manifests {
		if d.Platform != nil && !d.Platform.Satisfies(here) {
			others = append(others, d.Platform.String())
			continue
		}
		c, err := l.described(ctx, d)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	if len(list) == 0 && len(others) > 0 {
		return nil, wrongPlatform("", others)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("its index.json names none: %w", errNoArchive)
	}
	return list, nil
}

// wrongPlatform names both platforms.
func wrongPlatform(image string, others []string) error {
	if image != "" {
		image += " "
	}
	if len(others) == 0 {
		return fmt.Errorf("image %shas none for %s", image, here)
	}
	slices.Sort(others)
	return fmt.Errorf("image %sis for %s; this machine is %s: take the one for it (docker pull --platform %s, skopeo copy --override-arch %s)",
		image, strings.Join(slices.Compact(others), ", "), here, here, here.Architecture)
}

// described returns the image of one entry of a layout's index; an index in it is for several platforms.
func (l *loader) described(ctx context.Context, d entry) (candidate, error) {
	named, tag, err := naming(d.Annotations)
	if err != nil {
		return candidate{}, err
	}
	notes := map[string]string{}
	if named != "" {
		notes[refName] = named
	}
	if d.MediaType.IsIndex() {
		notes[fromIndex] = d.Digest.String()
		if d, err = l.choose(ctx, d, named); err != nil {
			return candidate{}, err
		}
	}
	if !d.MediaType.IsImage() {
		return candidate{}, fmt.Errorf("%s is of type %q, which is no image; give an archive that docker save or skopeo made", d.Digest,
			d.MediaType)
	}
	var m v1.Manifest
	if err := l.fetch(ctx, d, &m); err != nil {
		return candidate{}, err
	}
	img, err := l.finish(ctx, entry{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, Annotations: notes}, &m)
	return candidate{img, tag}, err
}

// naming returns the name that a layout says an image has, or a tag only. That the reference is a whole name is buildx's and skopeo's way.
func naming(notes map[string]string) (named, tag string, err error) {
	ref := notes["io.containerd.image.name"]
	if ref == "" {
		ref = notes[refName]
		if !strings.ContainsAny(ref, ":/") {
			return "", ref, nil
		}
	}
	named, err = normalize(ref)
	return named, "", err
}

// choose returns the entry for this machine of an index for several platforms.
func (l *loader) choose(ctx context.Context, d entry, image string) (entry, error) {
	var i v1.IndexManifest
	if err := l.fetch(ctx, d, &i); err != nil {
		return d, err
	}
	var others []string
	for _, m := range i.Manifests {
		switch {
		case !m.MediaType.IsImage():
		case m.Platform == nil || m.Platform.Satisfies(here):
			return m, nil
		case m.Platform.OS != "unknown": // what buildx says of an image (attestations), and no image
			others = append(others, m.Platform.String())
		}
	}
	return d, wrongPlatform(image, others)
}

// blob returns a blob of the stage or of a layout, checked against its descriptor.
func (l *loader) blob(ctx context.Context, d entry) (blob, error) {
	if d.Digest.Algorithm != "sha256" {
		return blob{}, fmt.Errorf("digest %q is not of sha256", d.Digest)
	}
	b := blob{digest: d.Digest}
	info, err := l.stage.root.Lstat(d.Digest.Hex)
	if err == nil {
		b.size = info.Size()
	} else if b, err = l.files.blob(ctx, d); err != nil {
		return b, err
	}
	if b.digest != d.Digest || b.size != d.Size {
		return b, fmt.Errorf("%s of %d bytes has other content, %s of %d bytes: it was damaged, or changed", d.Digest, d.Size, b.digest, b.size)
	}
	return b, nil
}

// fetch reads a blob that is JSON.
func (l *loader) fetch(ctx context.Context, d entry, v any) error {
	b, err := l.blob(ctx, d)
	if err != nil {
		return err
	}
	return l.parse(d.Digest.String(), b, v)
}

func (l *loader) parse(name string, b blob, v any) error {
	if l.manifests--; l.manifests < 0 {
		return fmt.Errorf("it has more than %d manifests, which is the most that is read", l.store.most.manifests)
	}
	data, err := l.content(b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w; %w", name, err, errNoArchive)
	}
	return nil
}

// finish checks an image against its manifest.
func (l *loader) finish(ctx context.Context, e entry, m *v1.Manifest) (loadedImage, error) {
	img := loadedImage{e, contents{manifest: m, config: new(v1.ConfigFile)}}
	if !m.Config.MediaType.IsConfig() {
		return img, fmt.Errorf("%s is no image that runs, but of type %q", e.Digest, m.Config.MediaType)
	}
	if err := l.fetch(ctx, m.Config, img.config); err != nil {
		return img, err
	}
	if err := l.check(img); err != nil {
		return img, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(layersAtOnce)
	for n, d := range m.Layers {
		g.Go(func() error { return l.layer(ctx, img, n, d) })
	}
	return img, g.Wait()
}

// layersAtOnce is how many layers of an image come at the same time, as with containerd (max_concurrent_downloads).
const layersAtOnce = 3

// layer has the image's layer of that number in the stage.
func (l *loader) layer(ctx context.Context, img loadedImage, n int, d entry) error {
	if !d.MediaType.IsLayer() {
		return fmt.Errorf("layer %d of %s is of type %q, which is not unpacked", n+1, img.Digest, d.MediaType)
	}
	b, err := l.blob(ctx, d)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("layer %d of %s is missing (%w): save the image whole", n+1, img.Digest, err)
	}
	if err != nil {
		return err
	}
	if diff := img.config.RootFS.DiffIDs[n]; uncompressedLayer(d.MediaType) && b.digest != diff {
		return fmt.Errorf("layer %d of %s is %s, and should be %s: it was damaged, or changed", n+1, img.Digest, b.digest, diff)
	}
	return nil
}

func uncompressedLayer(t types.MediaType) bool {
	return t == types.OCIUncompressedLayer || t == types.DockerUncompressedLayer || t == types.OCIUncompressedRestrictedLayer
}

// check checks what needs no layer to be read.
func (l *loader) check(i loadedImage) error {
	name, of := i.Annotations[refName], v1.Platform{OS: i.config.OS, Architecture: i.config.Architecture, Variant: i.config.Variant}
	if (of.OS != "" && of.OS != here.OS) || (of.Architecture != "" && of.Architecture != here.Architecture) {
		return wrongPlatform(name, []string{of.String()})
	}
	switch n := len(i.manifest.Layers); {
	case n == 0:
		return fmt.Errorf("image %s has no layers, and so no files", i.Digest)
	case n > l.store.most.layers:
		return fmt.Errorf("image %s has %d layers; at most %d can be mounted", i.Digest, n, l.store.most.layers)
	case n != len(i.config.RootFS.DiffIDs):
		return fmt.Errorf("image %s has %d layers, and its configuration knows of %d", i.Digest, n, len(i.config.RootFS.DiffIDs))
	}
	for _, d := range i.config.RootFS.DiffIDs {
		if d.Algorithm != "sha256" {
			return fmt.Errorf("digest %q is not of sha256", d)
		}
	}
	return nil
}

// savedImage is an image in the manifest.json that docker save, podman save and skopeo write.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// docker reads what docker save wrote before it wrote layouts. There are no manifests in it: we make them.
func (l *loader) docker(ctx context.Context, b blob) ([]candidate, error) {
	var all []savedImage
	if err := l.parse("manifest.json", b, &all); err != nil {
		return nil, err
	}
	var list []candidate
	for _, one := range all {
		img, err := l.loadSaved(ctx, one)
		if err != nil {
			return nil, err
		}
		for _, tag := range one.RepoTags {
			named, err := normalize(tag)
			if err != nil {
				return nil, err
			}
			if len(list) == l.store.most.images {
				return nil, fmt.Errorf("it has more than %d images, which is the most that is taken", len(list))
			}
			again := img
			again.Annotations = map[string]string{refName: named}
			list = append(list, candidate{again, ""})
		}
		if len(one.RepoTags) == 0 {
			list = append(list, candidate{img, ""})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("its manifest.json names none: %w", errNoArchive)
	}
	return list, nil
}

func (l *loader) loadSaved(ctx context.Context, one savedImage) (loadedImage, error) {
	config, err := l.files.get(ctx, one.Config)
	if err != nil {
		return loadedImage{}, err
	}
	// Its name is its digest.
	if digits, _, _ := strings.Cut(strings.TrimPrefix(path.Base(one.Config), digestPrefix), "."); len(digits) == 64 &&
		digits != config.digest.Hex {
		return loadedImage{}, fmt.Errorf("%s has other content, %s: it was damaged, or changed", one.Config, config.digest)
	}
	if len(one.Layers) > l.store.most.layers {
		return loadedImage{}, fmt.Errorf("image %s has %d layers; at most %d can be mounted", one.Config, len(one.Layers), l.store.most.layers)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2,
		Config: entry{MediaType: types.DockerConfigJSON, Size: config.size, Digest: config.digest}}
	for _, name := range one.Layers {
		b, err := l.files.get(ctx, name)
		if err != nil {
			return loadedImage{}, err
		}
		kind, err := l.layerType(b)
		if err != nil {
			return loadedImage{}, err
		}
		m.Layers = append(m.Layers, entry{MediaType: kind, Size: b.size, Digest: b.digest})
	}
	text, err := json.Marshal(m)
	if err != nil {
		return loadedImage{}, err
	}
	b, err := l.spill(bytes.NewReader(text))
	if err != nil {
		return loadedImage{}, err
	}
	return l.finish(ctx, entry{MediaType: m.MediaType, Size: b.size, Digest: b.digest, Annotations: map[string]string{}}, &m)
}

// layerType returns a layer's type by its first bytes.
func (l *loader) layerType(b blob) (types.MediaType, error) {
	f, err := l.stage.root.Open(b.digest.Hex)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, len(zstdMagic))
	n, _ := f.Read(head) // what is empty is not compressed
	switch {
	case bytes.HasPrefix(head[:n], []byte(gzipMagic)):
		return types.DockerLayer, nil
	case bytes.HasPrefix(head[:n], []byte(zstdMagic)):
		return types.OCILayerZStd, nil
	}
	return types.DockerUncompressedLayer, nil
}
