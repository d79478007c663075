package pull

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"packetwalk.dev/internal/pods/images"
)

// A hub is a registry in this process. front sees requests first, and reports whether it answered.
type hub struct {
	*httptest.Server
	host  string
	asked atomic.Int64
	front func(w http.ResponseWriter, r *http.Request) bool
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		if h.front == nil || !h.front(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.Close)
	h.host = strings.TrimPrefix(h.URL, "http://")
	return h
}

func (h *hub) allowed() []Registry { return []Registry{{h.host, true}} }

// push has the hub have an image for an architecture.
func (h *hub) push(t *testing.T, as, arch string) (ref string, image v1.Image) {
	t.Helper()
	image, err := random.Image(50_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	ref = h.host + "/" + as
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	front := h.front
	h.front = nil
	if err := remote.Write(parsed, image); err != nil {
		t.Fatal(err)
	}
	h.front = front
	return ref, image
}

func newStore(t *testing.T) *images.Store {
	t.Helper()
	s, err := images.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func digestOf(t *testing.T, i interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// TestPull: an image comes whole, by name and by digest, of several platforms the machine's; and only once.
func TestPull(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	h, s := newHub(t), newStore(t)
	ref, image := h.push(t, "user/shop:v1", runtime.GOARCH)
	c := NewClient(h.allowed())
	got, err := c.Load(t.Context(), s, ref)
	if err != nil || got.Name != ref || got.Digest != digestOf(t, image) {
		t.Fatalf("%+v, %v", got, err)
	}
	before := h.asked.Load()
	if fetched, err := c.refresh(t.Context(), s, ref); err != nil || fetched || h.asked.Load()-before > 3 {
		t.Errorf("again: fetched %v, %v, by %d requests", fetched, err, h.asked.Load()-before)
	}
	byDigest := h.host + "/user/shop@" + digestOf(t, image)
	h.front = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			t.Errorf("%s is fetched again", r.URL.Path)
		}
		return false
	}
	if got, err = c.Load(t.Context(), s, byDigest); err != nil || got.Digest != digestOf(t, image) || got.Name != byDigest {
		t.Errorf("by digest: %+v, %v", got, err)
	}
	_, other := h.push(t, "user/other:v1", "s390x")
	many := mutate.AppendManifests(mutate.IndexMediaType(emptyIndex(t), "application/vnd.oci.image.index.v1+json"),
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	h.front = nil
	parsed, err := name.ParseReference(h.host + "/user/many:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(parsed, many); err != nil {
		t.Fatal(err)
	}
	if got, err = c.Load(t.Context(), s, parsed.Name()); err != nil || got.Digest != digestOf(t, image) {
		t.Errorf("of several platforms: %+v, %v", got, err)
	}
	if m, err := s.Manifest(parsed.Name()); err != nil || m.Digest != digestOf(t, many) {
		t.Errorf("the registry would give %s, %v; want the index", m.Digest, err)
	}
}

func emptyIndex(t *testing.T) v1.ImageIndex {
	t.Helper()
	i, err := random.Index(1, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// TestLayersAtOnce: layers come beside each other.
func TestLayersAtOnce(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	h := newHub(t)
	ref, image := h.push(t, "shop:v1", runtime.GOARCH)
	config, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	both := make(chan struct{})
	h.front = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.URL.Path, config.Hex) {
			if asked.Add(1) == 2 {
				close(both)
			}
			select {
			case <-both:
			case <-time.After(10 * time.Second):
				t.Error("one layer waits for the other")
			}
		}
		return false
	}
	if _, err := NewClient(h.allowed()).Load(t.Context(), newStore(t), ref); err != nil {
		t.Error(err)
	}
}

// TestHostile: what a registry answers that it should not ends the pull, says why, and leaves nothing in the store.
func TestHostile(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	blob := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/blobs/") }
	manifest := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }
	endless := func(w http.ResponseWriter) {
		for _, err := io.Copy(w, io.LimitReader(xs{}, 1<<20)); err == nil; _, err = io.Copy(w, io.LimitReader(xs{}, 1<<20)) {
		}
	}
	to := func(url string) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, http.StatusTemporaryRedirect) }
	}
	other := newHub(t)
	for what, tt := range map[string]struct {
		at   func(*http.Request) bool
		do   func(w http.ResponseWriter, r *http.Request)
		want string
	}{
		"a layer of other content": {blob, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }, "sha256"},
		"an endless layer":         {blob, func(w http.ResponseWriter, _ *http.Request) { endless(w) }, ""},
		"an endless manifest":      {manifest, func(w http.ResponseWriter, _ *http.Request) { endless(w) }, "limit"},
		"no JSON":                  {manifest, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }, "no image"},
		"a link-local address":     {blob, to("https://169.254.169.254/latest/meta-data"), "link-local"},
		"a private address":        {blob, to("https://10.13.76.4/"), "private"},
		"a name of loopback":       {blob, to(strings.Replace("https://localhost:PORT/", "PORT", port(other.host), 1)), "not an address of the internet"},
		"no TLS":                   {blob, to("http://registry.example/"), "refusing to ask registry.example without TLS; to allow it, add http://registry.example to"},
		"itself, again and again":  {blob, func(w http.ResponseWriter, r *http.Request) { to(r.URL.String())(w, r) }, "more than 10 times"},
		"logged out": {manifest, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"go\u001b[31m away` + strings.Repeat("x", 1000) + `"}]}`))
		}, "docker login"},
		"a token's server that is link-local": {func(r *http.Request) bool { return r.URL.Path == "/v2/" },
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://169.254.169.254/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			}, "169.254.169.254"},
	} {
		t.Run(what, func(t *testing.T) {
			h, s := newHub(t), newStore(t)
			ref, _ := h.push(t, "shop:v1", runtime.GOARCH)
			h.front = func(w http.ResponseWriter, r *http.Request) bool {
				if tt.at(r) {
					tt.do(w, r)
					return true
				}
				return false
			}
			_, err := NewClient(h.allowed()).Load(t.Context(), s, ref)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 1000 {
				t.Errorf("%v, want %q", err, tt.want)
			}
			empty(t, s)
		})
	}
	if n := other.asked.Load(); n > 0 {
		t.Errorf("%d requests came to a registry that is not allowed", n)
	}
}

func port(host string) string { return host[strings.LastIndexByte(host, ':')+1:] }

type xs struct{}

func (xs) Read(p []byte) (int, error) {
	copy(p, bytes.Repeat([]byte("x"), len(p)))
	return len(p), nil
}

// empty checks that a store has nothing.
func empty(t *testing.T, s *images.Store) {
	t.Helper()
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("the store has %v, %v", list, err)
	}
}

// TestPlatform: an image for another architecture is refused, and both are named.
func TestPlatform(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	h, s := newHub(t), newStore(t)
	ref, _ := h.push(t, "shop:v1", "s390x")
	_, err := NewClient(h.allowed()).Load(t.Context(), s, ref)
	if err == nil || !strings.Contains(err.Error(), "s390x") || !strings.Contains(err.Error(), "this machine is linux/"+runtime.GOARCH) {
		t.Error(err)
	}
	empty(t, s)
}

// TestStall: a body that stands still ends, and one that comes slowly does not.
func TestStall(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		for range 6 {
			_, _ = io.WriteString(w, "x")
			_ = control.Flush()
			time.Sleep(400 * time.Millisecond) // slower than all of it together may be, faster than one piece
		}
		if r.URL.Path == "/stall" {
			<-release
		}
	}))
	defer server.Close()
	defer close(release)
	g := newGuard([]Registry{{strings.TrimPrefix(server.URL, "http://"), true}})
	g.stall = 2 * time.Second
	for path, stalls := range map[string]bool{"/": false, "/stall": true} {
		resp, err := (&http.Client{Transport: g}).Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if len(text) != 6 || stalls != (err != nil) || stalls && !strings.Contains(err.Error(), "has sent nothing") {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
}
