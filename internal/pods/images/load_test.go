package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"packetwalk.dev/internal/testing/kerneltest"
)

// sample is an image that says something of everything.
func sample(t testing.TB) v1.Image {
	return imageOf(t, func(c *v1.ConfigFile) {
		c.Config = v1.Config{Entrypoint: []string{"/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, User: "7:8", WorkingDir: "/srv",
			StopSignal: "SIGINT", Volumes: map[string]struct{}{"/b": {}, "/a": {}},
			ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}, "443": {}}}
	}, tarOf(t, regular("app", "program")), tarOf(t, regular("etc/conf", "text")))
}

var sampleConfig = Config{Entrypoint: []string{"/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, User: "7:8", WorkingDir: "/srv",
	StopSignal: "SIGINT", Volumes: []string{"/a", "/b"}, Ports: []string{"443/tcp", "53/udp", "80/tcp"}}

// compress rewrites a file compressed.
func compress(t testing.TB, path string, zipped bool) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if zipped {
		w := gzip.NewWriter(&b)
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	} else {
		var w *zstd.Encoder
		w, err = zstd.NewWriter(&b)
		data = w.EncodeAll(data, nil)
		b.Write(data)
	}
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFormats: an image is the same from whatever it comes in.
func TestFormats(t *testing.T) {
	kerneltest.NeedRoot(t)
	img := sample(t)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	docker := saveDocker(t, img, "docker.io/library/app:1")
	dir := saveLayout(t, img, "docker.io/library/app:1")
	for name, tt := range map[string]struct {
		path   string
		digest string // "" where the archive has no manifest
	}{
		"docker":            {docker, ""},
		"docker gzip":       {compress(t, saveDocker(t, img, "app:1"), true), ""},
		"layout":            {dir, digest.String()},
		"OCI archive":       {pack(t, dir), digest.String()},
		"OCI archive, gzip": {compress(t, pack(t, dir), true), digest.String()},
		"OCI archive, zstd": {compress(t, pack(t, dir), false), digest.String()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			loaded := mustLoad(t, s, tt.path)
			if len(loaded) != 1 || loaded[0].Name != "app:1" || tt.digest != "" && loaded[0].Digest != tt.digest {
				t.Fatalf("%+v, want app:1 with %s", loaded, tt.digest)
			}
			if listed, err := s.List(t.Context()); err != nil || cmp.Diff(loaded, listed) != "" {
				t.Errorf("listed: %v %s", err, cmp.Diff(loaded, listed))
			}
			got, layers := unpack(t, s, "app:1")
			if d := cmp.Diff(sampleConfig, got.Config); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(loaded[0], got); d != "" {
				t.Error(d)
			}
			for n, want := range []string{"app", "etc/conf"} {
				if _, err := os.Stat(filepath.Join(layers[n], want)); err != nil {
					t.Error(err)
				}
			}
			for _, ref := range []string{"app:1", "docker.io/library/app:1", got.Digest, got.Digest[:19], "app@" + got.Digest} {
				if again, err := find(s, ref); err != nil || again.Digest != got.Digest {
					t.Errorf("%s: %v", ref, err)
				}
			}
			for _, ref := range []string{"app", "app:2", "other/app:1", "sha256:" + strings.Repeat("0", 64)} {
				if _, err := find(s, ref); !errors.Is(err, ErrNotFound) {
					t.Errorf("%s: %v", ref, err)
				}
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestPipe: what docker save writes can be read as it comes.
func TestPipe(t *testing.T) {
	data, err := os.ReadFile(saveDocker(t, sample(t), "app:1"))
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = w.Write(data)
		w.Close()
	}()
	if got := mustLoad(t, newStore(t), "/proc/self/fd/"+strconv.Itoa(int(r.Fd()))); len(got) != 1 || got[0].Name != "app:1" {
		t.Errorf("%+v", got)
	}
}

// TestStuckPipe: a writer that says nothing is not waited for when the context ends.
func TestStuckPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.Load(ctx, "/proc/self/fd/"+strconv.Itoa(int(r.Fd())))
		ended <- err
	}()
	cancel()
	if err := <-ended; err == nil {
		t.Error("loaded")
	}
}

// platform is an image for another machine.
func platform(t testing.TB, p v1.Platform) mutate.IndexAddendum {
	img := imageOf(t, func(c *v1.ConfigFile) { c.OS, c.Architecture, c.Variant = p.OS, p.Architecture, p.Variant },
		tarOf(t, regular("for", p.String())))
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}}
}

// TestPlatforms: of an index the image for this machine is taken, and found by the index's digest, too.
func TestPlatforms(t *testing.T) {
	other, another := v1.Platform{OS: "linux", Architecture: "s390x"}, v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	all := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.DockerManifestList), platform(t, other), platform(t, unknown),
		platform(t, here), platform(t, another))
	digest, err := all.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	loaded := mustLoad(t, s, saveLayout(t, all, "ghcr.io/a/b:v1"))
	if len(loaded) != 1 || loaded[0].Name != "ghcr.io/a/b:v1" {
		t.Fatalf("%+v", loaded)
	}
	i, err := s.readIndex()
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"ghcr.io/a/b@" + digest.String(), digest.String()} {
		if at, err := i.find(ref); err != nil || len(at) != 1 {
			t.Errorf("%s: %v, %v", ref, at, err)
		}
	}
	none := mutate.AppendManifests(empty.Index, platform(t, other), platform(t, another), platform(t, unknown))
	both := "is for linux/arm/v7, linux/s390x; this machine is linux/" + runtime.GOARCH
	alone := platform(t, other).Add.(v1.Image)
	for name, path := range map[string]string{"index": saveLayout(t, none, "a:1"), "image": saveLayout(t, alone, "a:1"),
		"docker": saveDocker(t, alone, "a:1")} {
		want := both
		if name != "index" {
			want = "is for linux/s390x; this machine is linux/" + runtime.GOARCH
		}
		if _, err := s.Load(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestNames: how names are shown, and what goes by them.
func TestNames(t *testing.T) {
	hash := strings.Repeat("0", 64)
	for ref, want := range map[string]string{
		"nginx": "nginx:latest", "docker.io/library/nginx:1.27": "nginx:1.27", "index.docker.io/library/nginx": "nginx:latest",
		"docker.io/user/app:v1": "user/app:v1", "registry.k8s.io/pause:3.10": "registry.k8s.io/pause:3.10",
		"localhost:5000/a/b": "localhost:5000/a/b:latest", "nginx@sha256:" + hash: "nginx@sha256:" + hash,
		"nginx:1@sha256:" + hash: "nginx@sha256:" + hash, "docker.io/library/a/b": "library/a/b:latest",
		"": "", "UPPER": "", "a b": "", "a\x1b[31m": "", "../x": "", "a/../b": "", "a//b": "", "nginx@sha256:1": "",
	} {
		got, err := normalize(ref)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", ref, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: the error has a control character", ref)
		}
	}
	for _, tt := range []struct{ file, tag, want string }{
		{"/x/shop.tar.gz", "", "shop:latest"}, {"shop-1.2.tar", "v1", "shop-1.2:v1"}, {"My App.tar", "", ""}, {"Shop.oci", "", "shop:latest"},
	} {
		if got := fileName(tt.file, tt.tag); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.file, got, tt.want)
		}
	}
}

// TestUnnamed: an archive's only image is named after the file; a layout's reference may be a tag.
func TestUnnamed(t *testing.T) {
	for ref, want := range map[string]string{"": "saved:latest", "v2": "saved:v2", "nginx:1.27": "nginx:1.27",
		"ghcr.io/a/b": "ghcr.io/a/b:latest"} {
		if got := mustLoad(t, newStore(t), saveLayout(t, sample(t), ref)); len(got) != 1 || got[0].Name != want {
			t.Errorf("%q: %+v, want %s", ref, got, want)
		}
	}
	if _, err := newStore(t).Load(t.Context(), saveLayout(t, sample(t), "A:B")); err == nil {
		t.Error("a name that is none was taken")
	}
}

// TestReplaced shows that a name moves to the image that was loaded last, and that blobs without an image are removed.
func TestReplaced(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	for _, text := range []string{"one", "two"} {
		mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, regular("same", "")), tarOf(t, regular("f", text))), "app:1"))
		_, layers := unpack(t, s, "app:1")
		if got, err := os.ReadFile(filepath.Join(layers[1], "f")); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if blobs, err := s.names(blobsDir); err != nil || len(blobs) != 4 {
		t.Errorf("%d blobs, %v", len(blobs), err)
	}
}

// TestSeenByOthers: what one changes in a store the others see, and what they do with what they see is theirs.
func TestSeenByOthers(t *testing.T) {
	s := newStore(t)
	other, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	file := saveDocker(t, imageOf(t, nil, tarOf(t, regular("f", "1"))), "a:1")
	for range 3 {
		if _, err := other.Manifest("a:1"); !errors.Is(err, ErrNotFound) {
			t.Fatalf("before: %v", err)
		}
		mustLoad(t, s, file)
		i, err := other.readIndex()
		if err != nil || len(i.Manifests) != 1 {
			t.Fatalf("%+v, %v", i, err)
		}
		i.Manifests[0] = entry{}
		if _, err := other.Manifest("a:1"); err != nil {
			t.Fatalf("after: %v", err)
		}
		if err := s.Remove(t.Context(), "a:1"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRemove: blobs stay as long as an image has them.
func TestRemove(t *testing.T) {
	s := newStore(t)
	base := tarOf(t, regular("base", ""))
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, base, tarOf(t, regular("f", "one"))), "one"))
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, base, tarOf(t, regular("f", "two"))), "two"))
	one, err := find(s, "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ref  string
		left int // blobs: a manifest, a configuration and two layers of an image
	}{{"", 7}, {"two", 4}, {one.Digest, 0}} {
		if tt.ref != "" {
			if err := s.Remove(t.Context(), tt.ref); err != nil {
				t.Fatal(err)
			}
		}
		if blobs, err := s.names(blobsDir); err != nil || len(blobs) != tt.left {
			t.Errorf("after rm %q: %d blobs, %v; want %d", tt.ref, len(blobs), err, tt.left)
		}
	}
	if err := s.Remove(t.Context(), "one"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}
