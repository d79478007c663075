package proxy

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"packetwalk.dev/internal/node/service"
)

func TestHealthCheckAnswersByteForByte(t *testing.T) {
	healthy := true
	h := NewHealthChecks(func() bool { return healthy })
	addresses := map[string]net.Listener{}
	h.listen = func(address string) (net.Listener, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		addresses[address] = l
		return l, err
	}
	defer h.Close()
	check := service.HealthCheck{Key: service.Key{Namespace: "default", Service: "whereami"}, Port: 32364, LocalEndpoints: 2}
	if errs := h.Sync([]service.HealthCheck{check}); errs != nil {
		t.Fatal(errs)
	}
	ask := func() (int, string, http.Header) {
		t.Helper()
		r, err := http.Get("http://" + addresses[":32364"].Addr().String() + "/any/path")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body), r.Header
	}
	code, body, header := ask()
	want := "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"whereami\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
	if code != 200 || body != want {
		t.Errorf("got %d %q", code, body)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
		"X-Load-Balancing-Endpoint-Weight": "2"} {
		if header.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, header.Get(name), value)
		}
	}
	healthy = false
	if code, _, _ := ask(); code != 503 {
		t.Errorf("unhealthy proxy: %d", code)
	}
	healthy, check.LocalEndpoints = true, 0
	h.Sync([]service.HealthCheck{check})
	if code, _, _ := ask(); code != 503 {
		t.Errorf("no endpoints: %d", code)
	}
	l := addresses[":32364"]
	h.Sync(nil)
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a deleted service's port still listens")
	}
}

func TestHealthCheckThatCannotListen(t *testing.T) {
	h := NewHealthChecks(func() bool { return true })
	taken := errors.New("address already in use")
	h.listen = func(string) (net.Listener, error) { return nil, taken }
	check := service.HealthCheck{Key: service.Key{Namespace: "a", Service: "b"}, Port: 1}
	errs := h.Sync([]service.HealthCheck{check})
	var e *ListenError
	if len(errs) != 1 || !errors.As(errs[0], &e) || e.Port != 1 || !errors.Is(e, taken) {
		t.Fatalf("got %v", errs)
	}
	h.listen = func(string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	defer h.Close()
	if errs := h.Sync([]service.HealthCheck{check}); errs != nil {
		t.Errorf("not tried again: %v", errs)
	}
}

func TestHealthz(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := NewHealth(time.Minute, func() time.Time { return now })
	counted := map[string]int{}
	handler := h.Handler(func(path string, code int) { counted[path] += code })
	ask := func(path string) (int, map[string]any) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		return w.Code, body
	}
	h.Updated(service.IPv4)
	h.Queued(service.IPv4)
	now = now.Add(59 * time.Second)
	h.Queued(service.IPv4) // a later change does not hide how long the first one has waited
	if code, body := ask("/healthz"); code != 200 || body["nodeEligible"] != true {
		t.Errorf("in time: %d %v", code, body)
	}
	now = now.Add(2 * time.Second)
	if code, body := ask("/healthz"); code != 503 || body["healthy"] != false {
		t.Errorf("too late: %d %v", code, body)
	}
	h.Updated(service.IPv4)
	h.SetNodeEligible(false)
	if code, body := ask("/healthz"); code != 503 || body["nodeEligible"] != false {
		t.Errorf("node to be deleted: %d %v", code, body)
	}
	code, body := ask("/livez")
	if _, has := body["nodeEligible"]; code != 200 || has {
		t.Errorf("livez: %d %v", code, body)
	}
	if counted["/healthz"] != 200+503+503 || counted["/livez"] != 200 {
		t.Errorf("counted %v", counted)
	}
}
