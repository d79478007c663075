package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/layertest"
)

// newFinder finds images of a store of the test's own, which none is pulled into because of missing.
func newFinder(t *testing.T, missing *error) *Finder {
	t.Helper()
	kerneltest.NeedRoot(t)
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	roots, program := filepath.Join(t.TempDir(), "roots"), filepath.Join(t.TempDir(), "packetwalk-app")
	if err := os.WriteFile(program, []byte("1"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Finder{
		Ensure: func(context.Context, Request) (*images.Store, bool, error) { return store, false, *missing },
		Own:    func(ref string) bool { return strings.HasPrefix(ref, "packetwalk/") },
		BuiltIn: &BuiltIn{Program: program, Open: func() (*images.Store, error) { return store, nil },
			Base: newArchive(t, "1"), Roots: func() (string, error) { return roots, nil }},
	}
}

// layersOf returns the manifest's digest of an image, and a directory for each of its layers.
func layersOf(t *testing.T, found Found, err error) (digest string, layers []string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	m, err := found.Store.Manifest(found.Ref)
	if err != nil {
		t.Fatal(err)
	}
	return m.Digest, layertest.Unpack(t, found.Store.Blob, m.Digest)
}

// TestBase: the image of one program has the small part of Debian's files below it, one that is a distribution all.
func TestBase(t *testing.T) {
	var missing error
	f := newFinder(t, &missing)
	for ref, part := range map[string]string{"nginx": "small", "ubuntu": "small whole", "registry.k8s.io/pause": ""} {
		found, err := f.Find(t.Context(), Request{Ref: ref})
		_, layers := layersOf(t, found, err)
		var has []string
		for _, dir := range layers {
			for _, name := range []string{"small", "whole"} {
				if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
					has = append(has, name)
				}
			}
		}
		if strings.Join(has, " ") != part {
			t.Errorf("%s has %q, want %q", ref, has, part)
		}
	}
}

// TestFindOrder: loaded images come first, then the names of built-in applications, then the registry, which is not asked before. A
// digest means what it says.
func TestFindOrder(t *testing.T) {
	missing := errors.New("no network")
	f := newFinder(t, &missing)
	asked := 0
	ensure := f.Ensure
	f.Ensure = func(ctx context.Context, r Request) (*images.Store, bool, error) { asked++; return ensure(ctx, r) }
	for _, ref := range []string{"nginx:1.27", "docker.io/library/nginx", "packetwalk/hello"} {
		got, err := f.Find(t.Context(), Request{Ref: ref})
		if err != nil || got.App == "" || asked != 0 {
			t.Errorf("%s: %+v, %v, asked %d times", ref, got, err, asked)
		}
	}
	for _, ref := range []string{"nginx@sha256:" + strings.Repeat("1", 64), "example.org/shop"} {
		got, err := f.Find(t.Context(), Request{Ref: ref})
		if !errors.Is(err, images.ErrNotFound) || !strings.Contains(err.Error(), "packetwalk image load "+ref) ||
			!strings.Contains(err.Error(), "cannot be pulled: no network") {
			t.Errorf("%s: %+v, %v", ref, got, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, not 2", asked)
	}
	f.NoNames = true
	if _, err := f.Find(t.Context(), Request{Ref: "nginx:1.27"}); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("with names that mean what registries have: %v", err)
	}
	if got, err := f.Find(t.Context(), Request{Ref: "packetwalk/hello"}); err != nil || got.App != "hello" {
		t.Errorf("one of our own: %+v, %v", got, err)
	}
	f.NoNames, missing = false, nil
	if _, err := f.Find(t.Context(), Request{Ref: "NGINX"}); err == nil || errors.Is(err, images.ErrNotFound) {
		t.Errorf("a reference that is none: %v", err)
	}
	store, err := f.BuiltIn.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Assemble(t.Context(), images.Assembly{Name: "nginx:1.27", Layers: []images.Layer{{Dir: t.TempDir()}}}); err != nil {
		t.Fatal(err)
	}
	got, err := f.Find(t.Context(), Request{Ref: "nginx:1.27"})
	if _, layers := layersOf(t, got, err); got.App != "" || len(layers) != 1 {
		t.Errorf("of one that is loaded: %+v", got)
	}
}

// TestLeftAlone: a build continues when its only caller leaves, as the registry does after 20 seconds.
func TestLeftAlone(t *testing.T) {
	var missing error
	b := newFinder(t, &missing).BuiltIn
	store, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	b.Open = func() (*images.Store, error) {
		<-left
		return store, nil
	}
	a, err := app.ByName("nginx")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.find(ctx, &a); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	close(left)
	eventually.Succeeds(t, time.Minute, func() error {
		list, err := store.List(t.Context())
		if len(list) < 2 { // the application's image and the one of the files below it
			return errors.Join(err, fmt.Errorf("the store has %d images", len(list)))
		}
		return err
	})
	if _, err := b.find(t.Context(), &a); err != nil { // it waits until the build has ended
		t.Error(err)
	}
}

// TestBuiltIn: an application's image is made once, has what the catalog says, shares layers with others, and is made again when the
// program is another one.
func TestBuiltIn(t *testing.T) {
	var missing error
	b := newFinder(t, &missing).BuiltIn
	store, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) (images.Image, []v1.Hash) {
		t.Helper()
		a, err := app.ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := b.find(t.Context(), &a)
		if err != nil {
			t.Fatal(err)
		}
		m, err := store.Manifest(found.Ref)
		list, err2 := store.List(t.Context())
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		manifest, err := v1.ParseManifest(bytes.NewReader(m.Content))
		if err != nil {
			t.Fatal(err)
		}
		var layers []v1.Hash
		for _, l := range manifest.Layers {
			layers = append(layers, l.Digest)
		}
		return list[slices.IndexFunc(list, func(i images.Image) bool { return i.Name == found.Ref })], layers
	}
	nginx, nginxLayers := of("nginx")
	_, kuardLayers := of("kuard")
	_, ubuntuLayers := of("ubuntu")
	if again, _ := of("nginx"); again.Digest != nginx.Digest {
		t.Errorf("%s, and again %s", nginx.Digest, again.Digest)
	}
	if d := cmp.Diff(nginxLayers[:2], kuardLayers[:2]); d != "" || nginxLayers[0] == ubuntuLayers[0] {
		t.Errorf("they share other layers than an application and a distribution do: %s", d)
	}
	want := images.Config{Cmd: []string{"nginx", "-g", "daemon off;"}, Env: []string{"PATH=" + program.Path, "NGINX_VERSION=1.27.5"},
		Ports: []string{"80/tcp"}}
	if d := cmp.Diff(want, nginx.Config); d != "" {
		t.Error(d)
	}
	files := layertest.Unpack(t, store.Blob, nginx.Digest)
	if link, err := os.Readlink(files[2] + "/usr/sbin/nginx"); err != nil || link != programPath {
		t.Errorf("%s, %v", link, err)
	}
	if page, err := os.ReadFile(files[2] + "/usr/share/nginx/html/index.html"); err != nil || len(page) != 612 {
		t.Errorf("%s, %v", page, err)
	}
	if pause, _ := of("pause"); pause.Layers != 2 {
		t.Errorf("an image without a distribution has %d layers", pause.Layers)
	}
	a, err := app.ByName("coredns")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.find(t.Context(), &a); err == nil || !strings.Contains(err.Error(), "there is no program for /coredns") {
		t.Errorf("without the program: %v", err)
	}
	if err := os.WriteFile(b.Program, []byte("22"), 0o755); err != nil {
		t.Fatal(err)
	}
	other, _ := of("nginx")
	files = layertest.Unpack(t, store.Blob, other.Digest)
	if text, err := os.ReadFile(files[1] + programPath); err != nil || string(text) != "22" || other.Digest == nginx.Digest {
		t.Errorf("of another program: %+v, %q, %v", other, text, err)
	}
	if _, err := store.Manifest(nginx.Digest); err != nil { // another lab's
		t.Errorf("the one of the old program: %v", err)
	}
	yesterday := time.Now().Add(-kept)
	blob, err := store.Blob(nginx.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	if err := os.Chtimes(fmt.Sprintf("/proc/self/fd/%d", blob.Fd()), yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Program, []byte("333"), 0o755); err != nil {
		t.Fatal(err)
	}
	of("nginx")
	if _, err := store.Manifest(nginx.Digest); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("the one of an old program is still there: %v", err)
	}
	if _, err := store.Manifest(other.Digest); err != nil {
		t.Errorf("the one before: %v", err)
	}
}
