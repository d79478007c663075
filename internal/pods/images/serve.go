package images

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"packetwalk.dev/internal/base/limitio"
)

// A Manifest is what a registry answers for a reference (OCI distribution specification, "Pulling manifests").
type Manifest struct {
	MediaType string
	Digest    string // "sha256:…"
	Content   []byte
}

// Manifest gives an image's manifest; where the image was chosen from an index for several platforms, and the reference does not name the
// manifest itself, that index. [ErrNotFound] is in the error's chain where the store does not have it.
func (s *Store) Manifest(ref string) (Manifest, error) {
	i, err := s.readIndex()
	if err != nil {
		return Manifest{}, err
	}
	at, err := i.find(ref)
	if err != nil {
		return Manifest{}, err
	}
	d := i.Manifests[at[0]]
	if from, ok := indexOf(d); ok && digestOf(ref) != d.Digest.String() {
		m, err := s.readManifest(v1.Descriptor{Digest: from, MediaType: types.OCIImageIndex})
		// An older version kept no index.
		if !errors.Is(err, fs.ErrNotExist) || digestOf(ref) == from.String() {
			return m, err
		}
	}
	return s.readManifest(d)
}

// readManifest reads a manifest or an index; the type is what it says itself, else its descriptor's.
func (s *Store) readManifest(d v1.Descriptor) (Manifest, error) {
	f, err := s.root.Open(blobPath(d.Digest))
	if err != nil {
		return Manifest{}, s.damaged(err)
	}
	defer f.Close()
	content, err := limitio.Read(f, s.most.json)
	if err != nil {
		return Manifest{}, s.damaged(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(content)); sum != d.Digest.Hex {
		return Manifest{}, s.damaged(fmt.Errorf("%s has other content, %s", d.Digest, sum))
	}
	m := Manifest{MediaType: string(d.MediaType), Digest: d.Digest.String(), Content: content}
	if said := mediaType(content); said != "" {
		m.MediaType = said
	}
	return m, nil
}

// Blob opens a configuration or a layer. What it reads is as it came: whoever gets it checks the digest, as containerd does. [ErrNotFound]
// is in the error's chain where there is none.
func (s *Store) Blob(digest string) (*os.File, error) {
	h, err := v1.NewHash(digest)
	if err != nil || h.Algorithm != "sha256" {
		return nil, fmt.Errorf("%q is no digest of sha256: %w", digest, ErrNotFound)
	}
	f, err := s.root.Open(blobPath(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w", digest, ErrNotFound)
	}
	return f, err
}

// mediaType returns what a manifest or an index says it is, "" where it does not.
func mediaType(content []byte) string {
	var m struct {
		MediaType string `json:"mediaType"`
	}
	_ = json.Unmarshal(content, &m) // it was parsed when it came
	return m.MediaType
}
