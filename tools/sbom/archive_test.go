package sbom

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"packetwalk.dev/internal/testing/kerneltest"
)

const dpkgStatus = `Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12
Description: x
 Package: none

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
`

// TestReadArchive: a Go program's modules and a root's packages are found in both kinds of archives, and a program of another kind is refused.
func TestReadArchive(t *testing.T) {
	program, err := os.ReadFile(filepath.Join("..", "..", "bin", "packetwalk-cni"))
	if err != nil {
		kerneltest.Missing(t, "%v: make build", err)
	}
	root := archive(t, "./usr/lib/os-release", "NAME=\"Debian\"\nVERSION_ID=\"13\"\n", "./var/lib/dpkg/status", dpkgStatus)
	whole := archive(t, "lab/LICENSE", "x", "lab/packetwalk-cni", string(program), "lab/base/whole.tar", string(root), "lab/empty", "")
	for _, c := range []struct {
		name, file string
		content    []byte
		want       []string
		fails      string
	}{
		{"gzip", "a.tar.gz", whole, []string{"pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13", "pkg:golang/packetwalk.dev@v9"}, ""},
		{"zstd", "a.tar.zst", whole, []string{"pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13", "pkg:golang/packetwalk.dev@v9"}, ""},
		{"not Go's", "a.tar.gz", archive(t, "lab/cc", "\x7fELF\x02\x01\x01"), nil, "lab/cc"},
		{"no root", "a.tar.gz", archive(t, "whole.tar", string(archive(t, "./etc/passwd", "x"))), nil, "no Debian root"},
		{"cut off", "a.tar.gz", whole[:len(whole)-2000], nil, "unexpected EOF"},
		{"other kind", "a.zip", whole, nil, "want .tar.gz"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(file, compressed(t, c.file, c.content), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := ReadArchive(file, "v9")
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v, %v", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var debian int
			for _, want := range c.want {
				if !slices.ContainsFunc(got, func(c Component) bool { return c.PURL == want }) {
					t.Errorf("no %s in %v", want, got)
				}
			}
			for _, component := range got {
				if strings.HasPrefix(component.PURL, "pkg:deb/") {
					debian++
				}
			}
			if debian != 1 {
				t.Errorf("%d packages of Debian", debian)
			}
		})
	}
}

// archive returns a tar of files: name, content, and so on.
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for f := range slices.Chunk(files, 2) {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Size: int64(len(f[1])), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compressed(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if strings.HasSuffix(name, ".zst") {
		var err error
		if w, err = zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
