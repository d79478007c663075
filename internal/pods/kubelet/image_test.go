package kubelet

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/images"
)

// TestApplyImage: what the pod says comes before what its image does (pkg/kubelet/kuberuntime; containerd's CRI, WithImageConfig).
func TestApplyImage(t *testing.T) {
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
		if err := image.apply(&got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: want -, got +\n%s", name, d)
		}
	}
	for text, want := range map[string]unix.Signal{"": 0, "TERM": unix.SIGTERM, "9": unix.SIGKILL, "sigrtmin+3": 37, "x": -1, "0": -1} {
		s, i := container.Spec{}, Image{Config: images.Config{StopSignal: text}}
		if err := i.apply(&s); (err != nil) != (want < 0) || err == nil && s.StopSignal != want {
			t.Errorf("stop signal %q: %v, %v", text, s.StopSignal, err)
		}
	}
}

func TestMayBeRoot(t *testing.T) {
	zero, five := int64(0), int64(5)
	for _, tt := range []struct {
		uid  *int64
		user string
		want string
	}{
		{&five, "", ""}, {&five, "root", ""}, {nil, "5", ""}, {nil, "", "will run as root"}, {&zero, "5", "will run as root"},
		{nil, "0", "will run as root"}, {nil, "web", "non-numeric user (web)"},
	} {
		err := mayBeRoot(&container.Spec{UID: tt.uid, User: tt.user})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v %q: %v, want %q", tt.uid, tt.user, err, tt.want)
		}
	}
}

// TestFromStore: an image that is loaded comes before what stands for it, and nothing stands for a digest.
func TestFromStore(t *testing.T) {
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	resolve := FromStore(store)
	got, err := resolve(t.Context(), "nginx:1.27")
	if err != nil || got.App != "nginx" || !strings.Contains(got.LookAlike, "docker save") {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = resolve(t.Context(), "packetwalk/hello"); err != nil || got.App != "hello" || got.LookAlike != "" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, ref := range []string{"nginx@sha256:" + strings.Repeat("1", 64), "example.org/shop"} {
		if got, err = resolve(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "packetwalk image load") {
			t.Errorf("%s: %+v, %v", ref, got, err)
		}
	}
	if _, err = resolve(t.Context(), "NGINX"); err == nil || errors.Is(err, images.ErrNotFound) {
		t.Errorf("a reference that is none: %v", err)
	}
}
