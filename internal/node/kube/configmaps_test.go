package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// configAPI is as much of an API server as ConfigMaps talks to: watches that begin with the list, single objects, and events of given
// names.
type configAPI struct {
	t       *testing.T
	mu      sync.Mutex
	maps    map[string]*corev1.ConfigMap
	changes map[string]chan metav1.WatchEvent // by field selector
	events  map[string]corev1.Event
	posts   int
}

func (a *configAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch selector := r.URL.Query().Get("fieldSelector"); {
	case r.Method == http.MethodPost:
		a.create(w, r)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, selector)
	default:
		a.get(w, path.Base(r.URL.Path))
	}
}

func (a *configAPI) create(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var e corev1.Event
	if err := decodeAny(body, &e); err != nil {
		a.t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.posts++
	if _, there := a.events[e.Name]; there {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`))
		return
	}
	a.events[e.Name] = e
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(`{"kind":"Event","apiVersion":"v1"}`))
}

// decodeAny reads what the client sent, which is protobuf behind four magic bytes, or JSON.
func decodeAny(body []byte, e *corev1.Event) error {
	if !strings.HasPrefix(string(body), "k8s\x00") {
		return json.Unmarshal(body, e)
	}
	_, _, err := eventCodec.Decode(body, nil, e)
	return err
}

func (a *configAPI) watch(w http.ResponseWriter, r *http.Request, selector string) {
	a.mu.Lock()
	changes := a.changes[selector]
	m := a.maps[strings.TrimPrefix(selector, "metadata.name=")]
	a.mu.Unlock()
	send := func(kind string, o any) {
		raw, _ := json.Marshal(o)
		fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", kind, raw)
		w.(http.Flusher).Flush()
	}
	if m != nil {
		send("ADDED", m)
	}
	send("BOOKMARK", configMap("", "9", "", map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
	for {
		select {
		case e := <-changes:
			send(e.Type, e.Object.Object)
		case <-r.Context().Done():
			return
		}
	}
}

func (a *configAPI) get(w http.ResponseWriter, name string) {
	a.mu.Lock()
	m := a.maps[name]
	a.mu.Unlock()
	if m == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
		return
	}
	_ = json.NewEncoder(w).Encode(m)
}

func runtimeObject(m *corev1.ConfigMap) runtime.RawExtension { return runtime.RawExtension{Object: m} }

var eventCodec = serializer.NewCodecFactory(scheme).UniversalDeserializer()

func configMap(name, version, text string, annotations map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: "u", ResourceVersion: version, Annotations: annotations},
		Data:       map[string]string{"ip-masq-agent": text},
	}
}

func TestConfigMapsAreThoseOfTheirNames(t *testing.T) {
	a := &configAPI{t: t, maps: map[string]*corev1.ConfigMap{"one": configMap("one", "1", "first", nil)}, events: map[string]corev1.Event{}}
	a.changes = map[string]chan metav1.WatchEvent{"metadata.name=one": make(chan metav1.WatchEvent),
		"metadata.name=two": make(chan metav1.WatchEvent)}
	server := httptest.NewServer(a)
	defer server.CloseClientConnections()
	c, err := NewConfigMaps(&rest.Config{Host: server.URL}, nil, "kube-system", "one", "two")
	if err != nil {
		t.Fatal(err)
	}
	if _, complete := c.Snapshot(); complete {
		t.Error("complete before the lists")
	}
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan struct{})
	go func() { c.Run(ctx); close(finished) }()
	defer func() { cancel(); <-finished }()

	texts := func() string {
		maps, complete := c.Snapshot()
		s := fmt.Sprint(complete)
		for _, m := range maps {
			s += " " + m.Name + "=" + m.Data["ip-masq-agent"]
		}
		return s
	}
	wait := func(want string) {
		t.Helper()
		for texts() != want {
			select {
			case <-c.Changed():
			case <-time.After(10 * time.Second):
				t.Fatalf("%s, want %s", texts(), want)
			}
		}
	}
	wait("true one=first")
	a.changes["metadata.name=two"] <- metav1.WatchEvent{Type: "ADDED", Object: runtimeObject(configMap("two", "2", "second", nil))}
	wait("true one=first two=second")
	a.changes["metadata.name=one"] <- metav1.WatchEvent{Type: "DELETED", Object: runtimeObject(configMap("one", "3", "first", nil))}
	wait("true two=second")

	read, err := c.Read(t.Context()) // what the server holds, whatever the watches have said
	if err != nil || len(read) != 1 || read[0].Name != "one" {
		t.Errorf("read %v, %v", read, err)
	}
	for _, message := range []string{"bad", "bad", "worse"} {
		if err := c.Warn(t.Context(), read[0], "ip-masq-agent", "node0", "InvalidIPMasqConfig", message); err != nil {
			t.Fatal(err)
		}
	}
	if a.posts != 3 || len(a.events) != 2 {
		t.Errorf("%d posts made the events %v; the same again is the same event", a.posts, a.events)
	}
	for _, e := range a.events {
		if o := e.InvolvedObject; o.Kind != "ConfigMap" || o.Name != "one" || o.Namespace != "kube-system" || e.Type != corev1.EventTypeWarning {
			t.Errorf("event %+v", e)
		}
	}
}

// TestTrouble: what of the API cannot be followed is told, and that it can be again.
func TestTrouble(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	defer server.Close()
	told := make(chan error, 100)
	c, err := NewConfigMaps(&rest.Config{Host: server.URL}, func(what string, err error) {
		if what != "watch configmaps with metadata.name=one" {
			t.Errorf("about %q", what)
		}
		told <- err
	}, "kube-system", "one")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for err := range told {
		if err != nil {
			break
		}
	}
	down.Store(false)
	for err := range told {
		if err == nil {
			return
		}
	}
}
