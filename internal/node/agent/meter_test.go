package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

// TestMeters: what Prometheus reads is what its own library would show it.
func TestMeters(t *testing.T) {
	var m meters
	r := prometheus.NewRegistry()

	h := m.add("histogram", "took_seconds", "How long.", "table,ip_family", 0.001, 0.25, 60)
	theirs := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "took_seconds", Help: "How long.",
		Buckets: []float64{0.001, 0.25, 60}},
		[]string{"table", "ip_family"})
	for _, d := range []time.Duration{0, time.Millisecond, 250 * time.Millisecond, time.Minute + 1, time.Hour} {
		for _, table := range []string{"nat", "filter"} {
			h.of(table, "IPv4").observe(d)
			theirs.WithLabelValues(table, "IPv4").Observe(d.Seconds())
		}
	}
	bare := m.add("histogram", "bare_seconds", "Without labels.", "", 1)
	bare.of().observe(time.Second)
	theirBare := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bare_seconds", Help: "Without labels.", Buckets: []float64{1}})
	theirBare.Observe(1)

	c := m.add("counter", "changes_total", "How many.", "")
	theirCounter := prometheus.NewCounter(prometheus.CounterOpts{Name: "changes_total", Help: "How many."})
	c.of().add(3)
	theirCounter.Add(3)
	m.add("counter", "unused_total", "Nothing yet.", "code")
	theirUnused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unused_total", Help: "Nothing yet."}, []string{"code"})

	g := m.add("gauge", "last_timestamp_seconds", "When.", "what")
	theirGauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "last_timestamp_seconds", Help: "When."}, []string{"what"})
	for what, v := range map[string]float64{"": 0, `a "b"\` + "\n": 1.7e9 + 0.25, "z": -1e-9} {
		g.of(what).set(v)
		theirGauge.WithLabelValues(what).Set(v)
	}
	r.MustRegister(theirs, theirBare, theirCounter, theirUnused, theirGauge)

	want, got := httptest.NewRecorder(), httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(want, request)
	m.ServeHTTP(got, request)
	if diff := cmp.Diff(want.Body.String(), got.Body.String()); diff != "" {
		t.Errorf("-theirs +ours:\n%s", diff)
	}
	g.of("z").setNow()
	if v := time.Since(time.Unix(0, int64(g.of("z").value*1e9))).Abs(); v > time.Hour {
		t.Errorf("now is %v away", v)
	}
}

// TestFailuresOfPartOfAChange are counted as kube-proxy counts them, also where comparing everything made up for them.
func TestFailuresOfPartOfAChange(t *testing.T) {
	m := newMetrics(BackendIPTables)
	m.synced(service.IPv4, proxy.Result{Full: true, PartialErr: errors.New("refused")}, time.Second, nil)
	for _, name := range []string{"restore_failures", "partial_restore_failures"} {
		want := "kubeproxy_sync_proxy_rules_iptables_" + name + `_total{ip_family="IPv4"} 1` + "\n"
		if !strings.Contains(string(m.text()), want) {
			t.Errorf("no %s in\n%s", want, m.text())
		}
	}
}
