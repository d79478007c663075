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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/source"
)

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

// TestImageRemoved: an image that is removed between the look and the mount is looked for again, and one that stays is not. An event tells
// of one that stands for another.
func TestImageRemoved(t *testing.T) {
	var asked atomic.Int32
	gone := filepath.Join(t.TempDir(), "gone")
	b := newBenchWith(t, func(_ *bench, c *Config) {
		c.Resolve = func(_ context.Context, r source.Request) (source.Image, error) {
			if r.Never != (r.Ref == "never") {
				t.Errorf("%s: must it not be pulled? %v", r.Ref, r.Never)
			}
			if asked.Add(1) == 1 {
				return source.Image{ID: "removed", Layers: []string{gone}}, nil
			}
			return source.Image{ID: "found", App: "app", LookAlike: "it is not loaded"}, nil
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
		if slices.Contains(reasons, "Created") && slices.Contains(reasons, "Pulled") && slices.Contains(reasons, "LookAlike") {
			return
		}
	}
}
