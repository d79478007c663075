package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"packetwalk.dev/internal/pods/distribution"
)

// agnhost is the repository of the image that most specs run.
const agnhost = "registry.k8s.io/e2e-test-images/agnhost"

// image makes agnhost's image as its Dockerfile does (k8s.io/kubernetes/test/images/agnhost), of upstream's program and a distribution of
// this machine's packages in place of Alpine, and loads it under the names that the suite has. It lacks /coredns and iperf.
func (l lab) image(ctx context.Context) error {
	tags, err := agnhostTags(ctx)
	if err != nil {
		return err
	}
	var store distribution.Store
	base, err := store.Root(ctx)
	if err != nil {
		return err
	}
	own, err := agnhostFiles(ctx, base)
	if err != nil {
		return err
	}
	img, err := agnhostImage(base, own)
	if err != nil {
		return err
	}
	file := filepath.Join(report, "agnhost.tar")
	images := map[name.Tag]v1.Image{}
	for _, tag := range tags {
		images[tag] = img
	}
	if err := tarball.MultiWriteToFile(file, images); err != nil {
		return err
	}
	_, err = l.packetwalk(ctx, "image", "load", file)
	return errors.Join(err, os.Remove(file))
}

// agnhostTags are the image's names, as the suite prints them.
func agnhostTags(ctx context.Context) (tags []name.Tag, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "e2e", "e2e.test"), "-list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("list the suite's images: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, agnhost+":") {
			tag, err := name.NewTag(line)
			if err != nil {
				return nil, err
			}
			tags = append(tags, tag)
		}
	}
	if len(tags) == 0 {
		return nil, errors.New("the suite names no image of agnhost")
	}
	return tags, nil
}

// An entry is a file, or where it has a target a link, of a layer.
type entry struct {
	name, target string
	text         []byte
	mode         int64
}

// agnhostFiles are what the image has over its base.
func agnhostFiles(ctx context.Context, base string) ([]entry, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	list.Dir = "controlplane/e2e"
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find upstream's sources: %w", err)
	}
	porter := filepath.Join(strings.TrimSpace(string(out)), "test/images/agnhost/porter")
	files := []entry{{name: "agnhost-2", target: "agnhost"}}
	for _, f := range []struct {
		name, from, more string
		mode             int64
	}{
		{"agnhost", filepath.Join(bin, "e2e", "agnhost"), "", 0o755},
		{"localhost.crt", filepath.Join(porter, "localhost.crt"), "", 0o644},
		{"localhost.key", filepath.Join(porter, "localhost.key"), "", 0o644},
		{"etc/passwd", filepath.Join(base, "etc/passwd"), "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n", 0o644},
		{"etc/group", filepath.Join(base, "etc/group"), "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n", 0o644},
	} {
		text, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		files = append(files, entry{name: f.name, text: append(text, f.more...), mode: f.mode})
	}
	return files, nil
}

// agnhostImage is an image of a directory and, over it, files.
func agnhostImage(base string, files []entry) (v1.Image, error) {
	var layers []v1.Layer
	for _, write := range []func(*tar.Writer) error{
		func(w *tar.Writer) error { return w.AddFS(os.DirFS(base)) },
		func(w *tar.Writer) error { return writeEntries(w, files) },
	} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return archive(write), nil })
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: goruntime.GOARCH, Config: v1.Config{
		Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layers...)
}

// archive is what a function writes into an archive.
func archive(write func(*tar.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		w.CloseWithError(errors.Join(write(t), t.Close()))
	}()
	return r
}

func writeEntries(w *tar.Writer, files []entry) error {
	files = append(slices.Clone(files), entry{name: "uploads/", mode: 0o755})
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), Linkname: f.target}
		switch {
		case f.target != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, bytes.NewReader(f.text)); err != nil {
			return err
		}
	}
	return nil
}
