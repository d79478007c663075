package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

// oneService is an API with a service whose health check only a service proxy answers.
type oneService struct{ apiClient }

func (oneService) Delta(bool) kube.Delta {
	return kube.Snapshot{Services: []*corev1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.7", ClusterIPs: []string{"10.0.0.7"},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30007, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}}}.Whole()
}

// failingSyncer is a syncer whose kernel takes nothing.
type failingSyncer struct {
	syncer
	err error
}

func (failingSyncer) Configure(proxy.Config) {}

func (r failingSyncer) Sync(context.Context, *service.Ports, []service.Key) (proxy.Result, error) {
	return proxy.Result{}, r.err
}

func (failingSyncer) Canary(context.Context) (bool, error) { return false, nil }

func (failingSyncer) Repair(context.Context) ([]string, error) { return nil, nil }

// oneNode is an API with a node, which keeps events.
type oneNode struct {
	apiClient
	events chan corev1.Event
}

func (oneNode) Delta(bool) kube.Delta {
	return kube.Snapshot{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}}}.Whole()
}

func (n oneNode) Event(_ context.Context, e corev1.Event) error { n.events <- e; return nil }

// TestWithoutServiceProxy: beside another service proxy the agent has none of its ports, settings and rules, and still what is beside it.
func TestWithoutServiceProxy(t *testing.T) {
	o := Defaults()
	o.ServiceProxy, o.Families, o.MetricsAddress = false, []service.Family{service.IPv4, service.IPv6}, ""
	o.HealthzAddress = "in use"
	a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.source = oneService{}
	var beside sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	if err := a.serve(ctx, &beside); err != nil {
		t.Error(err)
	}
	a.addMasqAgent(nil)
	if len(a.proxies) != 0 || len(a.families) != 2 || a.masq == nil {
		t.Errorf("%d proxies, %d families, ip-masq-agent %v", len(a.proxies), len(a.families), a.masq)
	}
	if a.sync(ctx); len(a.wantedChecks) != 0 {
		t.Errorf("health checks %v", a.wantedChecks)
	}
	cancel()
	beside.Wait()
}

// TestAsksForNothing: who is not the service proxy asks the API server for nothing of it, and is healthy without.
func TestAsksForNothing(t *testing.T) {
	asked := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		http.NotFound(w, r)
	}))
	defer server.Close()
	o := Defaults()
	o.Server, o.NodeName, o.ServiceProxy, o.WatchKernel, o.MetricsAddress, o.PodUID = server.URL, "node0", false, false, "", rand.Text()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, o, slog.New(slog.NewTextHandler(os.Stderr, nil))) }()
	select {
	case path := <-asked:
		t.Errorf("it asks for %s", path)
	case err := <-done:
		t.Fatal(err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := Livez(ctx, o.PodUID); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestObserve: what changed after the first sync is measured once, by the time that its controller noted.
func TestObserve(t *testing.T) {
	a, p := &agent{metrics: newMetrics(BackendNFTables)}, &familyProxy{programsOf: programsOf{family: service.IPv4}, ports: service.NewPorts()}
	key := service.Key{Namespace: "default", Service: "web"}
	start := time.Now().Add(-time.Hour)
	slice := func(seconds int) *discoveryv1.EndpointSlice {
		at := start.Add(time.Duration(seconds) * time.Second).Format(time.RFC3339Nano)
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1",
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at}}}
	}
	for i, step := range []struct {
		slices []*discoveryv1.EndpointSlice
		count  int // of all that was measured
	}{
		{nil, 0}, {[]*discoveryv1.EndpointSlice{slice(1)}, 1}, {[]*discoveryv1.EndpointSlice{slice(1)}, 1},
		{[]*discoveryv1.EndpointSlice{slice(1), slice(2)}, 2},
	} {
		p.put(key, nil, step.slices)
		a.observe(p)
		text := string(a.metrics.text())
		want := fmt.Sprintf(`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} %d`, step.count)
		if strings.Contains(text, want) != (step.count > 0) {
			t.Errorf("step %d: no %s in\n%s", i, want, text)
		}
	}
}

func (o onceMore) Sync(ctx context.Context, ports *service.Ports, changed []service.Key) (proxy.Result, error) {
	if *o.syncs++; *o.syncs == 2 {
		o.told()
	}
	return o.failingSyncer.Sync(ctx, ports, changed)
}

func (oneNode) Changed() <-chan struct{} { return nil }

func (stuckSyncer) Repair(context.Context) ([]string, error) { return nil, nil }

// TestStopsWhileItWrites: told to stop, the agent ends although a program that it runs does not, and the program ends with it.
func TestStopsWhileItWrites(t *testing.T) {
	kerneltest.NeedRoot(t)
	const programs = 2 // of the loops of the service proxy and the ip-masq-agent
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	slow := "#!/bin/sh\n[ \"$1\" = -w ] || exit 1\necho $$ >> " + pids + "\nsleep 1000\n"
	if err := os.WriteFile(filepath.Join(dir, "iptables-restore"), []byte(slow), 0o700); err != nil {
		t.Fatal(err)
	}
	st := state{Options: Defaults()}
	st.Options.NodeName, st.Options.MasqForm, st.Options.IPMasqAgent, st.Options.DockerBridge = "node0", "v2", true, netip.Prefix{}
	st.ConfigMaps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: userMap},
		Data:       map[string]string{"ip-masq-agent": "nonMasqueradeCIDRs: [10.0.0.0/8]\n"},
	}}
	text, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), "PACKETWALK_TEST_ROLE=agent", "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	running := func() (alive []string) {
		text, _ := os.ReadFile(pids)
		for _, pid := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(pid); err == nil && !errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
				alive = append(alive, pid)
			}
		}
		return alive
	}
	for len(running()) < programs {
		select {
		case err := <-ended:
			t.Fatalf("ended before it was told to: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	const limit = 2*time.Second + 4*time.Second // and what a busy machine takes
	start := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Logf("ended after %v: %v", time.Since(start).Round(time.Millisecond), err)
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		t.Fatalf("goes on %v after it was told to stop", limit)
	}
	for left := running(); len(left) > 0; left = running() {
		time.Sleep(10 * time.Millisecond) // init reaps them
		if time.Since(start) > time.Minute {
			t.Fatalf("left behind: %v", left)
		}
	}
}

// TestServerComesBack: a server that ends by itself is a fault until it answers again.
func TestServerComesBack(t *testing.T) {
	a := &agent{}
	a.faults = faults{warn: t.Logf, now: map[string]fault{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	a.faults.serve(mux)
	health := func() string {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, faultsPath, nil))
		return strings.Join(strings.Fields(w.Body.String()), "")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		listen := func() (net.Listener, error) { return net.Listen("tcp", l.Addr().String()) }
		a.keepServing(ctx, "--metrics-bind-address", listen, l, mux)
	}()
	defer func() { cancel(); <-done }()
	until := func(what string) {
		t.Helper()
		eventually.Succeeds(t, time.Minute, func() error {
			if got := health(); !strings.Contains(got, what) {
				return fmt.Errorf("%s, want %s", got, what)
			}
			return nil
		})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	until(`{"unhealthy":["--metrics-bind-address:`)
	until(`{"unhealthy":[]}`)
	resp, err := http.Get("http://" + l.Addr().String() + faultsPath)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
