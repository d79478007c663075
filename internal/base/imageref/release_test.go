package imageref

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

// TestImage: each version gives a name that registries take, a tag and no digest.
func TestImage(t *testing.T) {
	for version, tag := range map[string]string{
		"v1.2.0":                         "v1.2.0",
		"v0.12.0-3-gb393b40-dirty":       "v0.12.0-3-gb393b40-dirty",
		"v1.2.0+incompatible":            "v1.2.0-incompatible",
		"b393b40-dirty":                  "b393b40-dirty",
		"":                               "dev",
		"+":                              "dev",
		".v1":                            "v1",
		"-dirty":                         "dirty",
		"feature/é x@sha256:0":           "feature---x-sha256-0",
		"v1\nrm -rf /":                   "v1-rm--rf--",
		strings.Repeat("7", longest+100): strings.Repeat("7", longest),
	} {
		image := Image(version)
		if want := Repository + ":" + tag; image != want {
			t.Errorf("version %q: %q, want %q", version, image, want)
		}
		ref, err := name.NewTag(image, name.StrictValidation)
		if err != nil {
			t.Errorf("version %q: %v", version, err)
			continue
		}
		if ref.RegistryStr() != "packetwalk.dev" || ref.TagStr() != tag {
			t.Errorf("version %q: registry %q, tag %q", version, ref.RegistryStr(), ref.TagStr())
		}
	}
}

func TestPinned(t *testing.T) {
	if got := Pinned("v1.2.0"); got != "packetwalk.dev/packetwalk:v1.2.0" {
		t.Errorf("without a digest: %s", got)
	}
	Digest = "sha256:" + strings.Repeat("a", 64)
	defer func() { Digest = "" }()
	pinned := Pinned("v1.2.0")
	if pinned != "packetwalk.dev/packetwalk:v1.2.0@"+Digest {
		t.Errorf("with a digest: %s", pinned)
	}
	if ref, err := name.NewDigest(pinned, name.StrictValidation); err != nil || ref.DigestStr() != Digest {
		t.Errorf("%s: %v, %v", pinned, ref, err)
	}
}
