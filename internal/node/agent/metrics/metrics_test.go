package metrics

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TestRegistry: what Prometheus reads is what its own library would show it.
func TestRegistry(t *testing.T) {
	var m Registry
	r := prometheus.NewRegistry()

	h := m.Add("histogram", "took_seconds", "How long.", "table,ip_family", 0.001, 0.25, 60)
	theirs := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "took_seconds", Help: "How long.",
		Buckets: []float64{0.001, 0.25, 60}},
		[]string{"table", "ip_family"})
	for _, d := range []time.Duration{0, time.Millisecond, 250 * time.Millisecond, time.Minute + 1, time.Hour} {
		for _, table := range []string{"nat", "filter"} {
			h.Of(table, "IPv4").Observe(d)
			theirs.WithLabelValues(table, "IPv4").Observe(d.Seconds())
		}
	}
	bare := m.Add("histogram", "bare_seconds", "Without labels.", "", 1)
	bare.Of().Observe(time.Second)
	theirBare := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bare_seconds", Help: "Without labels.", Buckets: []float64{1}})
	theirBare.Observe(1)

	c := m.Add("counter", "changes_total", "How many.", "")
	theirCounter := prometheus.NewCounter(prometheus.CounterOpts{Name: "changes_total", Help: "How many."})
	c.Of().Add(3)
	theirCounter.Add(3)
	m.Add("counter", "unused_total", "Nothing yet.", "code")
	theirUnused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unused_total", Help: "Nothing yet."}, []string{"code"})

	g := m.Add("gauge", "last_timestamp_seconds", "When.", "what")
	theirGauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "last_timestamp_seconds", Help: "When."}, []string{"what"})
	for what, v := range map[string]float64{"": 0, `a "b"\` + "\n": 1.7e9 + 0.25, "z": -1e-9} {
		g.Of(what).Set(v)
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
	g.Of("z").SetNow()
	if v := time.Since(time.Unix(0, int64(g.Of("z").value*1e9))).Abs(); v > time.Hour {
		t.Errorf("now is %v away", v)
	}
}
