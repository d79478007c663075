package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// A layer is the files of a folder, or else entries.
type layer struct {
	folder  string
	entries []entry
}

// An entry is a file with the text, or with what the machine's file source has; where it has a target, a symbolic link; where its name ends
// with a slash, a folder.
type entry struct {
	name, target, source string
	text                 string
	mode                 int64 // as tar has it: 0o4755 with setuid
}

// A recipe says what an image has, layers from the lowest up.
type recipe struct {
	layers []layer
	config v1.Config
}

// archiveOf makes the images, by name, as one archive in the folder cache, or finds it there. What was there of other images goes.
func archiveOf(cache string, recipes map[name.Tag]recipe) (string, error) {
	file := filepath.Join(cache, "images-"+key(recipes)+".tar")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	images, layers := map[name.Tag]v1.Image{}, map[string]v1.Layer{}
	for tag, r := range recipes {
		img, err := r.image(layers)
		if err != nil {
			return "", fmt.Errorf("%s: %w", tag, err)
		}
		images[tag] = img
	}
	old, err := filepath.Glob(filepath.Join(cache, "images-*"))
	for _, f := range old {
		err = errors.Join(err, os.Remove(f))
	}
	if err != nil {
		return "", err
	}
	partial := file + ".partial"
	if err := tarball.MultiWriteToFile(partial, images); err != nil {
		return "", err
	}
	return file, os.Rename(partial, file)
}

// key tells recipes apart. A folder and a source stand for what is in them: their paths have versions.
func key(recipes map[name.Tag]recipe) string {
	var lines []string
	for tag, r := range recipes {
		lines = append(lines, fmt.Sprintf("%s %+v\n", tag, r))
	}
	slices.Sort(lines)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines, ""))))[:16]
}

// image makes the image; layers are those that are made already.
func (r recipe) image(layers map[string]v1.Layer) (v1.Image, error) {
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: goruntime.GOARCH, Config: r.config})
	if err != nil {
		return nil, err
	}
	for _, l := range r.layers {
		key := fmt.Sprint(l)
		if layers[key] == nil {
			open := func() (io.ReadCloser, error) { return archive(l.write), nil }
			if layers[key], err = tarball.LayerFromOpener(open); err != nil {
				return nil, err
			}
		}
		if img, err = mutate.AppendLayers(img, layers[key]); err != nil {
			return nil, err
		}
	}
	return img, nil
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

func (l layer) write(w *tar.Writer) error {
	if l.folder != "" {
		return w.AddFS(os.DirFS(l.folder))
	}
	for _, e := range l.entries {
		if err := e.write(w); err != nil {
			return err
		}
	}
	return nil
}

func (e entry) write(w *tar.Writer) error {
	h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.text)), Linkname: e.target}
	var content io.Reader = strings.NewReader(e.text)
	switch {
	case e.target != "":
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
	case strings.HasSuffix(e.name, "/"):
		h.Typeflag = tar.TypeDir
	case e.source != "":
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		h.Size, content = info.Size(), f
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, content)
	return err
}

// loadImages gives the machine's store the suite's images: light nodes run them, and the lab's registry has them for real ones.
func (l lab) loadImages(ctx context.Context) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "packetwalk", "e2e")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	recipes, err := suiteRecipes(ctx, cache)
	if err != nil {
		return err
	}
	file, err := archiveOf(cache, recipes)
	if err != nil {
		return err
	}
	_, err = l.packetwalk(ctx, "image", "load", file)
	return err
}
