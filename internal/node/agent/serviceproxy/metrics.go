package serviceproxy

import (
	"strconv"
	"time"

	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// Metrics are those of kube-proxy by the same names, types and labels (k8s.io/kubernetes pkg/proxy/metrics/metrics.go, 1.35), so that
// dashboards and alerts made for it go on working; of those that every program of Kubernetes has, those of the process. The oracle's
// TestMetricsHaveUpstreamsNames has what is left out.
type Metrics struct {
	sync, syncFull, syncPartial, programming *metrics.Metric
	lastSync, lastQueued                     *metrics.Metric
	changes                                  map[string]changeMeters // by kube's kind of object
	restoreFailures, partialFailures         *metrics.Metric
	cleanupFailures                          *metrics.Metric
	rulesTotal, rulesLast, noLocal           *metrics.Metric
	healthz, livez                           *metrics.Metric
	conntrack, conntrackDeleted              *metrics.Metric
	repairs                                  *metrics.Metric
	others                                   *metrics.Series
}

type changeMeters struct{ pending, total *metrics.Series }

// NewMetrics adds the metrics of a backend to a registry: with nftables some have another name or are missing.
func NewMetrics(registry *metrics.Registry, backend string) *Metrics {
	m := &Metrics{changes: map[string]changeMeters{}}
	var seconds, programming []float64
	for bound := 0.001; len(seconds) < 15; bound *= 2 {
		seconds = append(seconds, bound)
	}
	for _, row := range []struct{ from, step, to float64 }{{0.25, 0.25, 0.5}, {1, 1, 59}, {60, 5, 115}, {120, 30, 300}} {
		for bound := row.from; bound <= row.to; bound += row.step {
			programming = append(programming, bound)
		}
	}
	const family = "ip_family"
	m.sync = registry.Add("histogram", "kubeproxy_sync_proxy_rules_duration_seconds", "Duration of a sync of the rules.", family, seconds...)
	m.syncFull = registry.Add("histogram", "kubeproxy_sync_full_proxy_rules_duration_seconds",
		"Duration of a sync that writes all rules.", family, seconds...)
	m.syncPartial = registry.Add("histogram", "kubeproxy_sync_partial_proxy_rules_duration_seconds",
		"Duration of a sync that writes changed chains only.", family, seconds...)
	m.programming = registry.Add("histogram", "kubeproxy_network_programming_duration_seconds",
		"Time from a change of a service's endpoints, as their controller noted it, to the rules that follow it.", family, programming...)
	m.lastSync = registry.Add("gauge", "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When the rules were last written with success.", family)
	m.lastQueued = registry.Add("gauge", "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", family)
	for kind, what := range map[string]string{"service": "service", "endpoints": "endpoint"} {
		m.changes[kind] = changeMeters{
			pending: registry.Add("gauge", "kubeproxy_sync_proxy_rules_"+what+"_changes_pending", "Changes not yet in the rules.", "").Of(),
			total:   registry.Add("counter", "kubeproxy_sync_proxy_rules_"+what+"_changes_total", "Changes seen.", "").Of(),
		}
	}
	failures := "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
	if backend == options.BackendNFTables {
		failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
	}
	m.restoreFailures = registry.Add("counter", failures, "Failures to write rules.", family)
	m.cleanupFailures = registry.Add("counter", "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
		"Failures to delete what is not used any more.", family)
	m.partialFailures = registry.Add("counter", "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		"Failures to write changed chains only.", family)
	m.rulesTotal = registry.Add("gauge", "kubeproxy_sync_proxy_rules_iptables_total", "Rules that the service proxy owns.", "table,"+family)
	m.rulesLast = registry.Add("gauge", "kubeproxy_sync_proxy_rules_iptables_last", "Rules written by the last sync.", "table,"+family)
	m.noLocal = registry.Add("gauge", "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports with a Local policy that have endpoints, but none on this node.", "traffic_policy,"+family)
	m.healthz = registry.Add("counter", "kubeproxy_proxy_healthz_total", "Answers of /healthz.", "code")
	m.livez = registry.Add("counter", "kubeproxy_proxy_livez_total", "Answers of /livez.", "code")
	m.conntrack = registry.Add("histogram", "kubeproxy_conntrack_reconciler_sync_duration_seconds",
		"Duration of a look for stale flows.", family, seconds...)
	m.conntrackDeleted = registry.Add("counter", "kubeproxy_conntrack_reconciler_deleted_entries_total", "Stale flows deleted.", family)
	if backend == options.BackendIPTables {
		registry.AddRead("counter", "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
			"Packets dropped because conntrack takes them for invalid.", packetsOf(iptables.CounterInvalid))
		registry.AddRead("counter", "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
			"Packets to node ports on loopback addresses.", packetsOf(iptables.CounterLocalhost))
	}
	m.repairs = registry.Add("counter", "packetwalk_proxy_repaired_chains_total", "Chains put back after something else changed them.", family)
	m.others = registry.Add("gauge", "packetwalk_proxy_other_service_proxies", "Other service proxies that run beside this one.", "").Of()
	return m
}

// Start has the counters of our own start at 0 for these families.
func (m *Metrics) Start(families []service.Family) {
	for _, f := range families {
		m.repairs.Of(f.String())
	}
}

// NoteChange counts an object's change.
func (m *Metrics) NoteChange(kind string) {
	if c, ok := m.changes[kind]; ok {
		c.pending.Add(1)
		c.total.Add(1)
	}
}

func (m *Metrics) taken() {
	for _, c := range m.changes {
		c.pending.Set(0)
	}
}

// CountResponse counts an answer of /healthz or /livez.
func (m *Metrics) CountResponse(path string, code int) {
	c := m.healthz
	if path == "/livez" {
		c = m.livez
	}
	c.Of(strconv.Itoa(code)).Add(1)
}

// synced notes one sync of a family.
func (m *Metrics) synced(f service.Family, r proxy.Result, took time.Duration, err error) {
	family := f.String()
	m.sync.Of(family).Observe(took)
	if r.Full {
		m.syncFull.Of(family).Observe(took)
	} else {
		m.syncPartial.Of(family).Observe(took)
	}
	if r.PartialErr != nil {
		m.restoreFailures.Of(family).Add(1)
		m.partialFailures.Of(family).Add(1)
	}
	if err != nil {
		m.restoreFailures.Of(family).Add(1)
		return
	}
	if _, tables := r.Total[nftables.TableName]; tables && r.CleanupErr != nil {
		m.cleanupFailures.Of(family).Add(1)
	}
	for _, table := range []string{"filter", "nat"} {
		if _, has := r.Total[table]; !has {
			continue
		}
		m.rulesTotal.Of(table, family).Set(float64(r.Total[table]))
		m.rulesLast.Of(table, family).Set(float64(r.Written[table]))
	}
	m.noLocal.Of("internal", family).Set(float64(r.NoLocalInternal))
	m.noLocal.Of("external", family).Set(float64(r.NoLocalExternal))
}
