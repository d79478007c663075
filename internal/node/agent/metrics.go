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

// meters make metrics whose names begin alike.
type meters struct {
	registry *prometheus.Registry
	prefix   string
}

func registered[T prometheus.Collector](m meters, metric T) T {
	m.registry.MustRegister(metric)
	return metric
}

func (m meters) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return registered(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}, labels))
}

func (m meters) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return registered(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, labels))
}

func (m meters) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return registered(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.prefix + name, Help: help, Buckets: buckets}, labels))
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), changes: map[string]changeMetrics{}}
	seconds := prometheus.ExponentialBuckets(0.001, 2, 15)
	proxy := meters{m.registry, "kubeproxy_"}
	const family = "ip_family"
	m.sync = proxy.histogram("sync_proxy_rules_duration_seconds", "Duration of a sync of the rules.", seconds, family)
	m.syncFull = proxy.histogram("sync_full_proxy_rules_duration_seconds", "Duration of a sync that writes all rules.", seconds, family)
	m.syncPartial = proxy.histogram("sync_partial_proxy_rules_duration_seconds",
		"Duration of a sync that writes changed chains only.", seconds, family)
	m.programming = proxy.histogram("network_programming_duration_seconds",
		"Time from a change of a service's endpoints, as their controller noted it, to the rules that follow it.", programmingBuckets(), family)
	m.lastSync = proxy.gauge("sync_proxy_rules_last_timestamp_seconds", "When the rules were last written with success.", family)
	m.lastQueued = proxy.gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", family)
	for kind, what := range map[string]string{"service": "service", "endpoints": "endpoint"} {
		m.changes[kind] = changeMetrics{
			pending: proxy.gauge("sync_proxy_rules_"+what+"_changes_pending", "Changes not yet in the rules.").WithLabelValues(),
			total:   proxy.counter("sync_proxy_rules_"+what+"_changes_total", "Changes seen.").WithLabelValues(),
		}
	}
	m.restoreFailures = proxy.counter("sync_proxy_rules_iptables_restore_failures_total", "Failures to write rules.", family)
	m.partialFailures = proxy.counter("sync_proxy_rules_iptables_partial_restore_failures_total",
		"Failures to write changed chains only.", family)
	m.rulesTotal = proxy.gauge("sync_proxy_rules_iptables_total", "Rules that the service proxy owns.", "table", family)
	m.rulesLast = proxy.gauge("sync_proxy_rules_iptables_last", "Rules written by the last sync.", "table", family)
	m.noLocal = proxy.gauge("sync_proxy_rules_no_local_endpoints_total",
		"Service ports with a Local policy that have endpoints, but none on this node.", "traffic_policy", family)
	m.healthz = proxy.counter("proxy_healthz_total", "Answers of /healthz.", "code")
	m.livez = proxy.counter("proxy_livez_total", "Answers of /livez.", "code")
	m.conntrack = proxy.histogram("conntrack_reconciler_sync_duration_seconds", "Duration of a look for stale flows.", seconds, family)
	m.conntrackDeleted = proxy.counter("conntrack_reconciler_deleted_entries_total", "Stale flows deleted.", family)
	m.repairs = meters{m.registry,
		"packetwalk_proxy_"}.counter("repaired_chains_total", "Chains put back after something else changed them.", family)
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
