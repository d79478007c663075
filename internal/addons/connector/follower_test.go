package connector

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"packetwalk.dev/internal/azure/aci"
)

// fakeACI has one group.
type fakeACI struct {
	aci.Service
	group   aci.ContainerGroup
	deleted []string // by uid
}

func (a *fakeACI) Get(_ context.Context, name string) (aci.ContainerGroup, error) {
	if name != a.group.Name {
		return aci.ContainerGroup{}, aci.NotFound(name)
	}
	return a.group, nil
}

func (a *fakeACI) Delete(_ context.Context, name, uid string, _ time.Duration) error {
	switch {
	case name != a.group.Name:
		return aci.NotFound(name)
	case uid != "" && uid != a.group.Tags[tagUID]:
		return aci.Conflict("C", "of another pod")
	}
	a.deleted = append(a.deleted, uid)
	return nil
}

// testFollower follows a pod of an API server that has none, and notes what it is asked for.
func testFollower(t *testing.T, a aci.Service, namespace, name, uid string) (f *follower, asked *[]string, events chan string) {
	t.Helper()
	asked = new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked = append(*asked, r.Method+" "+r.URL.Path)
		if !strings.Contains(string(body), uid) {
			t.Errorf("%s without the UID %s: %s", r.Method, uid, body)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig()
	cfg.Client, cfg.ACI, cfg.Log = client, a, slog.New(slog.DiscardHandler)
	c := newConnector(*cfg)
	recorder := record.NewFakeRecorder(10)
	c.recorder = recorder
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	f = &follower{c: c, pod: pod, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	c.known[key(namespace, name)] = f
	return f, asked, recorder.Events
}

// TestEndOfAnother: the deletion of pod a-b/c, whose group was refused because a/b-c's has the name, leaves that one alone and ends the
// pod.
func TestEndOfAnother(t *testing.T) {
	for uid, deleted := range map[string][]string{"1": {"1"}, "2": nil} {
		a := &fakeACI{group: aci.ContainerGroup{Name: "a-b-c", Tags: map[string]string{tagUID: "1"}}}
		f, asked, _ := testFollower(t, a, "a-b", "c", uid)
		if !f.end(t.Context()) {
			t.Errorf("pod %s does not end", uid)
		}
		if !slices.Equal(a.deleted, deleted) || !slices.Equal(*asked, []string{"DELETE /api/v1/namespaces/a-b/pods/c"}) {
			t.Errorf("pod %s: groups deleted %q, want %q; the API server was asked %q", uid, a.deleted, deleted, *asked)
		}
	}
}

// TestGroupOfAnother: logs, exec and the state of a pod without a group are not those of the group that has its name.
func TestGroupOfAnother(t *testing.T) {
	a := &fakeACI{group: aci.ContainerGroup{Name: "a-b-c", Tags: map[string]string{tagUID: "1"}}}
	f, _, _ := testFollower(t, a, "a-b", "c", "2")
	if g, err := f.c.group("a-b", "c"); err == nil {
		t.Errorf("the pod has group %s", g)
	}
	if g, err := f.get(t.Context()); !aci.IsNotFound(err) {
		t.Errorf("%+v %v", g, err)
	}
}

// TestRelay: the pod has each of the group's warnings once, also when it is counted again.
func TestRelay(t *testing.T) {
	f, _, events := testFollower(t, &fakeACI{}, "ns", "p", "1")
	group := func(events ...aci.Event) *aci.ContainerGroup {
		return &aci.ContainerGroup{Properties: aci.GroupProperties{InstanceView: &aci.GroupView{Events: events}}}
	}
	full := aci.Event{Count: 1, Type: "Warning", Name: "FailedProvisioning", Message: "no free addresses"}
	fuller := full
	fuller.Count = 2
	f.relay(&aci.ContainerGroup{})
	f.relay(group(full, aci.Event{Type: "Normal", Name: "Pulled"}))
	f.relay(group(fuller))
	f.relay(group(fuller, aci.Event{Type: "Warning", Name: "ExtensionIgnored", Message: "none"}))
	close(events)
	var got []string
	for e := range events {
		got = append(got, e)
	}
	if want := []string{"Warning FailedProvisioning no free addresses", "Warning ExtensionIgnored none"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
