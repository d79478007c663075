package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// ownerAPI is as much of an API server as Owner talks to.
type ownerAPI struct {
	mu     sync.Mutex
	status int               // of a get that is no 200; 0: none
	set    *appsv1.DaemonSet // nil: there is none
	events chan metav1.WatchEvent
}

func (a *ownerAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	a.mu.Lock()
	set, status := a.set, a.status
	a.mu.Unlock()
	if r.URL.Query().Get("watch") != "" {
		send := func(kind string, o any) {
			raw, _ := json.Marshal(o)
			fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", kind, raw)
			w.(http.Flusher).Flush()
		}
		if set != nil {
			send("ADDED", set)
		}
		end := daemonSet()
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		send("BOOKMARK", end)
		for {
			select {
			case e := <-a.events:
				send(e.Type, e.Object.Object)
			case <-r.Context().Done():
				return
			}
		}
	}
	switch {
	case status != 0:
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, http.StatusText(status), status)
	case set == nil:
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	default:
		_ = json.NewEncoder(w).Encode(set)
	}
}

func daemonSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{Kind: "DaemonSet", APIVersion: "apps/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "node", ResourceVersion: "7"}}
}

// TestOwner: only what is known to be deleted is: not what the API server does not show, nor what is there again.
func TestOwner(t *testing.T) {
	api := &ownerAPI{set: daemonSet(), events: make(chan metav1.WatchEvent)}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	o, err := NewOwner(&rest.Config{Host: server.URL}, nil, "kube-system", "node")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go o.Run(ctx)
	if !o.WaitForSync(ctx) {
		t.Fatal("it does not see the DaemonSet")
	}
	is := func(want bool, failed string) {
		t.Helper()
		deleted, err := o.Deleted(ctx)
		if deleted != want || (err == nil) != (failed == "") || err != nil && !strings.Contains(err.Error(), failed) {
			t.Errorf("deleted: %v, %v; want %v, %q", deleted, err, want, failed)
		}
	}
	seen := func(what string) {
		t.Helper()
		eventually.Succeeds(t, 10*time.Second, func() error {
			if !o.deleted() {
				return fmt.Errorf("it did not see %s", what)
			}
			return nil
		})
	}
	set := func(d *appsv1.DaemonSet, status int) {
		api.mu.Lock()
		defer api.mu.Unlock()
		api.set, api.status = d, status
	}
	is(false, "")
	set(daemonSet(), http.StatusForbidden)
	is(false, "its deletion was not seen either")
	going := daemonSet()
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	set(going, 0)
	is(true, "")
	set(nil, 0)
	is(true, "")

	// Deleted in the foreground (propagationPolicy) it stays, marked, until its pods are gone; their rights may go before.
	change := metav1.WatchEvent{Type: "MODIFIED"}
	change.Object.Object = going
	api.events <- change
	seen("that it is to be deleted")
	set(daemonSet(), http.StatusForbidden)
	is(true, "")
	change.Object.Object = daemonSet() // another of that name
	api.events <- change
	eventually.Succeeds(t, 10*time.Second, func() error {
		if o.deleted() {
			return errors.New("its deletion was not seen either")
		}
		return nil
	})

	// The rights of the pod have gone with it.
	gone := metav1.WatchEvent{Type: "DELETED"}
	gone.Object.Object = daemonSet()
	api.events <- gone
	seen("the deletion")
	set(nil, http.StatusUnauthorized)
	is(true, "")
	set(daemonSet(), 0) // another of that name
	is(false, "")
}
