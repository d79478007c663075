package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/node/service"
)

// api is as much of an API server as the watcher talks to: streamed lists (sendInitialEvents), watches, and the creation of events.
type api struct {
	*testing.T
	mu       sync.Mutex
	objects  map[string][]runtime.Object // by resource
	watchers map[string][]chan metav1.WatchEvent
	queries  map[string]string
	accept   string
	events   []string
	late     string // the resource whose first list fails
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := filepath.Base(r.URL.Path)
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		a.events = append(a.events, r.URL.Path+" "+string(body))
		a.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"Event","apiVersion":"v1"}`))
		return
	}
	if a.objects[resource] == nil {
		http.NotFound(w, r)
		return
	}
	streamed := r.URL.Query().Get("sendInitialEvents") == "true"
	a.mu.Lock()
	late := a.late == resource
	if late && !streamed {
		a.late = "" // the client has tried both kinds of lists
	}
	a.mu.Unlock()
	if late {
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
	}
	if !streamed {
		http.Error(w, "only streamed lists here", http.StatusNotImplemented)
		return
	}
	changes := make(chan metav1.WatchEvent, 10)
	a.mu.Lock()
	a.queries[resource] = r.URL.Query().Get("labelSelector") + r.URL.Query().Get("fieldSelector")
	a.accept = r.Header.Get("Accept")
	objects := a.objects[resource]
	a.watchers[resource] = append(a.watchers[resource], changes)
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	send := func(e metav1.WatchEvent) {
		if err := json.NewEncoder(w).Encode(e); err == nil {
			w.(http.Flusher).Flush()
		}
	}
	for _, o := range objects {
		send(event(a.T, "ADDED", o))
	}
	end := map[string]any{
		"apiVersion": objects[0].GetObjectKind().GroupVersionKind().GroupVersion().String(),
		"kind":       objects[0].GetObjectKind().GroupVersionKind().Kind,
		"metadata":   map[string]any{"resourceVersion": "9", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
	}
	raw, _ := json.Marshal(end)
	send(metav1.WatchEvent{Type: "BOOKMARK", Object: runtime.RawExtension{Raw: raw}})
	for {
		select {
		case e := <-changes:
			send(e)
		case <-r.Context().Done():
			return
		}
	}
}

func event(t *testing.T, kind string, o runtime.Object) metav1.WatchEvent {
	raw, err := json.Marshal(o)
	if err != nil {
		t.Error(err)
	}
	return metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw}}
}

func (a *api) change(resource, kind string, o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.watchers[resource] {
		w <- event(a.T, kind, o)
	}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "default", Name: name, ResourceVersion: "1",
		Labels:        map[string]string{discoveryv1.LabelServiceName: "web", "app": "web"},
		Annotations:   map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z", "big": strings.Repeat("x", 1000)},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}
}

func TestWatcherFollowsTheAPI(t *testing.T) {
	svc := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta("web"),
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Selector: map[string]string{"a": "b"}}}
	slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  meta("web-1"),
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, TargetRef: &corev1.ObjectReference{Name: "pod"}}}}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node0", ResourceVersion: "1", Labels: map[string]string{corev1.LabelTopologyZone: "z1", "x": "y"}},
		Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{SizeBytes: 1}}}}
	a := &api{T: t, watchers: map[string][]chan metav1.WatchEvent{}, queries: map[string]string{}, objects: map[string][]runtime.Object{
		"services": {svc}, "endpointslices": {slice}, "nodes": {node},
	}}
	server := httptest.NewServer(a)
	defer server.CloseClientConnections() // before Close, which waits for the watches
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	w, err := newWatcher(&rest.Config{Host: server.URL}, nil, func(kind string) { mu.Lock(); seen[kind]++; mu.Unlock() })
	if err != nil {
		t.Fatal(err)
	}
	finished := follow(ctx, t, w)
	checkSlim(t, w.Snapshot())
	a.mu.Lock()
	if got := a.queries["services"]; got != "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name" &&
		got != "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless" {
		t.Errorf("services asked for by %q", got)
	}
	if got := a.queries["nodes"]; got != "metadata.name=node0" {
		t.Errorf("nodes asked for by %q", got)
	}
	if !strings.HasPrefix(a.accept, "application/vnd.kubernetes.protobuf") {
		t.Errorf("accepts %q first", a.accept)
	}
	a.mu.Unlock()

	web := service.Key{Namespace: "default", Service: "web"}
	checkDelta := func(what string, d Delta, whole bool, services, slices int) {
		t.Helper()
		if of := d.Services[web]; d.Node == nil || d.Whole != whole || len(d.Services) != services || len(of.EndpointSlices) != slices {
			t.Errorf("%s: %+v", what, d)
		}
	}
	checkDelta("at first", w.Delta(false), false, 1, 1)
	checkDelta("nothing new", w.Delta(false), false, 0, 0)
	checkDelta("all there is", w.Delta(true), true, 1, 1)

	drain(w)
	svc = svc.DeepCopy()
	svc.ResourceVersion, svc.Spec.ClusterIP = "2", "10.0.0.2"
	a.change("services", "MODIFIED", svc)
	waitFor(ctx, t, w, func(s Snapshot) bool { return len(s.Services) == 1 && s.Services[0].Spec.ClusterIP == "10.0.0.2" })
	checkDelta("another service", w.Delta(false), false, 1, 1)
	slice = slice.DeepCopy()
	slice.ResourceVersion = "3"
	a.change("endpointslices", "DELETED", slice)
	waitFor(ctx, t, w, func(s Snapshot) bool { return len(s.EndpointSlices) == 0 })
	checkDelta("without endpoints", w.Delta(false), false, 1, 0)

	if err := w.Event(ctx, corev1.Event{Reason: "FailedToStartServiceHealthcheck",
		InvolvedObject: corev1.ObjectReference{Kind: "Service", Namespace: "default", Name: "web"}}); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	if len(a.events) != 1 || !strings.HasPrefix(a.events[0], "/api/v1/namespaces/default/events ") ||
		!strings.Contains(a.events[0], "FailedToStartServiceHealthcheck") {
		t.Errorf("events %q", a.events)
	}
	a.mu.Unlock()
	mu.Lock()
	if seen["service"] != 2 || seen["endpoints"] != 2 || seen["node"] != 1 {
		t.Errorf("changes seen: %v", seen)
	}
	mu.Unlock()
	cancel()
	<-finished
}

// TestServiceCIDRs: the ranges of cluster IPs are followed where the API server has such objects, and waited for only there, also when it
// fails at first.
func TestServiceCIDRs(t *testing.T) {
	for _, c := range []struct{ has, late bool }{{has: true}, {has: true, late: true}, {}} {
		kind := func(kind, version string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: version} }
		a := &api{T: t, watchers: map[string][]chan metav1.WatchEvent{}, queries: map[string]string{}, objects: map[string][]runtime.Object{
			"services":       {&corev1.Service{TypeMeta: kind("Service", "v1"), ObjectMeta: meta("web")}},
			"endpointslices": {&discoveryv1.EndpointSlice{TypeMeta: kind("EndpointSlice", "discovery.k8s.io/v1"), ObjectMeta: meta("web-1")}},
			"nodes":          {&corev1.Node{TypeMeta: kind("Node", "v1"), ObjectMeta: meta("node0")}},
		}}
		if c.has {
			a.objects["servicecidrs"] = []runtime.Object{&networkingv1.ServiceCIDR{TypeMeta: kind("ServiceCIDR", "networking.k8s.io/v1"),
				ObjectMeta: meta("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/16"}}}}
		}
		if c.late {
			a.late = "servicecidrs"
		}
		server := httptest.NewServer(a)
		defer server.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		config := &rest.Config{Host: server.URL}
		w, err := newWatcher(config, func(what string, err error) {
			if err != nil && ctx.Err() == nil && (!c.late || !apierrors.IsServiceUnavailable(err)) {
				t.Errorf("%s: %v", what, err)
			}
		}, nil)
		if err == nil {
			err = w.WatchServiceCIDRs(config)
		}
		if err != nil {
			t.Fatal(err)
		}
		finished := follow(ctx, t, w)
		if ranges := w.Snapshot().ServiceCIDRs; (len(ranges) == 1) != c.has || c.has && ranges[0].Spec.CIDRs[0] != "10.0.0.0/16" {
			t.Errorf("%+v: %v", c, ranges)
		}
		cancel()
		<-finished
	}
}

// newWatcher makes one of what the service proxy needs.
func newWatcher(config *rest.Config, trouble Trouble, seen Counter) (*Watcher, error) {
	w, err := NewWatcher(config, trouble)
	if err == nil {
		err = w.WatchServices(config, "node0", seen)
	}
	return w, err
}

// TestWatchesNothing checks a watcher that asks for no services. It knows of none, waits for nothing and sends no request.
func TestWatchesNothing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s", r.Method, r.URL) }))
	defer server.Close()
	w, err := NewWatcher(&rest.Config{Host: server.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	finished := follow(ctx, t, w)
	for _, whole := range []bool{true, false} {
		if d := w.Delta(whole); d.Node != nil || len(d.Services)+len(d.ServiceCIDRs) > 0 || d.Whole != whole {
			t.Errorf("%+v", d)
		}
	}
	cancel()
	<-finished
}

// follow runs a watcher, and waits until it has everything; the channel is closed when it has ended.
func follow(ctx context.Context, t *testing.T, w *Watcher) <-chan struct{} {
	t.Helper()
	finished := make(chan struct{})
	go func() { w.Run(ctx); close(finished) }()
	if !w.WaitForSync(ctx) {
		t.Fatal(ctx.Err())
	}
	return finished
}

// checkSlim wants what is read, and nothing else.
func checkSlim(t *testing.T, s Snapshot) {
	t.Helper()
	if len(s.Services) != 1 || len(s.EndpointSlices) != 1 || s.Node == nil {
		t.Fatalf("snapshot %+v", s)
	}
	svc, slice := s.Services[0], s.EndpointSlices[0]
	if svc.Spec.ClusterIP != "10.0.0.1" || svc.Spec.Selector != nil || svc.ManagedFields != nil || svc.Annotations != nil ||
		svc.Labels != nil {
		t.Errorf("service %+v", svc)
	}
	if len(slice.Labels) != 1 || len(slice.Annotations) != 1 || slice.ManagedFields != nil || slice.Endpoints[0].TargetRef != nil ||
		slice.Endpoints[0].Addresses[0] != "10.1.0.1" {
		t.Errorf("slice %+v", slice)
	}
	if len(s.Node.Labels) != 1 || s.Node.Status.Images != nil {
		t.Errorf("node %+v", s.Node)
	}
}

func drain(w *Watcher) {
	select {
	case <-w.Changed():
	default:
	}
}

// waitFor looks after each change.
func waitFor(ctx context.Context, t *testing.T, w *Watcher, holds func(Snapshot) bool) {
	t.Helper()
	for !holds(w.Snapshot()) {
		select {
		case <-w.Changed():
		case <-ctx.Done():
			t.Fatalf("never: %+v", w.Snapshot())
		}
	}
}

func TestConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://203.0.113.1"}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{"": "https://203.0.113.1", "https://api:1": "https://api:1"} {
		c, err := Config(server, path, "me/1")
		if err != nil || c.Host != want || c.BearerToken != "t" || c.UserAgent != "me/1" {
			t.Errorf("got %+v, %v", c, err)
		}
	}
	for _, path := range []string{"", "/no/such/file"} {
		if _, err := Config("", path, "me"); err == nil || !strings.Contains(err.Error(), "give --kubeconfig FILE") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestOnlyWhatIsReadIsAChange(t *testing.T) {
	node := func(change func(*corev1.Node)) any {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0", ResourceVersion: "1"},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.0.1"}}}}
		change(n)
		o, err := slim(n)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	before := node(func(*corev1.Node) {})
	for name, c := range map[string]struct {
		after any
		same  bool
	}{
		"heartbeat": {node(func(n *corev1.Node) {
			n.ResourceVersion = "2"
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
		}), true},
		"address": {node(func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.1.0.2" }), false},
		"taint":   {node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }), false},
		"zone":    {node(func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: "1"} }), false},
		"deleted": {node(func(n *corev1.Node) { now := metav1.Now(); n.DeletionTimestamp = &now }), false},
	} {
		if got := same(before, c.after); got != c.same {
			t.Errorf("%s: same is %v, want %v", name, got, c.same)
		}
	}
}

// TestChangesOfSlicesAreNotDecoded: each of many agents gets each change of a large service.
func TestChangesOfSlicesAreNotDecoded(t *testing.T) {
	slice := func(generation int64, ready bool) any {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "u", Generation: generation}}
		for range 100 {
			s.Endpoints = append(s.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
		o, err := pack(s)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	before, after := slice(1, false), slice(2, true)
	if n := testing.AllocsPerRun(10, func() {
		if same(before, after) {
			t.Fatal("the same")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if !same(before, slice(1, false)) || same(slice(0, false), slice(0, true)) {
		t.Error("slices are not compared by what they hold")
	}
}

// TestOnlyChangedSlicesAreRead: when one of a service's many slices changes, the others are not read again.
func TestOnlyChangedSlicesAreRead(t *testing.T) {
	for _, n := range []int{1, manySlices} {
		w, err := newWatcher(&rest.Config{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		put := func(i int, address string) {
			s := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}}
			s.Namespace, s.Name, s.Labels = "ns", fmt.Sprint("s-", i), map[string]string{discoveryv1.LabelServiceName: "s"}
			o, err := pack(s)
			if err == nil {
				err = w.slices.Add(o)
			}
			if err != nil {
				t.Fatal(err)
			}
			w.note([]any{o})
		}
		read := func() map[string]*discoveryv1.EndpointSlice {
			all := map[string]*discoveryv1.EndpointSlice{}
			for _, s := range w.Delta(false).Services[service.Key{Namespace: "ns", Service: "s"}].EndpointSlices {
				all[s.Name] = s
			}
			return all
		}
		for i := range n {
			put(i, "10.0.0.1")
		}
		before := read()
		put(0, "10.0.0.2")
		after := read()
		for name, s := range after {
			want := "10.0.0.1"
			if name == "s-0" {
				want = "10.0.0.2"
			}
			if again := s != before[name]; again != (name == "s-0") || len(after) != n || s.Endpoints[0].Addresses[0] != want {
				t.Errorf("of %d slices %s is %v, read again: %v", n, name, s.Endpoints, again)
			}
		}
	}
}
