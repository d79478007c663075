package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/images"
)

// zstdLayer is the media type of a layer that zstd compressed (OCI image specification, layer.md).
const zstdLayer types.MediaType = "application/vnd.oci.image.layer.v1.tar+zstd"

// labPorts are where the entry point publishes the API server and the oldest Service of type LoadBalancer.
var labPorts = map[string]struct{}{"6443/tcp": {}, "8080/tcp": {}}

// labVolumes are where a container needs another file system than overlayfs: a node's root is the writable layer of an overlayfs.
var labVolumes = map[string]struct{}{"/var/lib/packetwalk": {}}

// makeLab makes the image of labs for one architecture: Debian's files of nodes, the archive of scripts/lab-archive as it is,
// and the entry point.
func (m *maker) makeLab(ctx context.Context) error {
	if len(m.archs) != 1 {
		return errors.New("specify one architecture, that of the archive")
	}
	if err := m.source(ctx); err != nil {
		return err
	}
	arch := m.archs[0]
	base, err := tarball.LayerFromFile(m.labRoot, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	archive, err := tarball.LayerFromFile(m.lab, tarball.WithMediaType(zstdLayer))
	if err != nil {
		return fmt.Errorf("%s: %w; run make lab-archive", m.lab, err)
	}
	folder := fmt.Sprintf("/packetwalk-%s-linux-%s/", m.version, arch)
	entry, err := newLayer(ctx, []images.File{
		{Path: "/usr/local/bin/packetwalk", Link: folder + "packetwalk"},
		{Path: "/usr/local/bin/kubectl-packetwalk", Link: folder + "packetwalk"},
		{Path: "/entrypoint", Source: filepath.Join(m.root, "deploy", "lab-image", "entrypoint"), Mode: 0o755},
	})
	if err != nil {
		return err
	}
	img, err := labImage(arch, m.labels(), m.created, base, archive, entry)
	if err != nil {
		return err
	}
	index, err := makeIndex(m.labels(), img)
	if err != nil {
		return err
	}
	name := "packetwalk.dev/lab:" + m.version
	if err := writeArchive(ctx, m.archive, name, index, []v1.Image{img}); err != nil {
		return err
	}
	info, err := os.Stat(m.archive)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s, %d MB\n", m.archive, name, info.Size()/1e6)
	return nil
}

func labImage(arch string, labels map[string]string, created time.Time, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		kind, err := l.MediaType()
		if err != nil {
			return nil, err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: kind, History: v1.History{Created: v1.Time{Time: created},
			CreatedBy: "make lab-image"}}); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: created}
	config.Config = v1.Config{Env: []string{"PATH=/usr/local/bin:" + program.Path}, Labels: labels, WorkingDir: "/",
		Entrypoint: []string{"/entrypoint"}, ExposedPorts: labPorts, Volumes: labVolumes, StopSignal: "SIGTERM"}
	return mutate.ConfigFile(img, config)
}
