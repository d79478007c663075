package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/distribution"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/testing/kerneltest"
)

// newFinder finds images of a store of the test's own, which none is pulled into because of missing.
func newFinder(t *testing.T, missing *error) *Finder {
	t.Helper()
	kerneltest.NeedRoot(t)
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "packetwalk-app")
	if err := os.WriteFile(program, []byte("1"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Finder{
		Ensure: func(context.Context, Request) (*images.Store, bool, error) { return store, false, *missing },
		Own:    func(ref string) bool { return strings.HasPrefix(ref, "packetwalk/") },
		BuiltIn: &BuiltIn{Program: program, Open: func() (*images.Store, error) { return store, nil },
			Select: func(_ context.Context, part distribution.Part) (Distribution, error) {
				return Distribution{"d", func(_ context.Context, dir string) error {
					return os.MkdirAll(filepath.Join(dir, part.String()), 0o755)
				}}, nil
			}},
	}
}

// image finds an image and unpacks it.
func image(t *testing.T, found Found, err error) images.Image {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	i, err := found.Store.Image(t.Context(), found.Ref)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// TestBase: an image that is there for its program has the small part of the distribution below it, one that is a distribution the whole.
func TestBase(t *testing.T) {
	var missing error
	f := newFinder(t, &missing)
	for ref, part := range map[string]string{"nginx": "small", "ubuntu": "whole", "registry.k8s.io/pause": ""} {
		found, err := f.Find(t.Context(), Request{Ref: ref})
		i := image(t, found, err)
		var has []string
		for _, dir := range i.Layers {
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
	if got, err := f.Find(t.Context(), Request{Ref: "nginx:1.27"}); err != nil || got.App != "" || len(image(t, got, err).Layers) != 1 {
		t.Errorf("of one that is loaded: %+v, %v", got, err)
	}
}

// TestBuiltIn: an application's image is made once, has what the catalog says, shares layers with others, and is made again when the
// program is another one.
func TestBuiltIn(t *testing.T) {
	var missing error
	b := newFinder(t, &missing).BuiltIn
	of := func(name string) images.Image {
		t.Helper()
		a, err := app.ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := b.find(t.Context(), &a)
		return image(t, found, err)
	}
	nginx, kuard, ubuntu, pause := of("nginx"), of("kuard"), of("ubuntu"), of("pause")
	if again := of("nginx"); again.Digest != nginx.Digest {
		t.Errorf("%s, and again %s", nginx.Digest, again.Digest)
	}
	if d := cmp.Diff(nginx.Layers[:2], kuard.Layers[:2]); d != "" || nginx.Layers[0] == ubuntu.Layers[0] {
		t.Errorf("they share other layers than an application and a distribution do: %s", d)
	}
	want := images.Config{Cmd: []string{"nginx", "-g", "daemon off;"}, Env: []string{"PATH=" + program.Path, "NGINX_VERSION=1.27.5"},
		Ports: []string{"80/tcp"}}
	if d := cmp.Diff(want, nginx.Config); d != "" {
		t.Error(d)
	}
	if link, err := os.Readlink(nginx.Layers[2] + "/usr/sbin/nginx"); err != nil || link != programPath {
		t.Errorf("%s, %v", link, err)
	}
	if page, err := os.ReadFile(nginx.Layers[2] + "/usr/share/nginx/html/index.html"); err != nil || len(page) != 612 {
		t.Errorf("%s, %v", page, err)
	}
	if len(pause.Layers) != 2 {
		t.Errorf("an image without a distribution has %v", pause.Layers)
	}
	a, err := app.ByName("coredns")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.find(t.Context(), &a); err == nil || !strings.Contains(err.Error(), "there is no program for /coredns") {
		t.Errorf("without the program: %v", err)
	}
	store, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Program, []byte("22"), 0o755); err != nil {
		t.Fatal(err)
	}
	other := of("nginx")
	if text, err := os.ReadFile(other.Layers[1] + programPath); err != nil || string(text) != "22" || other.Digest == nginx.Digest {
		t.Errorf("of another program: %+v, %q, %v", other, text, err)
	}
	if _, err := store.Image(t.Context(), nginx.Digest); err != nil { // another lab's
		t.Errorf("the one of the old program: %v", err)
	}
	yesterday := time.Now().Add(-kept)
	blob := filepath.Join(filepath.Dir(nginx.Layers[0]), "../blobs", strings.Replace(nginx.Digest, ":", "/", 1))
	if err := os.Chtimes(blob, yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Program, []byte("333"), 0o755); err != nil {
		t.Fatal(err)
	}
	of("nginx")
	if _, err := store.Image(t.Context(), nginx.Digest); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("the one of an old program is still there: %v", err)
	}
	if _, err := store.Image(t.Context(), other.Digest); err != nil {
		t.Errorf("the one before: %v", err)
	}
}
