package images

import (
	"fmt"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// BenchmarkManifest: a look whether an image is there, in a store with many.
func BenchmarkManifest(b *testing.B) {
	kerneltest.NeedRoot(b)
	s := newStore(b)
	for n := range 100 {
		mustLoad(b, s, saveDocker(b, imageOf(b, nil, tarOf(b, regular("f", "x"))), fmt.Sprintf("a:%d", n)))
	}
	for b.Loop() {
		if _, err := s.Manifest("a:50"); err != nil {
			b.Fatal(err)
		}
	}
}
