//go:build linux

package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/images"
)

// archive returns an archive as docker save writes it, of an image for this machine with a layer of size bytes.
func archive(t *testing.T, size int64) []byte {
	t.Helper()
	img, err := random.Image(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := tarball.Write(name.MustParseReference("shop:v1"), img, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestLoadTellsHowFarItIs: while an archive comes through a pipe, it is told how much has come, and no more when it is there.
func TestLoadTellsHowFarItIs(t *testing.T) {
	store, err := images.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	pipe, all := filepath.Join(t.TempDir(), "pipe"), archive(t, 2_000_000)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	told, tell := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		to, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		if err == nil {
			_, err = to.Write(all[:len(all)*3/4])
		}
		for line := make([]byte, 200); err == nil; {
			var n int
			if n, err = told.Read(line); strings.HasPrefix(string(line[:n]), pipe+": 1.") {
				break
			}
		}
		go func() { _, _ = io.Copy(io.Discard, told) }()
		if err == nil {
			_, err = to.Write(all[len(all)*3/4:])
			to.Close()
		}
		wrote <- err
	}()
	var out bytes.Buffer
	if err := loadImages(t.Context(), &out, imageLoader{store: store, tell: tell, every: time.Millisecond}, []string{pipe}); err != nil {
		t.Fatal(err)
	}
	tell.Close()
	if err := <-wrote; err != nil || !strings.HasPrefix(out.String(), "shop:v1 ") {
		t.Errorf("%v, %q", err, out.String())
	}
}

// TestSayElapsed: what takes long says so, and nothing is said after its end.
func TestSayElapsed(t *testing.T) {
	said := make(chan string, 100)
	stop := sayElapsed(writerFunc(func(p []byte) (int, error) { said <- string(p); return len(p), nil }), "building a of b", time.Millisecond)
	if line := <-said; line != "building a of b: 0 s so far\n" {
		t.Errorf("said %q", line)
	}
	stop()
	lines := len(said)
	time.Sleep(20 * time.Millisecond)
	if len(said) != lines {
		t.Error("something was said after the end")
	}
	quiet := sayElapsed(writerFunc(func([]byte) (int, error) { t.Error("something quick said so"); return 0, nil }), "", time.Hour)
	quiet()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
