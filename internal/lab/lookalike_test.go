package lab

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// standingIn is a library for which built-in applications stand, of a program whose path is given.
func standingIn(t *testing.T) (l *library, program string) {
	t.Helper()
	l = newLibrary(t, parsed(t, "spec: {images: {pull: never}}"))
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
	return l, program
}

// waiting is a pod on the node real-0 whose container is not made yet.
func waiting(name, image string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid of " + name)},
		Spec:   corev1.PodSpec{NodeName: "real-0", Containers: []corev1.Container{{Name: "c", Image: image}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
}

// running is one whose container is of an image that has a digest.
func running(name, image, digest string) *corev1.Pod {
	p := waiting(name, image)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ImageID: "docker.io/library/any@" + digest}}}
	return p
}

// events are the messages of look-alikes, by their pods' names.
func (n *nodeImages) events(t *testing.T) map[string][]string {
	t.Helper()
	list, err := n.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, e := range list.Items {
		all[e.InvolvedObject.Name] = append(all[e.InvolvedObject.Name], e.Message)
	}
	return all
}

// TestLookAlike: where an image cannot be had, a real node gets one of the built-in application, and each of its pods with the image one
// event that says so; for a digest, and for what nothing stands for, there is none.
func TestLookAlike(t *testing.T) {
	l, program := standingIn(t)
	n := &nodeImages{library: l, node: "real-0", client: fake.NewClientset(waiting("web", "nginx:1.27"), waiting("other", "busybox")),
		file: filepath.Join(t.TempDir(), "look-alikes.json")}
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
	if err := n.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := n.events(t)
	if web := events["web"]; len(events) != 1 || len(web) != 1 || !strings.Contains(web[0], "is not loaded") ||
		!strings.Contains(web[0], "the built-in nginx stands for it") || !strings.Contains(web[0], "packetwalk image load") {
		t.Errorf("events %q", events)
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

// TestLookAlikesOfLaterPods: containerd does not ask again for what it has: pods that come later, and containers that do, are told, each
// once, also if the API did not take it the first time and by the next lab process; and none that runs the image itself.
func TestLookAlikesOfLaterPods(t *testing.T) {
	l, _ := standingIn(t)
	client := fake.NewClientset()
	n := &nodeImages{library: l, node: "real-0", client: client, file: filepath.Join(t.TempDir(), "look-alikes.json")}
	m, err := n.Manifest(t.Context(), "docker.io/library/nginx:1.27")
	if err != nil {
		t.Fatal(err)
	}
	debugged := running("debugged", "busybox", m.Digest)
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug",
		Image: "nginx:1.27"}}}
	debugged.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", ImageID: "docker.io/library/nginx@" + m.Digest}}
	for _, p := range []*corev1.Pod{running("web", "nginx:1.27", m.Digest), running("real", "nginx:1.27", "sha256:1"), debugged,
		running("same", "nginx:1.28", m.Digest)} {
		if err := client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	fails := true
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		failed := fails
		fails = false
		return failed, nil, errors.New("the API is busy")
	})
	if err := n.look(t.Context()); err == nil || !strings.Contains(err.Error(), "is busy") {
		t.Errorf("an event that the API does not take: %v", err)
	}
	next := &nodeImages{library: l, node: "real-0", client: client, file: n.file}
	next.read()
	for _, n := range []*nodeImages{n, n, next} {
		if err := n.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		events := n.events(t)
		if len(events) != 2 || len(events["web"]) != 1 || len(events["debugged"]) != 1 {
			t.Fatalf("events %q", events)
		}
	}
}

// TestLookAlikeGoes: when the image is there the node forgets what has its name, if it has that already, and what comes then is told
// nothing.
func TestLookAlikeGoes(t *testing.T) {
	l, _ := standingIn(t)
	const ref = "docker.io/library/nginx:1.27"
	var forgotten []string
	gone, failure := false, errors.New("containerd does not answer")
	n := &nodeImages{library: l, node: "real-0", client: fake.NewClientset(), file: filepath.Join(t.TempDir(), "look-alikes.json"),
		forget: func(_ context.Context, ref string) (bool, error) {
			forgotten = append(forgotten, ref)
			return gone, failure
		}}
	look := func() (err error) {
		forgotten = nil
		next := &nodeImages{library: l, node: n.node, client: n.client, file: n.file, forget: n.forget}
		next.read()
		return next.look(t.Context())
	}
	if _, err := n.Manifest(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if err := look(); err != nil || forgotten != nil {
		t.Errorf("before it is there: %q, %v", forgotten, err)
	}
	load(t, l, ref)
	if _, err := n.client.CoreV1().Pods("default").Create(t.Context(), waiting("late", "nginx:1.27"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := look(); len(forgotten) != 1 || !errors.Is(err, failure) {
		t.Errorf("while containerd does not answer: %q, %v", forgotten, err)
	}
	failure = nil
	if err := look(); err != nil || len(forgotten) != 1 || forgotten[0] != ref {
		t.Errorf("while the node does not have it yet: %q, %v", forgotten, err)
	}
	gone = true
	for _, want := range []int{1, 0} {
		if err := look(); err != nil || len(forgotten) != want {
			t.Errorf("when it is gone: %q, %v", forgotten, err)
		}
	}
	if events := n.events(t); len(events) > 0 {
		t.Errorf("events %q", events)
	}
}

// load puts an image into the store.
func load(t *testing.T, l *library, ref string) {
	t.Helper()
	image, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	if image, err = mutate.ConfigFile(image, platform(t, image)); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, image); err != nil {
		t.Fatal(err)
	}
	store, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(t.Context(), file); err != nil {
		t.Fatal(err)
	}
}
