package imageservice

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
)

// newHub starts a registry in this process with an image, shop:v1.
func newHub(t *testing.T) (host string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	image, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	if image, err = mutate.ConfigFile(image, platform(t, image)); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/shop:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
	return host
}

func platform(t *testing.T, image v1.Image) *v1.ConfigFile {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	return config
}

func parsed(t *testing.T, format string, args ...any) *cluster.Cluster {
	t.Helper()
	c, errs := cluster.Parse(nil, fmt.Appendf(nil, format, args...))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return c
}

// newLibrary returns the images of a lab, in a store of the test's own.
func newLibrary(t *testing.T, c *cluster.Cluster) *Service {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SUDO_UID", "")
	c0 := lifecycle.NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(lifecycle.Step) {})
	c0.SetCluster(c)
	l := &Service{Env: c0}
	c0.BuiltIn = &source.BuiltIn{Open: l.Open}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLibrary: what pods name is pulled for nodes of both kinds, as spec.images says, now and after a change; and images of AKS's own pods
// are not.
func TestLibrary(t *testing.T) {
	host := newHub(t)
	none := parsed(t, "spec: {addons: [http_application_routing]}")
	l := newLibrary(t, none)
	ref := host + "/shop:v1"
	nodes := l
	if _, err := nodes.Manifest(t.Context(), ref); !errors.Is(err, images.ErrNotFound) ||
		!strings.Contains(err.Error(), "allow the registry") || !strings.Contains(err.Error(), "packetwalk image load "+ref) {
		t.Errorf("a registry that is not allowed: %v", err)
	}
	own, err := manifests.Images(none)
	if err != nil || len(own) < 3 {
		t.Fatal(own, err)
	}
	for _, ref := range append(own, "packetwalk/hello", "docker.io/packetwalk/hello:latest") {
		if !l.isOurs(ref) {
			t.Errorf("%s would be pulled", ref)
		}
	}
	if l.isOurs("nginx") || l.isOurs("ghcr.io/packetwalk/hello") {
		t.Error("images of others would not be pulled")
	}
	allowed := parsed(t, `spec: {images: {privateRegistries: ["http://%s"], pull: never}}`, host)
	become := func(to *cluster.Cluster) {
		t.Helper()
		if err := l.Change(t.Context(), lifecycle.Change{From: l.Cluster(), To: to}); err != nil {
			t.Fatal(err)
		}
		l.SetCluster(to)
	}
	become(allowed)
	if _, err := nodes.Manifest(t.Context(), ref); !errors.Is(err, images.ErrNotFound) || !strings.Contains(err.Error(), "is not loaded") {
		t.Errorf("with pull: never: %v", err)
	}
	become(parsed(t, `spec: {images: {privateRegistries: ["http://%s"]}}`, host))
	if _, pulled, err := l.ensure(t.Context(), source.Request{Ref: ref, Never: true}); pulled || err != nil {
		t.Errorf("a pod that wants none pulled: %v, %v", pulled, err)
	}
	m, err := nodes.Manifest(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if blob, err := l.Blob(m.Digest); err != nil {
		t.Error(err)
	} else {
		blob.Close()
	}
	if _, pulled, err := l.ensure(t.Context(), source.Request{Ref: ref}); pulled || err != nil {
		t.Errorf("what is there is pulled: %v, %v", pulled, err)
	}
}

// TestPreload: what is to be preloaded comes without being asked for; what cannot is a fault until it is wanted no longer.
func TestPreload(t *testing.T) {
	host := newHub(t)
	l := newLibrary(t, parsed(t, `spec: {images: {privateRegistries: ["http://%[1]s"], preload: ["%[1]s/shop:v1", "%[1]s/none:v1"]}}`, host))
	await := func(what string, ok func() bool) {
		t.Helper()
		eventually.Succeeds(t, 10*time.Second, func() error {
			if !ok() {
				return fmt.Errorf("%s: the problems are %q", what, l.FaultLines())
			}
			return nil
		})
	}
	await("it is not preloaded", func() bool {
		store, err := l.Open()
		if err != nil {
			t.Fatal(err)
		}
		_, err = store.Manifest(host + "/shop:v1")
		return err == nil
	})
	await("what cannot be preloaded is no problem", func() bool {
		p := l.FaultLines()
		return len(p) == 1 && strings.Contains(p[0], "none:v1") && strings.Contains(p[0], "packetwalk image load")
	})
	if err := l.Change(t.Context(), lifecycle.Change{To: parsed(t, "")}); err != nil {
		t.Fatal(err)
	}
	await("the problem stays", func() bool { return len(l.FaultLines()) == 0 })
}

// TestClosedStore: a store that cannot be opened is a fault, and no image is found; it is opened once it can.
func TestClosedStore(t *testing.T) {
	l := newLibrary(t, parsed(t, "spec: {images: {pull: never}}"))
	l.store = nil
	dir, err := images.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Dir(dir), 0o700), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, err := l.finder().Find(t.Context(), source.Request{Ref: "nginx"}); err == nil || !strings.Contains(err.Error(), "no container starts") {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := l.Manifest(t.Context(), "nginx"); err == nil {
		t.Error("a manifest without a store")
	}
	if p := l.FaultLines(); len(p) != 1 || !strings.Contains(p[0], "image store") {
		t.Errorf("problems %q", p)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.finder().Find(t.Context(), source.Request{Ref: "none"}); !errors.Is(err, images.ErrNotFound) || len(l.FaultLines()) > 0 {
		t.Errorf("after the store could be opened: %v, problems %q", err, l.FaultLines())
	}
}
