package usercluster

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/base/imageref"
)

// TestImage: a release's plugin names its image by the digest, and a user's image is taken as it is.
func TestImage(t *testing.T) {
	imageref.Digest = "sha256:" + strings.Repeat("a", 64)
	defer func() { imageref.Digest = "" }()
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Version: "v1.2.0"}, "packetwalk.dev/packetwalk:v1.2.0@" + imageref.Digest},
		{Options{Version: "v1.2.0", Image: "corp/pw:1"}, "corp/pw:1"},
	} {
		if got := tt.o.image(); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.o, got, tt.want)
		}
	}
}
