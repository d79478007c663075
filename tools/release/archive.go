package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// maxIndex bounds index.json of an image's archive, in bytes.
const maxIndex = 1 << 20

// imageDigest reads the digest of an archive's only image: an OCI image layout, whose index.json has it.
func imageDigest(archive io.Reader) (string, error) {
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("no index.json; not an archive of an OCI image layout")
		}
		if err != nil {
			return "", err
		}
		if h.Name != "index.json" {
			continue
		}
		var index v1.IndexManifest
		if err := json.NewDecoder(io.LimitReader(r, maxIndex)).Decode(&index); err != nil {
			return "", fmt.Errorf("index.json: %w", err)
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Digest.Algorithm != "sha256" {
			return "", fmt.Errorf("index.json: want one image with a SHA-256 digest, got %v", index.Manifests)
		}
		return index.Manifests[0].Digest.String(), nil
	}
}

// archiveFile is a file of an archive: its name there, and the file with its content.
type archiveFile struct {
	name, file string
	mode       int64
}

// writeArchive writes a .tar.gz of root's files, all with the same time.
func writeArchive(file string, files []archiveFile, created time.Time) error {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, f := range files {
		content, err := os.ReadFile(f.file)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(content)), ModTime: created, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
