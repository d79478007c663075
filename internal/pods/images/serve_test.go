package images

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestManifest: a name gives what its registry gave: the index for several platforms where there was one. The manifest itself goes by its
// digest, and both are octet by octet what came.
func TestManifest(t *testing.T) {
	one := sample(t)
	many := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: one,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	s := newStore(t)
	mustLoad(t, s, saveLayout(t, many, "many:1"))
	mustLoad(t, s, saveLayout(t, one, "one:1"))
	raw := func(i interface {
		RawManifest() ([]byte, error)
		Digest() (v1.Hash, error)
	}) ([]byte, string) {
		text, err := i.RawManifest()
		digest, err2 := i.Digest()
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		return text, digest.String()
	}
	oneText, oneDigest := raw(one)
	manyText, manyDigest := raw(many)
	for ref, want := range map[string]struct {
		text   []byte
		digest string
	}{
		"docker.io/library/many:1": {manyText, manyDigest}, "many@" + manyDigest: {manyText, manyDigest},
		"other.example/x@" + oneDigest: {oneText, oneDigest}, "one:1": {oneText, oneDigest},
	} {
		m, err := s.Manifest(ref)
		if err != nil || !bytes.Equal(m.Content, want.text) || m.Digest != want.digest {
			t.Errorf("%s: %s %s, %v; want %s", ref, m.Digest, m.Content, err, want.digest)
		}
	}
	if m, _ := s.Manifest("many:1"); !strings.Contains(m.MediaType, "index") {
		t.Errorf("an index is of type %q", m.MediaType)
	}
	if _, err := s.Manifest("none:1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
	layers, err := one.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Blob(digest.String())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	compressed, err2 := layers[0].Compressed()
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if want, err := io.ReadAll(compressed); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the layer's blob has %d bytes, %v; want %d", len(got), err, len(want))
	}
	for _, digest := range []string{"sha256:" + strings.Repeat("0", 64), "sha256:../../index.json", "x", ""} {
		if _, err := s.Blob(digest); !errors.Is(err, ErrNotFound) {
			t.Errorf("blob %q: %v", digest, err)
		}
	}
	if err := s.Remove(t.Context(), "many:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Blob(manyDigest); !errors.Is(err, ErrNotFound) {
		t.Errorf("the index of an image that was removed: %v", err)
	}
}

// TestDamaged: one image whose files are not what they should be keeps no other from being used, loaded or removed, and is well again when
// it is loaded again.
func TestDamaged(t *testing.T) {
	good, bad := imageOf(t, nil, tarOf(t, regular("good", "g"))), imageOf(t, nil, tarOf(t, regular("bad", "b")))
	config, err := bad.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := bad.Digest()
	if err != nil {
		t.Fatal(err)
	}
	archive := saveLayout(t, bad, "bad:1")
	for name, damage := range map[string]func(s *Store) error{
		"cut off": func(s *Store) error { return os.Truncate(filepath.Join(s.dir, blobPath(manifest)), 5) },
		"other":   func(s *Store) error { return os.WriteFile(filepath.Join(s.dir, blobPath(config)), []byte("{}"), 0o600) },
		"gone":    func(s *Store) error { return os.Remove(filepath.Join(s.dir, blobPath(config))) },
		"not a JSON": func(s *Store) error {
			return os.WriteFile(filepath.Join(s.dir, blobPath(manifest)), []byte("x"), 0o600)
		},
		"empty": func(s *Store) error { return os.Truncate(filepath.Join(s.dir, blobPath(config)), 0) },
		"null object": func(s *Store) error {
			return os.WriteFile(filepath.Join(s.dir, blobPath(manifest)), []byte("null"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			mustLoad(t, s, saveLayout(t, good, "good:1"))
			mustLoad(t, s, archive)
			if err := damage(s); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(s.dir); err != nil {
				t.Fatal(err)
			}
			list, err := s.List(t.Context())
			if err != nil || len(list) != 2 || list[0].Name != "bad:1" || list[0].Damage == "" || list[1].Damage != "" {
				t.Errorf("the list is %+v, %v", list, err)
			}
			if _, err := s.Manifest("good:1"); err != nil {
				t.Error(err)
			}
			if err := s.Save(t.Context(), io.Discard, "bad:1"); err == nil || !strings.Contains(err.Error(), "load the image again") {
				t.Errorf("the damaged image: %v", err)
			}
			mustLoad(t, s, archive)
			if _, err := s.Manifest("bad:1"); err != nil {
				t.Errorf("loaded again: %v", err)
			}
			if list, err = s.List(t.Context()); err != nil || list[0].Damage != "" {
				t.Errorf("loaded again: %+v, %v", list, err)
			}
			if err := damage(s); err != nil {
				t.Fatal(err)
			}
			if err := s.Remove(t.Context(), "bad:1"); err != nil {
				t.Error(err)
			}
			if list, err = s.List(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("removed: %+v, %v", list, err)
			}
		})
	}
}
