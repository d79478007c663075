package httprouting

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	networkingv1 "k8s.io/api/networking/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/addons/ingress"
)

// writes is an API server that takes what is written to it.
type writes struct {
	mu  sync.Mutex
	all []string // "METHOD PATH BODY"
}

func (a *writes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.all = append(a.all, fmt.Sprint(r.Method, " ", r.URL.Path, " ", string(body)))
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1"}`)
}

// take gives what was written since the last time.
func (a *writes) take() (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, a.all = a.all, nil
	return all
}

// TestPublish: Ingresses get the address of the Service, those whose problems do not pass get an event a problem, and nothing is written
// twice.
func TestPublish(t *testing.T) {
	api := &writes{}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c, err := newController(ControllerOptions{
		Table:          ingress.Config{Class: "web", DefaultBackend: types.NamespacedName{Namespace: "kube-system", Name: "default"}},
		PublishService: types.NamespacedName{Namespace: "kube-system", Name: "front"},
		Config:         &rest.Config{Host: server.URL}, AccessLog: io.Discard, Log: log.New(io.Discard, "", 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	front := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "front"}}
	front.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
	prefix := networkingv1.PathTypePrefix
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop", UID: "u",
		Annotations: map[string]string{"kubernetes.io/ingress.class": "web"}}}
	i.Spec.Rules = []networkingv1.IngressRule{{Host: "shop",
		IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{
			{Path: "/", PathType: &prefix,
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "none",
					Port: networkingv1.ServiceBackendPort{Number: 80}}}},
		}}}}}
	other := i.DeepCopy()
	other.Name, other.Annotations = "others", nil
	for _, add := range []error{c.stores.services.Add(front), c.stores.ingresses.Add(i), c.stores.ingresses.Add(other)} {
		if add != nil {
			t.Fatal(add)
		}
	}
	publish := func() []string {
		t.Helper()
		c.build()
		if err := c.publishOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return api.take()
	}
	got := publish()
	if len(got) != 3 || got[0] != `PATCH /apis/networking.k8s.io/v1/namespaces/default/ingresses/shop/status {"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.10"}]}}}` {
		t.Fatalf("%d writes: %q", len(got), got)
	}
	for n, want := range map[int]string{1: "Scheduled for sync", 2: "there is no Service default/none"} {
		if !strings.HasPrefix(got[n], "POST /api/v1/namespaces/default/events ") || !strings.Contains(got[n], want) {
			t.Errorf("%q, want %q", got[n], want)
		}
	}
	now := i.DeepCopy()
	now.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "203.0.113.10"}}
	if err := c.stores.ingresses.Update(now); err != nil {
		t.Fatal(err)
	}
	if got := publish(); len(got) != 0 {
		t.Errorf("written again: %q", got)
	}
	// The front end is gone, and so is the address.
	if err := c.stores.services.Delete(front); err != nil {
		t.Fatal(err)
	}
	if got := publish(); len(got) != 1 || !strings.HasSuffix(got[0], `{"status":{"loadBalancer":{"ingress":null}}}`) {
		t.Errorf("%q", got)
	}
}

func TestHealthAndExplain(t *testing.T) {
	c := &controller{}
	ask := func(target string) string {
		w := httptest.NewRecorder()
		c.healthHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		return fmt.Sprint(w.Code, " ", strings.TrimSpace(w.Body.String()))
	}
	for _, target := range []string{"/healthz", "/explain"} {
		if got := ask(target); !strings.HasPrefix(got, "503 ") {
			t.Errorf("%s before the first table: %s", target, got)
		}
	}
	r := route("10.0.0.1:80")
	r.From = ingress.Origin{Ingress: types.NamespacedName{Namespace: "default", Name: "shop"}, Field: "spec.rules[0].http.paths[0]"}
	c.table.Store(&ingress.Table{
		Hosts:    map[string]*ingress.Host{"shop": {Name: "shop", Routes: []ingress.Route{r}}},
		Problems: []ingress.Problem{{Ingress: r.From.Ingress, Field: "spec", Message: "odd"}},
	})
	for target, want := range map[string]string{
		"/healthz":                    "200 ok",
		"/explain":                    "200 default/shop spec: odd",
		"/explain?url=http://shop/x":  "200 host shop has rules; prefix / takes /x (default/shop spec.rules[0].http.paths[0]); to service default/shop port 80: 10.0.0.1:80",
		"/explain?url=shop":           `400 "shop" is no URL; write url=http://HOST/PATH`,
		"/explain?url=http://other/x": `200 host "other" has no rules; the controller's default backend; to service / port :`,
	} {
		if got := ask(target); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}

// TestHealthWithoutKeepAlive: the health server closes each connection when it has answered, also while the API server is unreachable.
func TestHealthWithoutKeepAlive(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.77:0") // clients of other tests have ports of 127.0.0.1
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunController(ctx, ControllerOptions{Config: &rest.Config{Host: "http://127.0.0.1:1"}, Health: address, AccessLog: io.Discard,
			Log: log.New(io.Discard, "", 0)})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	eventually.Succeeds(t, time.Minute, func() error {
		resp, err := http.Get("http://" + address + "/healthz")
		if err == nil {
			resp.Body.Close()
			if !resp.Close {
				t.Error("the connection is kept")
			}
		}
		return err
	})
}
