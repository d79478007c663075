package serviceproxy

import (
	"context"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestMain sets sysctls when TestInit runs this program in a namespace.
func TestMain(m *testing.M) {
	if os.Getenv("PACKETWALK_TEST_ROLE") != "init" {
		os.Exit(m.Run())
	}
	if err := playInit(); err != nil {
		log.Fatal(err)
	}
}

// newTestProxy returns a proxy of no family, beside which no other runs, and its metrics.
func newTestProxy(t *testing.T, backend string, source Source) (*Proxy, *metrics.Registry) {
	t.Helper()
	o := options.Defaults()
	o.NodeName, o.Backend = "node0", backend
	logger := report.Logger{Logger: slog.New(slog.DiscardHandler)}
	registry := &metrics.Registry{}
	faults := report.NewFaults(logger, 0)
	sink, _ := source.(report.EventSink)
	events := &report.Events{Node: o.NodeName, Logger: logger, Sink: sink}
	return newProxy(Config{
		Options: o, Source: source, NFTables: nftables.NewRules(&ruleset.NFTables{}),
		Health: proxy.NewHealth(2*o.SyncPeriod, time.Now), Metrics: NewMetrics(registry, backend), Logger: logger, Faults: faults, Events: events,
		Waiter:  takeover.NewWaiter(o.NodeName, logger, faults, events, registry.Add("gauge", "waiting", "", "").Of()),
		Others:  takeover.Others{Look: func(context.Context) ([]string, error) { return nil, nil }, Quiet: takeover.Quiet},
		Leaving: takeover.Departure{Logger: logger, Time: takeover.LeaveTime}, Canary: CanaryPeriod,
	}), registry
}

// newTestNamespace returns a namespace for a proxy.
func newTestNamespace(t *testing.T) *netns.Namespace {
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
	return ns
}

// faultsOf returns the faults as they are served.
func faultsOf(p *Proxy) string {
	w := httptest.NewRecorder()
	p.Faults.ServeHTTP(w, httptest.NewRequest(http.MethodGet, report.FaultsPath, nil))
	return w.Body.String()
}

// noFaults is the answer without faults.
const noFaults = "{\n  \"unhealthy\": []\n}\n"

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
	Source
	events chan corev1.Event
}

func (oneNode) Delta(bool) kube.Delta {
	return kube.Snapshot{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}}}.Whole()
}

func (n oneNode) Event(_ context.Context, e corev1.Event) error { n.events <- e; return nil }

func (oneNode) Changed() <-chan struct{} { return nil }
