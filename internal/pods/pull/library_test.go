package pull

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/pods/images"
)

// TestLibrary: pulls of one image at once are one, and a failure is remembered.
func TestLibrary(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	h, s := newHub(t), newStore(t)
	ref, image := h.push(t, "shop:v1", runtime.GOARCH)
	c := NewClient(h.allowed())
	opened := errors.New("the disk is gone")
	l := NewLibrary(t.Context(), func() (*images.Store, error) { return s, opened })
	if _, _, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: IfNeeded}); !errors.Is(err, opened) {
		t.Errorf("a store that cannot be opened: %v", err)
	}
	opened = nil
	before := h.asked.Load()
	if _, pulled, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: Never}); pulled || err != nil || h.asked.Load() != before {
		t.Errorf("never: %v, %v", pulled, err)
	}
	var manifests atomic.Int64
	h.front = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
			manifests.Add(1)
			time.Sleep(100 * time.Millisecond) // for the others to come
		}
		return false
	}
	done := make(chan error)
	for range 10 {
		go func() {
			_, _, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: IfNeeded})
			done <- err
		}()
	}
	for range 10 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := manifests.Load(); n != 1 {
		t.Errorf("ten at once made %d pulls", n)
	}
	said := 0
	_, again := h.push(t, "shop:v1", runtime.GOARCH) // the tag moves
	for policy, want := range map[Policy]string{IfNeeded: digestOf(t, image), Always: digestOf(t, again)} {
		_, pulled, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: policy, Pulling: func() { said++ }})
		m, err2 := s.Manifest(ref)
		if err != nil || err2 != nil || pulled != (policy == Always) {
			t.Errorf("%s: %v, %v, %v", policy, pulled, err, err2)
		}
		if policy == Always && m.Digest != want {
			t.Errorf("%s: %s, want %s", policy, m.Digest, want)
		}
	}
	if said != 1 {
		t.Errorf("a pull was said %d times", said)
	}
	h.front = nil
	h.Close()
	_, _, err := l.Ensure(t.Context(), c, Request{Ref: h.host + "/other:v1", Policy: IfNeeded})
	_, _, err2 := l.Ensure(t.Context(), c, Request{Ref: h.host + "/more:v1", Policy: IfNeeded, Pulling: func() { t.Error("tried again") }})
	if err == nil || fmt.Sprint(err2) != err.Error() {
		t.Errorf("a registry that cannot be reached: %v, then %v", err, err2)
	}
	l.Forget()
	tried := false
	_, _, _ = l.Ensure(t.Context(), c, Request{Ref: h.host + "/more:v1", Policy: IfNeeded, Pulling: func() { tried = true }})
	if !tried {
		t.Error("not tried again after what may be asked has changed")
	}
}

// TestNoNetwork: a name server that does not answer is waited for twice, for all registries and all who ask at once: of one registry alone
// it tells nothing of others.
func TestNoNetwork(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", silent.LocalAddr().String())
	}}
	c := NewClient(nil)
	c.guard.wait = 50 * time.Millisecond
	s := newStore(t)
	l := NewLibrary(t.Context(), func() (*images.Store, error) { return s, nil })
	for _, ref := range []string{"nginx", "httpd", "ghcr.io/user/app", "quay.io/user/app", "gcr.io/user/app"} {
		_, _, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: IfNeeded, Pulling: func() {
			if ref != "nginx" && ref != "ghcr.io/user/app" {
				t.Errorf("%s is asked for again", ref)
			}
		}})
		own := !strings.Contains(ref, "/") || ref == "ghcr.io/user/app" // whose own failure it is
		if err == nil || own && !strings.Contains(err.Error(), map[bool]string{true: "ghcr.io", false: "index.docker.io"}[ref[0] == 'g']) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	l.Forget()
	done := make(chan error)
	for n := range 4 * pullsAtOnce {
		go func() {
			_, _, err := l.Ensure(t.Context(), c, Request{Ref: fmt.Sprintf("registry%d.example/app", n), Policy: IfNeeded})
			done <- err
		}()
	}
	waited := map[string]bool{}
	for range 4 * pullsAtOnce {
		waited[(<-done).Error()] = true
	}
	if len(waited) > pullsAtOnce+1 {
		t.Errorf("it was waited for %d times", len(waited))
	}
}

// TestSlowRegistry shows that a registry that does not answer delays no client that asks another registry.
func TestSlowRegistry(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	slow, quick, s := newHub(t), newHub(t), newStore(t)
	ref, _ := quick.push(t, "shop:v1", runtime.GOARCH)
	asked, release := make(chan struct{}, pullsAtOnce), make(chan struct{})
	slow.front = func(http.ResponseWriter, *http.Request) bool {
		select {
		case <-release:
		default:
			asked <- struct{}{}
			<-release
		}
		return false
	}
	l := NewLibrary(t.Context(), func() (*images.Store, error) { return s, nil })
	c := NewClient(append(slow.allowed(), quick.allowed()...))
	done := make(chan error)
	for n := range pullsAtOnce {
		go func() {
			_, _, err := l.Ensure(t.Context(), c, Request{Ref: fmt.Sprintf("%s/shop%d:v1", slow.host, n), Policy: IfNeeded})
			done <- err
		}()
	}
	for range pullsFromOne {
		<-asked
	}
	if _, pulled, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: IfNeeded}); !pulled || err != nil {
		t.Errorf("pulled %v, %v", pulled, err)
	}
	if n := len(asked); n > 0 {
		t.Errorf("%d more were asked for at once", n)
	}
	close(release)
	for range pullsAtOnce {
		if err := <-done; err == nil {
			t.Error("an image that is not there was pulled")
		}
	}
}

// TestWaiterGoes: who asks may go; the pull goes on, and is there for the next.
func TestWaiterGoes(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	h, s := newHub(t), newStore(t)
	ref, _ := h.push(t, "shop:v1", runtime.GOARCH)
	asked, release := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	h.front = func(http.ResponseWriter, *http.Request) bool {
		if once.CompareAndSwap(false, true) {
			close(asked)
			<-release
		}
		return false
	}
	l := NewLibrary(t.Context(), func() (*images.Store, error) { return s, nil })
	c := NewClient(h.allowed())
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, _, err := l.Ensure(ctx, c, Request{Ref: ref, Policy: IfNeeded}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(release)
	if _, _, err := l.Ensure(t.Context(), c, Request{Ref: ref, Policy: IfNeeded}); err != nil {
		t.Error(err)
	}
	if _, err := s.Manifest(ref); err != nil {
		t.Error(err)
	}
}

func TestWhy(t *testing.T) {
	cause := errors.New("no network")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{Why("shop:v1", cause), "image shop:v1 cannot be pulled: no network; load it: packetwalk image load shop:v1, or docker save shop:v1 | packetwalk image load -"},
		{Why("shop:v1", nil), "image shop:v1 is not loaded: load it: packetwalk image load shop:v1, or docker save shop:v1 | packetwalk image load -"},
		{Why(imageref.Repository+":v1", nil), "image packetwalk.dev/packetwalk:v1 is not loaded: load it from the release, or from a clone after 'make image': packetwalk image load bin/packetwalk-image.tar"},
	} {
		if d := cmp.Diff(tt.want, tt.err.Error()); d != "" || !errors.Is(tt.err, images.ErrNotFound) {
			t.Error(d)
		}
	}
}
