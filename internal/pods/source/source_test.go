package source

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/images"
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

// TestNew: an image that the library has comes before what stands for it, and nothing stands for a digest. What stands for another
// says why, and what to do; so does the error where nothing does.
func TestNew(t *testing.T) {
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var missing error
	resolve := New(func(context.Context, Request) (*images.Store, bool, error) {
		if missing != nil {
			return nil, false, missing
		}
		return store, false, nil
	})
	for _, why := range []error{nil, errors.New("no network")} {
		missing = why
		got, err := resolve(t.Context(), Request{Ref: "nginx:1.27"})
		if err != nil || got.App != "nginx" || !strings.Contains(got.LookAlike, "docker save") ||
			strings.Contains(got.LookAlike, "cannot be pulled (no network)") != (why != nil) {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err = resolve(t.Context(), Request{Ref: "packetwalk/hello"}); err != nil || got.App != "hello" || got.LookAlike != "" {
			t.Errorf("%+v, %v", got, err)
		}
		for _, ref := range []string{"nginx@sha256:" + strings.Repeat("1", 64), "example.org/shop"} {
			got, err = resolve(t.Context(), Request{Ref: ref})
			if err == nil || !strings.Contains(err.Error(), "packetwalk image load "+ref) ||
				why != nil && !strings.Contains(err.Error(), why.Error()) {
				t.Errorf("%s: %+v, %v", ref, got, err)
			}
		}
	}
	missing = nil
	if _, err = resolve(t.Context(), Request{Ref: "NGINX"}); err == nil || errors.Is(err, images.ErrNotFound) {
		t.Errorf("a reference that is none: %v", err)
	}
}
