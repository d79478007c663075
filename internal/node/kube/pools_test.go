package kube

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

func calicoObject(kind, name, spec string) *Calico {
	return &Calico{
		TypeMeta: metav1.TypeMeta{APIVersion: "crd.projectcalico.org/v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u-1", ResourceVersion: "1",
			Annotations: map[string]string{"big": strings.Repeat("x", 1000)}},
		Spec: json.RawMessage(spec),
	}
}

func TestPoolsFollowTheAPI(t *testing.T) {
	pool := calicoObject("IPPool", "b", `{"cidr":"10.240.0.0/16","natOutgoing":true}`)
	a := &api{T: t, watchers: map[string][]chan metav1.WatchEvent{}, queries: map[string]string{}, objects: map[string][]runtime.Object{
		"ippools":             {pool},
		"felixconfigurations": {calicoObject("FelixConfiguration", "default", `{"chainInsertMode":"Append"}`)},
	}}
	server := httptest.NewServer(a)
	defer server.CloseClientConnections() // before Close, which waits for the watches
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := NewPools(&rest.Config{Host: server.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	go func() { p.Run(ctx); close(finished) }()
	wait := func(holds func(pools, configurations []*Calico) bool) (pools, configurations []*Calico) {
		t.Helper()
		for {
			pools, configurations, complete := p.Snapshot()
			if complete && holds(pools, configurations) {
				return pools, configurations
			}
			select {
			case <-p.Changed():
			case <-ctx.Done():
				t.Fatalf("never: %v, %v", pools, configurations)
			}
		}
	}
	pools, configurations := wait(func(pools, configurations []*Calico) bool { return len(pools) == 1 && len(configurations) == 1 })
	if got := pools[0]; got.Kind != "IPPool" || got.Name != "b" || !strings.Contains(string(got.Spec), "10.240.0.0/16") ||
		got.Annotations != nil {
		t.Errorf("pool %+v", got)
	}
	if got := configurations[0]; got.Kind != "FelixConfiguration" || string(got.Spec) != `{"chainInsertMode":"Append"}` {
		t.Errorf("configuration %+v", got)
	}

	// One with a field of the wrong type does not hide the others.
	a.change("ippools", "ADDED", calicoObject("IPPool", "a", `{"cidr":7}`))
	pools, _ = wait(func(pools, _ []*Calico) bool { return len(pools) == 2 })
	if pools[0].Name != "a" || pools[1].Name != "b" {
		t.Errorf("pools %s, %s", pools[0].Name, pools[1].Name)
	}
	a.change("ippools", "DELETED", pool)
	wait(func(pools, _ []*Calico) bool { return len(pools) == 1 })

	for range 2 {
		if err := p.Warn(ctx, pools[0], "packetwalk-node", "node0", "InvalidIPPool", "spec.cidr: no range"); err != nil {
			t.Fatal(err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) != 2 || a.events[0] != a.events[1] && !sameEventName(t, a.events) {
		t.Errorf("events %q", a.events)
	}
	if !strings.HasPrefix(a.events[0], "/api/v1/namespaces/default/events ") || !strings.Contains(a.events[0], "InvalidIPPool") {
		t.Errorf("event %q", a.events[0])
	}
	cancel()
	<-finished
}

// sameEventName: events are protobuf; the name stands in them as text.
func sameEventName(t *testing.T, events []string) bool {
	t.Helper()
	_, rest, ok := strings.Cut(events[0], "a.")
	return ok && len(rest) > 16 && strings.Contains(events[1], "a."+rest[:16])
}
