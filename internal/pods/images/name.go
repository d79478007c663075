package images

import (
	"fmt"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/base/imageref"
)

// normalize gives a reference as people write it shortest, with a tag or a digest.
func normalize(ref string) (string, error) {
	r, err := name.ParseReference(ref)
	if err != nil || !cleanPath(r.Context().Name()) {
		return "", fmt.Errorf("%q is no image reference such as nginx:1.27 or ghcr.io/user/app:v1", ref)
	}
	long := r.Name()
	hub := strings.TrimPrefix(long, name.DefaultRegistry+"/")
	for _, short := range []string{strings.TrimPrefix(hub, "library/"), hub} {
		if again, err := name.ParseReference(short); err == nil && again.Name() == long {
			return short, nil
		}
	}
	return long, nil
}

// cleanPath reports whether each element is a name: what else parses is taken for a path by others.
func cleanPath(s string) bool { return path.Clean("/"+s) == "/"+s && !strings.HasPrefix(s, ".") }

// Own is the prefix of the names of images that [Store.Assemble] makes. No other image takes the place of one of these.
const Own = "packetwalk.dev/"

// checkFree refuses a name that is not free to be given. Packetwalk's own image is loaded and pulled as others are.
func checkFree(named string) error {
	repository, _, _ := strings.Cut(named, ":")
	ours := strings.TrimSuffix(repository, "@sha256") == imageref.Repository
	if strings.HasPrefix(named, Own) && !ours {
		return fmt.Errorf("%s: names that begin with %s are those of the built-in applications' images: give it another", named, Own)
	}
	return nil
}

const (
	digestPrefix = "sha256:"
	fewestDigits = 12 // of a digest that is not written whole
)

// find gives the places of what a reference means: one name, or all entries of one digest.
func (i *index) find(ref string) ([]int, error) {
	match, err := matcher(ref)
	if err != nil {
		return nil, err
	}
	var at []int
	digests := map[string]bool{}
	for n, d := range i.Manifests {
		if match(d) {
			at = append(at, n)
			digests[d.Digest.String()] = true
		}
	}
	switch len(digests) {
	case 0:
		return nil, fmt.Errorf("image %s: %w: 'packetwalk image list' shows what is, 'packetwalk image load' loads more", ref, ErrNotFound)
	case 1:
		return at, nil
	}
	return nil, fmt.Errorf("several images have a digest that begins with %s: write more of it", ref)
}

// matcher reports whether an entry of the index is what a reference means. A digest may be that of the index for several platforms that
// the image came from: this is what people write into manifests.
func matcher(ref string) (func(entry) bool, error) {
	if hex, ok := strings.CutPrefix(ref, digestPrefix); ok && len(hex) >= fewestDigits && strings.Trim(hex, "0123456789abcdef") == "" {
		return func(d entry) bool {
			return strings.HasPrefix(d.Digest.String(), ref) || strings.HasPrefix(d.Annotations[fromIndex], ref)
		}, nil
	}
	wanted, err := normalize(ref)
	if err != nil {
		return nil, err
	}
	_, digest, ok := strings.Cut(wanted, "@")
	return func(d entry) bool {
		return d.Annotations[refName] == wanted || ok && (d.Digest.String() == digest || d.Annotations[fromIndex] == digest)
	}, nil
}

// digestOf returns the digest that a reference names, "" for none.
func digestOf(ref string) string {
	if strings.HasPrefix(ref, digestPrefix) {
		return ref
	}
	_, digest, _ := strings.Cut(ref, "@")
	return digest
}
