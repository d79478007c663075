package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"packetwalk.dev/internal/pods/images"
)

// storeImages are the images of a store.
type storeImages struct{ *images.Store }

func (s storeImages) Manifest(_ context.Context, ref string) (images.Manifest, error) {
	switch {
	case strings.Contains(ref, "broken"):
		return images.Manifest{}, errors.New("the disk is full")
	case !strings.Contains(ref, "shop"):
		return images.Manifest{}, fmt.Errorf("image %s: %w: run packetwalk image load", ref, images.ErrNotFound)
	}
	return s.Store.Manifest(ref)
}

const token = "secret"

// start serves one image, ghcr.io/user/shop:v1.
func start(t *testing.T) (server *httptest.Server, image v1.Image) {
	t.Helper()
	store, image := newStore(t)
	server = httptest.NewServer(Handler(storeImages{store}, token))
	t.Cleanup(server.Close)
	return server, image
}

// newStore returns a store with ghcr.io/user/shop:v1.
func newStore(t *testing.T) (*images.Store, v1.Image) {
	t.Helper()
	store, err := images.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(100_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference("ghcr.io/user/shop:v1")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "shop.tar")
	if err := tarball.WriteToFile(archive, ref, image); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	return store, image
}

func ask(t *testing.T, method, url, authorization string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", authorization)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestAnswers: what is there comes to who has the token, and what cannot be had says why, in the words that containerd reads.
func TestAnswers(t *testing.T) {
	server, _ := start(t)
	for _, tt := range []struct {
		method, path, authorization string
		status                      int
		want                        string // in the body
	}{
		{"GET", "/v2/", Authorization(token), 200, ""},
		{"GET", "/v2/", "", 401, "UNAUTHORIZED"},
		{"GET", "/v2/user/shop/manifests/v1?ns=ghcr.io", Authorization("secreT"), 401, "container runtime"},
		{"GET", "/v2/user/shop/manifests/v1?ns=ghcr.io", "Bearer ", 401, "UNAUTHORIZED"},
		{"GET", "/v2/user/shop/manifests/v1?ns=ghcr.io", Authorization(token), 200, `"schemaVersion":2`},
		{"HEAD", "/v2/user/shop/manifests/v1?ns=ghcr.io", Authorization(token), 200, ""},
		{"GET", "/v2/user/shop/manifests/v1?ns=quay.io", Authorization(token), 403, "image load"},
		{"GET", "/v2/user/shop/manifests/v1", Authorization(token), 403, "not an image name"},
		{"GET", "/v2/user/other/manifests/v1?ns=ghcr.io", Authorization(token), 403, "run packetwalk image load"},
		{"GET", "/v2/broken/manifests/v1?ns=ghcr.io", Authorization(token), 403, "the disk is full"},
		{"GET", "/v2/user/shop/blobs/sha256:" + strings.Repeat("0", 64), Authorization(token), 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/user/shop/blobs/..%2f..%2findex.json", Authorization(token), 404, ""},
		{"GET", "/v2/user/shop/tags/list?ns=ghcr.io", Authorization(token), 404, "NAME_UNKNOWN"},
		{"GET", "/v2//manifests/v1?ns=ghcr.io", Authorization(token), 404, ""},
		{"GET", "/v2/manifests/v1?ns=ghcr.io", Authorization(token), 404, ""},
		{"POST", "/v2/user/shop/blobs/uploads/", Authorization(token), 405, "image load"},
		{"DELETE", "/v2/user/shop/manifests/v1?ns=ghcr.io", Authorization(token), 405, "read-only"},
	} {
		resp, body := ask(t, tt.method, server.URL+tt.path, tt.authorization)
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %s %s; want %d %q", tt.method, tt.path, resp.Status, body, tt.status, tt.want)
		}
		var said struct {
			Errors []struct{ Code, Message string }
		}
		if resp.StatusCode > 299 && (json.Unmarshal([]byte(body), &said) != nil || len(said.Errors) != 1) {
			t.Errorf("%s %s: %s is no error of the specification", tt.method, tt.path, body)
		}
	}
}

// TestPull: a client pulls the whole image, which comes out as it went in, also layer by layer from the middle on.
func TestPull(t *testing.T) {
	server, image := start(t)
	address := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(address+"/user/shop:v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Image(ref, remote.WithContext(t.Context()), remote.WithTransport(containerdTransport{}))
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if config, err := got.ConfigName(); err != nil || config != want {
		t.Errorf("the configuration is %s, %v; want %s", config, err, want)
	}
	layers, err := got.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatal(layers, err)
	}
	for _, l := range layers {
		content, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, content); err != nil { // it checks the digest
			t.Error(err)
		}
		content.Close()
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v2/user/shop/blobs/"+digest.String(), nil)
	r.Header.Set("Authorization", Authorization(token))
	r.Header.Set("Range", "bytes=10-19")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusPartialContent || len(body) != 10 {
		t.Errorf("a part of a layer: %s, %d bytes, %v", resp.Status, len(body), err)
	}
}

// containerdTransport adds to requests what containerd does.
type containerdTransport struct{}

func (containerdTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", Authorization(token))
	query := r.URL.Query()
	query.Set("ns", "ghcr.io")
	r.URL.RawQuery = query.Encode()
	return http.DefaultTransport.RoundTrip(r)
}

// slowImages are missing in the first requests.
type slowImages struct {
	storeImages
	missing *atomic.Int32
}

func (s slowImages) Manifest(ctx context.Context, ref string) (images.Manifest, error) {
	if s.missing.Add(-1) >= 0 {
		<-ctx.Done()
		return images.Manifest{}, ctx.Err()
	}
	return s.storeImages.Manifest(ctx, ref)
}

// TestSlowImages: a client that follows ten redirects gets an image that takes longer to come than it waits for an answer, or the reason.
func TestSlowImages(t *testing.T) {
	store, _ := newStore(t)
	for name, tt := range map[string]struct {
		method, waits string
		missing       int32 // in so many requests
		status        int
		want          string // in the body
	}{
		"there at the second request": {http.MethodHead, "", 1, http.StatusOK, ""},
		"there at the last request":   {http.MethodHead, "", maxWaits - 1, http.StatusOK, ""},
		"too late":                    {http.MethodHead, "", maxWaits, http.StatusForbidden, ""},
		"the reason":                  {http.MethodGet, "", 1, http.StatusForbidden, "ghcr.io/user/shop:v1 is still being pulled or built"},
		"forged, negative":            {http.MethodHead, "&waits=-1", 1, http.StatusForbidden, ""},
		"forged, large":               {http.MethodHead, "&waits=9223372036854775807", 1, http.StatusForbidden, ""},
	} {
		t.Run(name, func(t *testing.T) {
			slow := slowImages{storeImages{store}, &atomic.Int32{}}
			slow.missing.Store(tt.missing)
			server := httptest.NewServer(handler(slow, token, time.Millisecond))
			defer server.Close()
			resp, body := ask(t, tt.method, server.URL+"/v2/user/shop/manifests/v1?ns=ghcr.io"+tt.waits, Authorization(token))
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("%s %s", resp.Status, body)
			}
			if left := slow.missing.Load(); tt.status == http.StatusOK && left != -1 {
				t.Errorf("%d requests, want %d", tt.missing-left, tt.missing+1)
			}
		})
	}
}

// TestStuckReader: a client that takes nothing of a layer does not keep it for ever, and one that waits long for a manifest gets it.
func TestStuckReader(t *testing.T) {
	w := &deadlines{ResponseWriter: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/user/shop/manifests/v1?ns=ghcr.io", nil)
	r.Header.Set("Authorization", Authorization(token))
	Handler(emptyImages{}, token).ServeHTTP(w, r)
	if want := []bool{false, true, true}; fmt.Sprint(w.set) != fmt.Sprint(want) {
		t.Errorf("time limits were set: %v, want %v: none while the image is pulled, one for what is written, one for the rest", w.set, want)
	}
}

type emptyImages struct{}

func (emptyImages) Manifest(context.Context, string) (images.Manifest, error) {
	return images.Manifest{Content: []byte("{}")}, nil
}
func (emptyImages) Blob(string) (*os.File, error) { return nil, images.ErrNotFound }

// deadlines notes of each whether it is one.
type deadlines struct {
	http.ResponseWriter
	set []bool
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.set = append(d.set, !t.IsZero())
	return nil
}
