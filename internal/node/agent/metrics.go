package agent

import (
	"runtime"
	"strconv"
	"time"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// metrics are those of kube-proxy by the same names, types and labels (k8s.io/kubernetes pkg/proxy/metrics/metrics.go, 1.35), so that
// dashboards and alerts made for it go on working; of those that every program of Kubernetes has, those of the process. The oracle's
// TestMetricsHaveUpstreamsNames has what is left out.
type metrics struct {
	meters

	sync, syncFull, syncPartial, programming *meter
	lastSync, lastQueued                     *meter
	changes                                  map[string]changeMeters // by kube's kind of object
	restoreFailures, partialFailures         *meter
	cleanupFailures                          *meter
	rulesTotal, rulesLast, noLocal           *meter
	healthz, livez                           *meter
	conntrack, conntrackDeleted              *meter
	repairs, build                           *meter
	apiReachable                             *meter
	waiting, others                          *series
}

type changeMeters struct{ pending, total *series }

// newMetrics makes them for a backend: some have another name, or are not, with nftables.
func newMetrics(backend string) *metrics {
	m := &metrics{changes: map[string]changeMeters{}}
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
	m.sync = m.add("histogram", "kubeproxy_sync_proxy_rules_duration_seconds", "Duration of a sync of the rules.", family, seconds...)
	m.syncFull = m.add("histogram", "kubeproxy_sync_full_proxy_rules_duration_seconds",
		"Duration of a sync that writes all rules.", family, seconds...)
	m.syncPartial = m.add("histogram", "kubeproxy_sync_partial_proxy_rules_duration_seconds",
		"Duration of a sync that writes changed chains only.", family, seconds...)
	m.programming = m.add("histogram", "kubeproxy_network_programming_duration_seconds",
		"Time from a change of a service's endpoints, as their controller noted it, to the rules that follow it.", family, programming...)
	m.lastSync = m.add("gauge", "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When the rules were last written with success.", family)
	m.lastQueued = m.add("gauge", "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", family)
	for kind, what := range map[string]string{"service": "service", "endpoints": "endpoint"} {
		m.changes[kind] = changeMeters{
			pending: m.add("gauge", "kubeproxy_sync_proxy_rules_"+what+"_changes_pending", "Changes not yet in the rules.", "").of(),
			total:   m.add("counter", "kubeproxy_sync_proxy_rules_"+what+"_changes_total", "Changes seen.", "").of(),
		}
	}
	failures := "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
	if backend == BackendNFTables {
		failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
	}
	m.restoreFailures = m.add("counter", failures, "Failures to write rules.", family)
	m.cleanupFailures = m.add("counter", "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
		"Failures to delete what is not used any more.", family)
	m.partialFailures = m.add("counter", "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		"Failures to write changed chains only.", family)
	m.rulesTotal = m.add("gauge", "kubeproxy_sync_proxy_rules_iptables_total", "Rules that the service proxy owns.", "table,"+family)
	m.rulesLast = m.add("gauge", "kubeproxy_sync_proxy_rules_iptables_last", "Rules written by the last sync.", "table,"+family)
	m.noLocal = m.add("gauge", "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports with a Local policy that have endpoints, but none on this node.", "traffic_policy,"+family)
	m.healthz = m.add("counter", "kubeproxy_proxy_healthz_total", "Answers of /healthz.", "code")
	m.livez = m.add("counter", "kubeproxy_proxy_livez_total", "Answers of /livez.", "code")
	m.conntrack = m.add("histogram", "kubeproxy_conntrack_reconciler_sync_duration_seconds",
		"Duration of a look for stale flows.", family, seconds...)
	m.conntrackDeleted = m.add("counter", "kubeproxy_conntrack_reconciler_deleted_entries_total", "Stale flows deleted.", family)
	if backend == BackendIPTables {
		m.addRead("counter", "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
			"Packets dropped because conntrack takes them for invalid.", packetsOf(iptables.CounterInvalid))
		m.addRead("counter", "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
			"Packets to node ports on loopback addresses.", packetsOf(iptables.CounterLocalhost))
	}
	m.addProcess()
	m.repairs = m.add("counter", "packetwalk_proxy_repaired_chains_total", "Chains put back after something else changed them.", family)
	m.build = m.add("gauge", "packetwalk_build_info", "Always 1; the labels are the program's versions.", "version,go_version")
	m.apiReachable = m.add("gauge", "packetwalk_api_server_reachable", "1 if the API server answered the last request.", "")
	m.waiting = m.add("gauge", "packetwalk_waiting", "1 while this waits for another service proxy to end.", "").of()
	m.others = m.add("gauge", "packetwalk_proxy_other_service_proxies", "Other service proxies that run beside this one.", "").of()
	return m
}

// start has counters of ours start at 0, and every series say of which node it is.
func (m *metrics) start(o *Options) {
	if o.NodeName != "" {
		m.common = `node="` + escape.Replace(o.NodeName) + `"`
	}
	m.build.of(o.Version, runtime.Version()).set(1)
	for _, f := range o.Families {
		m.repairs.of(f.String())
	}
}

// change counts an object's change.
func (m *metrics) change(kind string) {
	if c, ok := m.changes[kind]; ok {
		c.pending.add(1)
		c.total.add(1)
	}
}

func (m *metrics) taken() {
	for _, c := range m.changes {
		c.pending.set(0)
	}
}

func (m *metrics) countResponse(path string, code int) {
	c := m.healthz
	if path == "/livez" {
		c = m.livez
	}
	c.of(strconv.Itoa(code)).add(1)
}

// synced notes one sync of a family.
func (m *metrics) synced(f service.Family, r proxy.Result, took time.Duration, err error) {
	family := f.String()
	m.sync.of(family).observe(took)
	if r.Full {
		m.syncFull.of(family).observe(took)
	} else {
		m.syncPartial.of(family).observe(took)
	}
	if r.PartialErr != nil {
		m.restoreFailures.of(family).add(1)
		m.partialFailures.of(family).add(1)
	}
	if err != nil {
		m.restoreFailures.of(family).add(1)
		return
	}
	if _, tables := r.Total[nftables.TableName]; tables && r.CleanupErr != nil {
		m.cleanupFailures.of(family).add(1)
	}
	for _, table := range []string{"filter", "nat"} {
		if _, has := r.Total[table]; !has {
			continue
		}
		m.rulesTotal.of(table, family).set(float64(r.Total[table]))
		m.rulesLast.of(table, family).set(float64(r.Written[table]))
	}
	m.noLocal.of("internal", family).set(float64(r.NoLocalInternal))
	m.noLocal.of("external", family).set(float64(r.NoLocalExternal))
}
