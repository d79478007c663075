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
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/distribution"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestApply: what the pod says comes before what its image does (pkg/kubelet/kuberuntime; containerd's CRI, WithImageConfig).
func TestApply(t *testing.T) {
	image := Image{Layers: []string{"/l"}, Config: images.Config{Entrypoint: []string{"/e"}, Cmd: []string{"c"}, Env: []string{"A=1"},
		User: "web:logs", WorkingDir: "/w", StopSignal: "SIGQUIT"}}
	full := func(change func(*container.Spec)) container.Spec {
		s := container.Spec{Layers: []string{"/l"}, ImageEnv: []string{"A=1"}, User: "web", WorkingDir: "/w", StopSignal: unix.SIGQUIT,
			Command: []string{"/e"}, Args: []string{"c"}}
		change(&s)
		return s
	}
	for name, tt := range map[string]struct{ pod, want container.Spec }{
		"nothing":           {container.Spec{}, full(func(*container.Spec) {})},
		"arguments":         {container.Spec{Args: []string{"x"}}, full(func(s *container.Spec) { s.Args = []string{"x"} })},
		"working directory": {container.Spec{WorkingDir: "/x"}, full(func(s *container.Spec) { s.WorkingDir = "/x" })},
		"command": {container.Spec{Command: []string{"/x"}}, full(func(s *container.Spec) {
			s.Command, s.Args = []string{"/x"}, nil
		})},
	} {
		got := tt.pod
		if err := image.Apply(&got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: want -, got +\n%s", name, d)
		}
	}
	for text, want := range map[string]unix.Signal{"": 0, "TERM": unix.SIGTERM, "9": unix.SIGKILL, "sigrtmin+3": 37, "x": -1, "0": -1} {
		s, i := container.Spec{}, Image{Config: images.Config{StopSignal: text}}
		if err := i.Apply(&s); (err != nil) != (want < 0) || err == nil && s.StopSignal != want {
			t.Errorf("stop signal %q: %v, %v", text, s.StopSignal, err)
		}
	}
}

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

// TestBase: an image that is there for its program has the small part of the distribution below it, one that is a distribution the whole.
func TestBase(t *testing.T) {
	var missing error
	f := newFinder(t, &missing)
	for ref, part := range map[string]string{"nginx": "small", "ubuntu": "whole", "registry.k8s.io/pause": ""} {
		i, err := f.Image(t.Context(), Request{Ref: ref})
		if err != nil {
			t.Fatal(err)
		}
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
		got, err := f.Image(t.Context(), Request{Ref: ref})
		if err != nil || got.App == "" || len(got.Layers) != 3 || asked != 0 {
			t.Errorf("%s: %+v, %v, asked %d times", ref, got, err, asked)
		}
	}
	for _, ref := range []string{"nginx@sha256:" + strings.Repeat("1", 64), "example.org/shop"} {
		got, err := f.Image(t.Context(), Request{Ref: ref})
		if !errors.Is(err, images.ErrNotFound) || !strings.Contains(err.Error(), "packetwalk image load "+ref) ||
			!strings.Contains(err.Error(), "cannot be pulled: no network") {
			t.Errorf("%s: %+v, %v", ref, got, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, not 2", asked)
	}
	f.NoNames = true
	if _, err := f.Image(t.Context(), Request{Ref: "nginx:1.27"}); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("with names that mean what registries have: %v", err)
	}
	if got, err := f.Image(t.Context(), Request{Ref: "packetwalk/hello"}); err != nil || got.App != "hello" {
		t.Errorf("one of our own: %+v, %v", got, err)
	}
	f.NoNames, missing = false, nil
	if _, err := f.Image(t.Context(), Request{Ref: "NGINX"}); err == nil || errors.Is(err, images.ErrNotFound) {
		t.Errorf("a reference that is none: %v", err)
	}
	store, err := f.BuiltIn.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Assemble(t.Context(), images.Assembly{Name: "nginx:1.27", Layers: []images.Layer{{Dir: t.TempDir()}}}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Image(t.Context(), Request{Ref: "nginx:1.27"}); err != nil || got.App != "" || len(got.Layers) != 1 {
		t.Errorf("of one that is loaded: %+v, %v", got, err)
	}
}

// TestBuiltIn: an application's image is made once, has what the catalog says, shares layers with others, and is made again when the
// program is another one.
func TestBuiltIn(t *testing.T) {
	var missing error
	b := newFinder(t, &missing).BuiltIn
	image := func(name string) Image {
		t.Helper()
		i, err := b.Image(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	nginx, kuard, ubuntu, pause := image("nginx"), image("kuard"), image("ubuntu"), image("pause")
	if again := image("nginx"); again.ID != nginx.ID {
		t.Errorf("%s, and again %s", nginx.ID, again.ID)
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
	if _, err := b.Image(t.Context(), "coredns"); err == nil || !strings.Contains(err.Error(), "there is no program for /coredns") {
		t.Errorf("without the program: %v", err)
	}
	store, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Program, []byte("22"), 0o755); err != nil {
		t.Fatal(err)
	}
	other := image("nginx")
	if text, err := os.ReadFile(other.Layers[1] + programPath); err != nil || string(text) != "22" || other.ID == nginx.ID {
		t.Errorf("of another program: %+v, %q, %v", other, text, err)
	}
	if _, err := store.Image(t.Context(), nginx.ID); err != nil { // another lab's
		t.Errorf("the one of the old program: %v", err)
	}
	yesterday := time.Now().Add(-kept)
	blob := filepath.Join(filepath.Dir(nginx.Layers[0]), "../blobs", strings.Replace(nginx.ID, ":", "/", 1))
	if err := os.Chtimes(blob, yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Program, []byte("333"), 0o755); err != nil {
		t.Fatal(err)
	}
	image("nginx")
	if _, err := store.Image(t.Context(), nginx.ID); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("the one of an old program is still there: %v", err)
	}
	if _, err := store.Image(t.Context(), other.ID); err != nil {
		t.Errorf("the one before: %v", err)
	}
}
