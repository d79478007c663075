package kubelet

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestFromLibrary: an image that the library has comes before what stands for it, and nothing stands for a digest. What stands for another
// says why, and what to do; so does the error where nothing does.
func TestFromLibrary(t *testing.T) {
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var missing error
	resolve := FromLibrary(func(context.Context, ImageRequest) (*images.Store, bool, error) {
		if missing != nil {
			return nil, false, missing
		}
		return store, false, nil
	})
	for _, why := range []error{nil, errors.New("no network")} {
		missing = why
		got, err := resolve(t.Context(), ImageRequest{Ref: "nginx:1.27"})
		if err != nil || got.App != "nginx" || !strings.Contains(got.LookAlike, "docker save") ||
			strings.Contains(got.LookAlike, "cannot be pulled (no network)") != (why != nil) {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err = resolve(t.Context(), ImageRequest{Ref: "packetwalk/hello"}); err != nil || got.App != "hello" || got.LookAlike != "" {
			t.Errorf("%+v, %v", got, err)
		}
		for _, ref := range []string{"nginx@sha256:" + strings.Repeat("1", 64), "example.org/shop"} {
			got, err = resolve(t.Context(), ImageRequest{Ref: ref})
			if err == nil || !strings.Contains(err.Error(), "packetwalk image load "+ref) ||
				why != nil && !strings.Contains(err.Error(), why.Error()) {
				t.Errorf("%s: %+v, %v", ref, got, err)
			}
		}
	}
	missing = nil
	if _, err = resolve(t.Context(), ImageRequest{Ref: "NGINX"}); err == nil || errors.Is(err, images.ErrNotFound) {
		t.Errorf("a reference that is none: %v", err)
	}
}

// TestImageRemoved: an image that is removed between the look and the mount is looked for again, and one that stays is not.
func TestImageRemoved(t *testing.T) {
	var asked atomic.Int32
	gone := filepath.Join(t.TempDir(), "gone")
	b := newBenchWith(t, func(_ *bench, c *Config) {
		c.Resolve = func(_ context.Context, r ImageRequest) (Image, error) {
			if r.Never != (r.Ref == "never") {
				t.Errorf("%s: must it not be pulled? %v", r.Ref, r.Never)
			}
			if asked.Add(1) == 1 {
				return Image{ID: "removed", Layers: []string{gone}}, nil
			}
			return Image{ID: "found", App: "app"}, nil
		}
	})
	b.runtime.fail = func(s container.Spec) error {
		if slices.Contains(s.Layers, gone) {
			return errors.New("mount: no such file")
		}
		return nil
	}
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "never", corev1.PullNever
	}))
	b.await("web", "ready", ready)
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times for the image, want 2", n)
	}
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		list, err := b.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var reasons []string
		for _, e := range list.Items {
			reasons = append(reasons, e.Reason)
		}
		if slices.Contains(reasons, "Failed") || time.Now().After(limit) {
			t.Fatalf("events %q: want Created and not Failed", reasons)
		}
		if slices.Contains(reasons, "Created") {
			return
		}
	}
}
