package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/nfnetlink"
	"packetwalk.dev/internal/testing/kerneltest"
)

// oneService is an API with a service whose health check nobody but a service proxy answers.
type oneService struct{ objectSource }

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

func (r failingSyncer) Remove(context.Context) error { return r.err }

// oneNode is an API with a node, which keeps events.
type oneNode struct {
	objectSource
	events chan corev1.Event
}

func (oneNode) Delta(bool) kube.Delta {
	return kube.Snapshot{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}}}.Whole()
}

func (n oneNode) Event(_ context.Context, e corev1.Event) error { n.events <- e; return nil }

// TestRefused: rules that the kernel does not take are a failure in the metrics, a fault, the end of being healthy though nothing changes
// in the API, and an event of the node's: once, if it lasts, also where there is no node at first.
func TestRefused(t *testing.T) {
	o := Defaults()
	o.NodeName, o.ServiceProxy, o.Backend = "node0", false, BackendNFTables
	a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.faults.last, a.health = 0, proxy.NewHealth(0, time.Now)
	api := oneNode{events: make(chan corev1.Event, 10)}
	a.source = changingAPI{}
	p := &familyProxy{programsOf: programsOf{family: service.IPv4}, ports: service.NewPorts(), syncer: failingSyncer{err: unix.ENOMEM}}
	a.proxies = []*familyProxy{p}
	for i := range 5 {
		if i == 3 {
			a.source = api
		}
		if a.sync(t.Context(), p); p.failed != i+1 || len(p.pending) != 1 || a.health.Healthy() {
			t.Errorf("sync %d: failed %d times, %d pending, healthy: %v", i, p.failed, len(p.pending), a.health.Healthy())
		}
	}
	if e := <-api.events; e.InvolvedObject.Name != "node0" || e.Reason != "FailedToWriteServiceRules" ||
		!strings.Contains(e.Message, "memory") {
		t.Errorf("event %+v", e)
	}
	if len(api.events) > 0 {
		t.Errorf("another event: %+v", <-api.events)
	}
	mux := http.NewServeMux()
	a.faults.serve(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, faultsPath, nil))
	if !strings.Contains(w.Body.String(), "sync IPv4: cannot allocate memory") {
		t.Errorf("faults %s", w.Body)
	}
	text := string(a.metrics.text())
	if want := `kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4",node="node0"} 5`; !strings.Contains(text, want) {
		t.Errorf("no %s in\n%s", want, text)
	}
}

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

// onceMore is a failingSyncer that tells when it is asked for the second time.
type onceMore struct {
	failingSyncer
	syncs *int
	told  func()
}

func (o onceMore) Sync(ctx context.Context, ports *service.Ports, changed []service.Key) (proxy.Result, error) {
	if *o.syncs++; *o.syncs == 2 {
		o.told()
	}
	return o.failingSyncer.Sync(ctx, ports, changed)
}

func (oneNode) Changed() <-chan struct{} { return nil }

// TestListensWhileAFamilyFails: of damage to the rules of one family is heard also where the other's cannot be written.
func TestListensWhileAFamilyFails(t *testing.T) {
	o := Defaults()
	o.NodeName, o.ServiceProxy, o.Backend = "node0", false, BackendNFTables
	a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.source = oneNode{events: make(chan corev1.Event, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.proxies = []*familyProxy{{programsOf: programsOf{family: service.IPv6}, ports: service.NewPorts(),
		syncer: onceMore{failingSyncer{err: unix.EOPNOTSUPP}, new(int), cancel}}}
	watched := 0
	a.loop(ctx, func() {
		if ctx.Err() == nil {
			watched++
		}
	})
	if watched != 1 {
		t.Errorf("after a sync that failed, it was listened to the kernel %d times", watched)
	}
}

// agentIn is an agent with nftables, and a namespace for it.
func agentIn(t *testing.T) (*netns.Namespace, *agent) {
	t.Helper()
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	o := Defaults()
	o.NodeName, o.ServiceProxy, o.Backend, o.DockerBridge = "node0", false, BackendNFTables, netip.Prefix{}
	a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return ns, a
}

// TestRulesWithoutPrograms: what a service proxy with iptables left behind is a fault where there are no programs to remove it.
func TestRulesWithoutPrograms(t *testing.T) {
	ns, a := agentIn(t)
	for _, of := range []struct {
		program string
		family  service.Family
	}{{"iptables-nft", service.IPv4}, {"ip6tables-nft", service.IPv6}} {
		if err := ns.Do(func() error {
			gone := failingSyncer{err: exec.ErrNotFound}
			if err := a.remove(t.Context(), of.family, gone); err != nil {
				t.Errorf("%v: without rules: %v", of.family, err)
			}
			if err := exec.Command(of.program, "-t", "nat", "-N", "KUBE-SERVICES").Run(); err != nil {
				return err
			}
			if err := a.remove(t.Context(), of.family, gone); err == nil || !strings.Contains(err.Error(), "iptables is not installed") {
				t.Errorf("%v: with rules: %v", of.family, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// stuckSyncer is a syncer whose rules cannot be removed the first time.
type stuckSyncer struct {
	syncer
	removals *int
}

func (h stuckSyncer) Remove(context.Context) error {
	if *h.removals++; *h.removals == 1 {
		return unix.EBUSY
	}
	return nil
}

func (stuckSyncer) Repair(context.Context) ([]string, error) { return nil, nil }

// TestRemovesLater: what of others could not be removed after a sync is removed without another one.
func TestRemovesLater(t *testing.T) {
	ns, a := agentIn(t)
	a.source = oneNode{}
	other := stuckSyncer{removals: new(int)}
	p := &familyProxy{programsOf: programsOf{family: service.IPv4}, ports: service.NewPorts(),
		syncer: failingSyncer{}, other: other}
	a.proxies = []*familyProxy{p}
	if err := ns.Do(func() error {
		if a.sync(t.Context(), p); p.failed > 0 || p.other == nil || *other.removals != 1 {
			t.Errorf("after a sync: %d removals", *other.removals)
		}
		p.syncer = stuckSyncer{} // of which a look finds nothing
		a.repair(t.Context())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if p.other != nil || *other.removals != 2 {
		t.Errorf("after a look: %d removals", *other.removals)
	}
}

// TestStaleFlowsLater: stale flows that could not be deleted after a sync are a fault, and are looked for again without another one.
func TestStaleFlowsLater(t *testing.T) {
	ns, a := agentIn(t)
	p := &familyProxy{programsOf: programsOf{family: service.IPv4}, ports: service.NewPorts(), syncer: failingSyncer{}, udp: true,
		triggered: map[service.Key]time.Time{}}
	a.proxies = []*familyProxy{p}
	p.ports.Put(service.Key{Namespace: "default", Service: "dns"}, []service.Port{{Protocol: service.UDP, Port: 53,
		ClusterIP: netip.MustParseAddr("10.0.0.10"),
		Endpoints: []service.Endpoint{{Serving: true, Addr: netip.MustParseAddrPort("10.1.0.1:53")}}}})
	if err := ns.Do(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // this thread
		var had [2]unix.CapUserData
		if err := unix.Capget(&header, &had[0]); err != nil {
			return err
		}
		less := had
		less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &less[0]); err != nil {
			return err
		}
		a.cleanFlows(p)
		err := unix.Capset(&header, &had[0])
		if faults := fmt.Sprint(a.faults.now); !p.udp || !strings.Contains(faults, "stale IPv4 UDP flows") {
			t.Errorf("without the right to: stale flows %v, faults %s", p.udp, faults)
		}
		a.repair(t.Context())
		if p.udp || len(a.faults.now) > 0 {
			t.Errorf("after a look: stale flows %v, faults %v", p.udp, a.faults.now)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNoticesOfOtherProcessNamespaces: in a container the kernel's notices have process numbers that it does not know.
func TestNoticesOfOtherProcessNamespaces(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	listens, notices, ended := make(chan struct{}), make(chan notice, 9), make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error {
			return watchRules(ctx, func() { close(listens) }, func(n notice) { notices <- n })
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, ns.Remove()); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-listens:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	_, err = program.Command{Path: "unshare", Args: []string{"-pf", "nft", "add table ip x; delete table ip x"}, In: ns.Do}.Output(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n := <-notices
	p := newPrograms(service.IPv4, VariantInstalled)
	p.note(1) // in its namespace
	agent := &agent{nft: &ruleset.NFTables{NetNS: ns.FD()}, families: []programsOf{{service.IPv4, p}}}
	for _, nested := range []bool{false, true} {
		if p.nested = nested; agent.ours(n) != nested {
			t.Errorf("%+v, in a process namespace: %v", n, nested)
		}
	}
	// What the agent itself writes is its own wherever it runs; not what others of its process do.
	other := &ruleset.NFTables{NetNS: ns.FD()}
	table := nfnetlink.Table{Family: unix.NFPROTO_IPV4, Name: nftables.TableName}
	for _, nft := range []*ruleset.NFTables{agent.nft, other, agent.nft} {
		defer nft.Close()
		if err := nft.Commit(ctx, []netlink.Message{table.Make(), table.Delete()}, 0); err != nil {
			t.Fatal(err)
		}
		n := <-notices
		for _, p.nested = range []bool{false, true} {
			if agent.ours(n) != (nft == agent.nft) {
				t.Errorf("%+v, by the agent: %v, in a process namespace: %v", n, nft == agent.nft, p.nested)
			}
		}
	}
}
