package agent

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
)

// metrics are those of kube-proxy by the same names, types and labels (k8s.io/kubernetes pkg/proxy/metrics/metrics.go, 1.35), so that
// dashboards and alerts made for it go on working.
type metrics struct {
	registry *prometheus.Registry

	sync, syncFull, syncPartial *prometheus.HistogramVec
	programming                 *prometheus.HistogramVec
	lastSync, lastQueued        *prometheus.GaugeVec
	changes                     map[string]changeMetrics // by kube's kind of object
	restoreFailures             *prometheus.CounterVec
	partialFailures             *prometheus.CounterVec
	rulesTotal, rulesLast       *prometheus.GaugeVec
	noLocal                     *prometheus.GaugeVec
	healthz, livez              *prometheus.CounterVec
	conntrack                   *prometheus.HistogramVec
	conntrackDeleted            *prometheus.CounterVec
	repairs                     *prometheus.CounterVec
}

type changeMetrics struct {
	pending prometheus.Gauge
	total   prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), changes: map[string]changeMetrics{}}
	name := func(n string) string { return "kubeproxy_" + n }
	family := []string{"ip_family"}
	seconds := prometheus.ExponentialBuckets(0.001, 2, 15)
	histogram := func(n, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name(n), Help: help, Buckets: buckets}, family)
		m.registry.MustRegister(v)
		return v
	}
	gauge := func(n, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name(n), Help: help}, labels)
		m.registry.MustRegister(v)
		return v
	}
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(n), Help: help}, labels)
		m.registry.MustRegister(v)
		return v
	}
	m.sync = histogram("sync_proxy_rules_duration_seconds", "Duration of a sync of the rules.", seconds)
	m.syncFull = histogram("sync_full_proxy_rules_duration_seconds", "Duration of a sync that writes all rules.", seconds)
	m.syncPartial = histogram("sync_partial_proxy_rules_duration_seconds", "Duration of a sync that writes changed chains only.", seconds)
	m.programming = histogram("network_programming_duration_seconds",
		"Time from a change of a service's endpoints, as their controller noted it, to the rules that follow it.", programmingBuckets())
	m.lastSync = gauge("sync_proxy_rules_last_timestamp_seconds", "When the rules were last written with success.", "ip_family")
	m.lastQueued = gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", "ip_family")
	for kind, what := range map[string]string{"service": "service", "endpoints": "endpoint"} {
		c := changeMetrics{
			pending: prometheus.NewGauge(prometheus.GaugeOpts{Name: name("sync_proxy_rules_" + what + "_changes_pending"), Help: "Changes not yet in the rules."}),
			total:   prometheus.NewCounter(prometheus.CounterOpts{Name: name("sync_proxy_rules_" + what + "_changes_total"), Help: "Changes seen."}),
		}
		m.registry.MustRegister(c.pending, c.total)
		m.changes[kind] = c
	}
	m.restoreFailures = counter("sync_proxy_rules_iptables_restore_failures_total", "Failures to write rules.", "ip_family")
	m.partialFailures = counter("sync_proxy_rules_iptables_partial_restore_failures_total", "Failures to write changed chains only.", "ip_family")
	m.rulesTotal = gauge("sync_proxy_rules_iptables_total", "Rules that the service proxy owns.", "table", "ip_family")
	m.rulesLast = gauge("sync_proxy_rules_iptables_last", "Rules written by the last sync.", "table", "ip_family")
	m.noLocal = gauge("sync_proxy_rules_no_local_endpoints_total",
		"Service ports with a Local policy that have endpoints, but none on this node.", "traffic_policy", "ip_family")
	m.healthz = counter("proxy_healthz_total", "Answers of /healthz.", "code")
	m.livez = counter("proxy_livez_total", "Answers of /livez.", "code")
	m.conntrack = histogram("conntrack_reconciler_sync_duration_seconds", "Duration of a look for stale flows.", seconds)
	m.conntrackDeleted = counter("conntrack_reconciler_deleted_entries_total", "Stale flows deleted.", "ip_family")
	m.repairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packetwalk_proxy_repaired_chains_total", Help: "Chains put back after something else changed them.",
	}, family)
	m.registry.MustRegister(m.repairs)
	return m
}

func programmingBuckets() []float64 {
	buckets := prometheus.LinearBuckets(0.25, 0.25, 2)
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}

// change counts an object's change.
func (m *metrics) change(kind string) {
	if c, ok := m.changes[kind]; ok {
		c.pending.Inc()
		c.total.Inc()
	}
}

func (m *metrics) taken() {
	for _, c := range m.changes {
		c.pending.Set(0)
	}
}

func (m *metrics) answered(path string, code int) {
	c := m.healthz
	if path == "/livez" {
		c = m.livez
	}
	c.WithLabelValues(strconv.Itoa(code)).Inc()
}

// synced notes one sync of a family.
func (m *metrics) synced(f service.Family, r serviceproxy.Result, took time.Duration, err error) {
	family := f.String()
	m.sync.WithLabelValues(family).Observe(took.Seconds())
	if r.Full {
		m.syncFull.WithLabelValues(family).Observe(took.Seconds())
	} else {
		m.syncPartial.WithLabelValues(family).Observe(took.Seconds())
	}
	if err != nil {
		m.restoreFailures.WithLabelValues(family).Inc()
		if !r.Full {
			m.partialFailures.WithLabelValues(family).Inc()
		}
		return
	}
	for _, table := range []string{"filter", "nat"} {
		m.rulesTotal.WithLabelValues(table, family).Set(float64(r.Total[table]))
		m.rulesLast.WithLabelValues(table, family).Set(float64(r.Written[table]))
	}
	m.noLocal.WithLabelValues("internal", family).Set(float64(r.NoLocalInternal))
	m.noLocal.WithLabelValues("external", family).Set(float64(r.NoLocalExternal))
	m.lastSync.WithLabelValues(family).SetToCurrentTime()
}
