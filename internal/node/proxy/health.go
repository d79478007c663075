package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/node/service"
)

// Health is the proxy's own: whether changes reach the kernel in time. Its zero value is not usable; see NewHealth.
type Health struct {
	timeout time.Duration
	now     func() time.Time

	mu       sync.Mutex
	families map[service.Family]*familyHealth
	eligible bool
}

type familyHealth struct {
	updated time.Time
	queued  time.Time // of the oldest change not yet in the kernel; zero: none
}

// NewHealth makes the state: unhealthy when a change has waited for timeout (kube-proxy: twice the sync period). now tells the time.
func NewHealth(timeout time.Duration, now func() time.Time) *Health {
	return &Health{timeout: timeout, now: now, families: map[service.Family]*familyHealth{}, eligible: true}
}

func (h *Health) family(f service.Family) *familyHealth {
	if h.families[f] == nil {
		h.families[f] = &familyHealth{}
	}
	return h.families[f]
}

// Queued notes that a change waits to be written.
func (h *Health) Queued(f service.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.family(f); s.queued.IsZero() {
		s.queued = h.now()
	}
}

// Updated notes that everything is written.
func (h *Health) Updated(f service.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.family(f) = familyHealth{updated: h.now()}
}

// SetNodeEligible says whether load balancers may use the node at all: not one that is being deleted or that the cluster autoscaler is
// about to delete.
func (h *Health) SetNodeEligible(eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type healthStatus struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status,omitempty"`
}

func (h *Health) status() healthStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	st := healthStatus{CurrentTime: now, Healthy: true, Status: map[string]familyStatus{}}
	for f, s := range h.families {
		healthy := s.queued.IsZero() || now.Sub(s.queued) < h.timeout
		st.Healthy = st.Healthy && healthy
		st.Status[f.String()] = familyStatus{s.updated, healthy}
		if s.updated.After(st.LastUpdated) {
			st.LastUpdated = s.updated
		}
	}
	return st
}

// Healthy reports whether changes reach the kernel in time.
func (h *Health) Healthy() bool { return h.status().Healthy }

// Unready returns why the rules of a family are not what the API says, empty where they are: also before they were written the first time,
// where Healthy has patience.
func (h *Health) Unready(f service.Family) string {
	switch st, known := h.status().Status[f.String()]; {
	case !known || st.LastUpdated.IsZero():
		return fmt.Sprintf("the %s rules have not been written yet", f)
	case !st.Healthy:
		return fmt.Sprintf("changes wait to be written to the %s rules", f)
	}
	return ""
}

// Handler serves /healthz, which also asks whether the node is eligible, and /livez, which does not. Both answer with 200 or 503 and a JSON
// object {lastUpdated, currentTime, nodeEligible, healthy, status}. answered counts the answers by path and code; nil: they are not
// counted.
func (h *Health) Handler(answered func(path string, code int)) http.Handler {
	mux := http.NewServeMux()
	serve := func(path string, withNode bool) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			st := h.status()
			ok := st.Healthy
			if withNode {
				h.mu.Lock()
				eligible := h.eligible
				h.mu.Unlock()
				st.NodeEligible = &eligible
				ok = ok && eligible
			}
			code := http.StatusServiceUnavailable
			if ok {
				code = http.StatusOK
				// Clients of old took the time of the last sync for the sign of life, and there was one every period.
				st.LastUpdated = st.CurrentTime
			}
			if answered != nil {
				answered(path, code)
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(code)
			body, _ := json.Marshal(st) // plain values: cannot fail
			_, _ = w.Write(body)
		})
	}
	serve("/healthz", true)
	serve("/livez", false)
	return mux
}

// HealthChecks serves the health check node ports: one HTTP server for each service with externalTrafficPolicy Local, which answers any
// path with 200 if the node has ready endpoints and the proxy is healthy, else with 503.
type HealthChecks struct {
	healthy func() bool
	listen  func(address string) (net.Listener, error)
	ips     []string // addresses to listen on

	mu       sync.Mutex
	services map[service.Key]*healthCheck
}

type healthCheck struct {
	service.HealthCheck
	servers []*serve.Server
}

// NewHealthChecks makes the set of servers, which listen on all of the node's addresses. healthy is the proxy's health.
func NewHealthChecks(healthy func() bool) *HealthChecks {
	listen := func(address string) (net.Listener, error) { return net.Listen("tcp", address) }
	return &HealthChecks{healthy: healthy, listen: listen, ips: []string{""}, services: map[service.Key]*healthCheck{}}
}

// Listen has servers listen on some addresses, or with none on all, from the next Sync on.
func (h *HealthChecks) Listen(ips []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(ips) == 0 {
		ips = []string{""}
	}
	if slices.Equal(ips, h.ips) {
		return
	}
	h.ips = ips
	for _, running := range h.services {
		running.close()
	}
	clear(h.services)
}

// ListenError says that a health check node port cannot be served.
type ListenError struct {
	service.HealthCheck
	Err error
}

func (e *ListenError) Error() string {
	return fmt.Sprintf("start health check %q on port %d: %v", e.Key, e.Port, e.Err)
}

// Unwrap gives the kernel's error.
func (e *ListenError) Unwrap() error { return e.Err }

// Sync opens, closes and updates servers. Those that cannot listen are returned, each a *ListenError, and tried again by the next Sync.
func (h *HealthChecks) Sync(checks []service.HealthCheck) []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := map[service.Key]service.HealthCheck{}
	for _, c := range checks {
		wanted[c.Key] = c
	}
	for key, running := range h.services {
		if c, ok := wanted[key]; !ok || c.Port != running.Port {
			running.close()
			delete(h.services, key)
		}
	}
	var errs []error
	for _, c := range checks {
		running, ok := h.services[c.Key]
		if !ok {
			running = &healthCheck{HealthCheck: c}
			if err := h.start(running); err != nil {
				errs = append(errs, &ListenError{c, err})
				continue
			}
			h.services[c.Key] = running
		}
		running.LocalEndpoints = c.LocalEndpoints
	}
	return errs
}

// Close ends all servers.
func (h *HealthChecks) Close() { h.Sync(nil) }

func (c *healthCheck) close() {
	for _, s := range c.servers {
		s.Close()
	}
}

func (h *HealthChecks) start(c *healthCheck) error {
	key := c.Key
	for _, ip := range h.ips {
		l, err := h.listen(net.JoinHostPort(ip, strconv.Itoa(int(c.Port))))
		if err != nil {
			c.close()
			return err
		}
		s := serve.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.answer(w, key) }), nil).WithoutKeepAlive()
		c.servers = append(c.servers, s)
		go func() {
			if err := s.Serve(context.Background(), l); err != nil {
				h.fail(c) // the next Sync opens it anew, or reports it
			}
		}()
	}
	return nil
}

// fail takes away a server that has ended by itself.
func (h *HealthChecks) fail(c *healthCheck) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.close()
	if h.services[c.Key] == c {
		delete(h.services, c.Key)
	}
}

// answer writes what k8s.io/kubernetes pkg/proxy/healthcheck/service_health.go does, byte for byte.
func (h *HealthChecks) answer(w http.ResponseWriter, key service.Key) {
	h.mu.Lock()
	count := 0
	if c, ok := h.services[key]; ok {
		count = c.LocalEndpoints
	}
	h.mu.Unlock()
	healthy := h.healthy()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
	code := http.StatusServiceUnavailable
	if count > 0 && healthy {
		code = http.StatusOK
	}
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
		key.Namespace, key.Service, count, healthy)
}
