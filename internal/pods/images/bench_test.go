package images

import (
	"fmt"
	"os"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// BenchmarkImage: an image that is unpacked, as each start of a container asks for it.
func BenchmarkImage(b *testing.B) {
	kerneltest.NeedRoot(b)
	s := newStore(b)
	layers := make([][]byte, 10)
	for n := range layers {
		layers[n] = tarOf(b, regular("f", string(rune('a'+n))))
	}
	mustLoad(b, s, saveDocker(b, imageOf(b, nil, layers...), "a:1"))
	for b.Loop() {
		if _, err := s.Image(b.Context(), "a:1"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUnpack: the archive that IMAGES_BENCH_ARCHIVE names, loaded and unpacked.
func BenchmarkUnpack(b *testing.B) {
	kerneltest.NeedRoot(b)
	path := os.Getenv("IMAGES_BENCH_ARCHIVE")
	if path == "" {
		b.Skip("set IMAGES_BENCH_ARCHIVE")
	}
	for b.Loop() {
		s := newStore(b)
		img := mustLoad(b, s, path)[0]
		if _, err := s.Image(b.Context(), img.Digest); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(img.Size)/1e6, "MB")
	}
}

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
