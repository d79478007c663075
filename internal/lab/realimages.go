package lab

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/realnode"
)

// systemImages are the images of the pods' sandboxes and of AKS's own pods, which no registry of the lab has: an archive for each of our
// programs that they run, the one first that a kubelet must not start without.
type systemImages struct {
	names  []string
	images map[string][]realnode.Image
}

// systemImages lists them for the cluster.
func (l *nodes) systemImages() (systemImages, error) {
	references, err := manifests.Images(l.cluster())
	if err != nil {
		return systemImages{}, err
	}
	s := systemImages{images: map[string][]realnode.Image{}}
	s.add(l.bin.App, realnode.Image{Reference: realnode.SandboxImage, Entrypoint: []string{"/agnhost", "pause"}}, "/agnhost")
	for _, reference := range references {
		a, err := app.Resolve(reference)
		if err != nil {
			return systemImages{}, err
		}
		image := realnode.Image{Reference: reference, Entrypoint: a.Entrypoint, Cmd: a.Cmd, Env: a.Env}
		for _, p := range a.Programs {
			s.add(l.bin.App, image, p.Path)
		}
		for _, path := range a.Brought {
			s.add(l.runtime.Programs[filepath.Base(path)], image, path)
		}
	}
	return s, nil
}

// add adds an image with one program, which source is under that name too.
func (s *systemImages) add(source string, image realnode.Image, path string) {
	name := filepath.Base(source) + ".tar"
	if !slices.Contains(s.names, name) {
		s.names = append(s.names, name)
	}
	const program = "/.packetwalk/program"
	image.Layers = [][]realnode.ImageFile{{{Path: program, Source: source}}, {{Path: path, Link: program}}}
	s.images[name] = append(s.images[name], image)
}

// giveImages brings a real node the archives until it succeeds: on a disk that is full it does not. That takes a moment, and is done beside
// the node's start.
func (l *nodes) giveImages(ctx context.Context, n *node, s systemImages) {
	what := "the images of AKS's own pods on " + n.Name
	for l.fault(what, l.giveEach(n, s)) != nil && pause.For(ctx, keepSteady) {
	}
}

func (l *nodes) giveEach(n *node, s systemImages) error {
	for _, name := range s.names {
		archive := filepath.Join(l.dir.imageArchives(), name)
		if err := l.writeArchive(archive, s.images[name]); err != nil {
			return err
		}
		if err := realnode.Give(l.dir.nodeState(n.Name), archive); err != nil {
			return err
		}
	}
	return nil
}

// writeArchive writes an archive, once for the lab.
func (l *nodes) writeArchive(path string, images []realnode.Image) error {
	l.real.images.Lock()
	defer l.real.images.Unlock()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return realnode.WriteImages(path, images)
}
