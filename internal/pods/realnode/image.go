package realnode

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// An Image is a container image of programs of ours.
type Image struct {
	Reference  string // with its tag, as a pod names it
	Entrypoint []string
	Cmd        []string
	Env        []string
	Layers     [][]ImageFile // from the lowest up; those that are the same are one
}

// An ImageFile is one file of a layer: the machine's program Source, or a symbolic link.
type ImageFile struct {
	Path   string // absolute
	Source string
	Link   string
}

// WriteImages writes images as an archive, as docker save does: what containerd and docker load read (github.com/moby/docker-image-spec,
// "Combined Image JSON + Filesystem Changeset"). The archive is whole when it is there.
func WriteImages(path string, images []Image) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".partial-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	a := archive{dir: dir, layers: map[string]string{}}
	var manifest []map[string]any
	for _, i := range images {
		one, err := a.add(i)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Reference, err)
		}
		manifest = append(manifest, one)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := a.text("manifest.json", text); err != nil {
		return err
	}
	partial := filepath.Join(dir, "archive")
	if _, err := writeTar(partial, a.files); err != nil {
		return err
	}
	return os.Rename(partial, path)
}

// An archive is being made: what goes into it lies in dir.
type archive struct {
	dir    string
	files  []ImageFile
	layers map[string]string // the digests of layers, by what is in them
}

// add adds an image's layers and configuration, and returns its entry in the manifest.
func (a *archive) add(i Image) (map[string]any, error) {
	var ids, names []string
	for _, files := range i.Layers {
		key := fmt.Sprintf("%q", files)
		if a.layers[key] == "" {
			file := filepath.Join(a.dir, fmt.Sprintf("layer.%d", len(a.layers)))
			digest, err := writeTar(file, files)
			if err != nil {
				return nil, err
			}
			a.layers[key] = digest
			a.files = append(a.files, ImageFile{Path: "/" + digest + ".tar", Source: file})
		}
		ids, names = append(ids, "sha256:"+a.layers[key]), append(names, a.layers[key]+".tar")
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
	if err != nil {
		return nil, err
	}
	name := digest(config) + ".json"
	return map[string]any{"Config": name, "RepoTags": []string{i.Reference}, "Layers": names}, a.text(name, config)
}

// text adds a file of that content.
func (a *archive) text(name string, content []byte) error {
	file := filepath.Join(a.dir, name)
	a.files = append(a.files, ImageFile{Path: "/" + name, Source: file})
	return os.WriteFile(file, content, 0o600)
}

// writeTar writes files as a tape archive, all executable, and returns its digest.
func writeTar(path string, files []ImageFile) (digest string, err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	hash := sha256.New()
	w := tar.NewWriter(io.MultiWriter(out, hash))
	for _, f := range files {
		if err := addFile(w, f); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func addFile(w *tar.Writer, f ImageFile) error {
	name := f.Path[1:]
	if f.Link != "" {
		return w.WriteHeader(&tar.Header{Name: name, Mode: 0o777, Linkname: f.Link, Typeflag: tar.TypeSymlink})
	}
	in, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: info.Size(), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
