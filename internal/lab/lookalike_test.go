package lab

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// TestLookAlike: where an image cannot be had, a real node gets one of the built-in application, and each of its pods with the image one
// event that says so; for a digest, and for what nothing stands for, there is none.
func TestLookAlike(t *testing.T) {
	l := newLibrary(t, parsed(t, "spec: {images: {pull: never}}"))
	distribution, program := t.TempDir(), filepath.Join(t.TempDir(), "packetwalk-app")
	err := errors.Join(os.WriteFile(filepath.Join(distribution, "sh"), []byte("sh"), 0o755), os.WriteFile(program, []byte("1"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	l.builtIn = &source.BuiltIn{Program: program, Open: l.open, Brought: map[string]string{"coredns": program},
		Select: func(context.Context) (source.Distribution, error) {
			assemble := func(_ context.Context, dir string) error { return os.CopyFS(dir, os.DirFS(distribution)) }
			return source.Distribution{Key: "d", Assemble: assemble}, nil
		}}
	pod := func(name, node, image string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "uid-1"},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Image: image}}}}
	}
	other := pod("other", "real-0", "busybox")
	other.UID = "uid-2"
	n := &nodeImages{library: l, node: "real-0", client: fake.NewClientset(pod("web", "real-0", "nginx:1.27"), other)}
	const ref = "docker.io/library/nginx:1.27"
	var digest string
	for range 2 {
		m, err := n.Manifest(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		digest = m.Digest
		if again, err := n.Manifest(t.Context(), "docker.io/library/nginx@"+m.Digest); err != nil || again.Digest != m.Digest {
			t.Errorf("by the digest that it has: %v", err)
		}
		var said struct{ Layers []struct{ Digest string } }
		if err := json.Unmarshal(m.Content, &said); err != nil || len(said.Layers) != 3 {
			t.Errorf("the manifest is %s, %v", m.Content, err)
		}
	}
	events, err := n.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 {
		t.Fatalf("events %+v, %v", events, err)
	}
	if e := events.Items[0]; e.InvolvedObject.Name != "web" || !strings.Contains(e.Message, "is not loaded") ||
		!strings.Contains(e.Message, "the built-in nginx stands for it") || !strings.Contains(e.Message, "packetwalk image load") {
		t.Errorf("the event is %+v", e)
	}
	for _, ref := range []string{realnode.SandboxImage, l.own[0]} { // bare ones, and nothing is told
		var said struct{ Layers []struct{ Digest string } }
		m, err := n.Manifest(t.Context(), ref)
		if err := errors.Join(err, json.Unmarshal(m.Content, &said)); err != nil || len(said.Layers) != 2 {
			t.Errorf("%s is %s, %v", ref, m.Content, err)
		}
	}
	for _, ref := range []string{"docker.io/library/nginx@sha256:" + strings.Repeat("1", 64), "ghcr.io/user/none:v1"} {
		if _, err := n.Manifest(t.Context(), ref); !errors.Is(err, images.ErrNotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	// Another program makes another image.
	if err := os.WriteFile(program, []byte("2"), 0o755); err != nil {
		t.Fatal(err)
	}
	m, err := n.Manifest(t.Context(), ref)
	if err != nil || m.Digest == digest {
		t.Errorf("of another program: %s, %v", m.Digest, err)
	}
	store, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	if list, err := store.List(t.Context()); err != nil || len(list) != 5 {
		t.Errorf("the store has %+v, %v", list, err)
	}
}
