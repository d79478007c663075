package agent

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/masq"
	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/reconcile"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/agent/rulewatch"
	"packetwalk.dev/internal/node/agent/serviceproxy"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// apiClient reads the API's objects and reports to it; *kube.Watcher implements it.
type apiClient interface {
	serviceproxy.Source
	report.EventSink
	takeover.PodConditions
	Run(ctx context.Context)
	WaitForSync(ctx context.Context) bool
}

// agent wires the parts of a node's agent.
type agent struct {
	options.Options
	source   apiClient
	owner    takeover.Owner // the agent's DaemonSet; nil: not followed
	registry *metrics.Registry
	metrics  *serviceproxy.Metrics
	health   *proxy.Health
	logger   report.Logger
	faults   *report.Faults
	events   *report.Events
	waiter   *takeover.Waiter
	api      apiServer
	programs []*iptablescmd.Programs // one for each family
	nft      *ruleset.NFTables       // for all families
	watcher  *rulewatch.Watcher
	masq     *masq.Agent // nil without
	acquired atomic.Bool // all roles are this agent's
	timing   timing
}

// timing says how long the agent waits for other processes, and how often it tries. Tests wait less.
type timing struct {
	quiet, leave time.Duration // of takeover
	canary       time.Duration // of the service proxy
	listen       time.Duration // before a server listens again
}

var usualTiming = timing{quiet: takeover.Quiet, leave: takeover.LeaveTime, canary: serviceproxy.CanaryPeriod, listen: 5 * time.Second}

// Run runs the agent until the context ends. It then hands over to another service proxy or removes the rules of Services if its DaemonSet
// has been deleted; otherwise it leaves all rules in place. It fails only at the start: on options, on sysctls that it needs, and with
// BindHardFail on the addresses it listens on.
func Run(ctx context.Context, o options.Options, logger *slog.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	config, err := kube.Config(o.Server, o.Kubeconfig, "packetwalk-node/"+o.Version)
	if err != nil {
		return err
	}
	if o.QPS > 0 {
		config.QPS, config.Burst = o.QPS, o.Burst
	}
	a := newAgent(o, logger)
	a.api.url = config.Host
	config.Wrap(a.api.transport)
	if o.ServiceProxy && o.RecognisesNoPods() {
		a.logger.Warnf("clusterCIDR is empty: traffic from outside the cluster to cluster IPs keeps its source address; write the range of the pods")
	}
	watcher, err := kube.NewWatcher(config, a.api.note)
	if err == nil && o.ServiceProxy {
		err = watcher.WatchServices(config, o.NodeName, a.metrics.NoteChange)
	}
	if err == nil && o.ServiceProxy && o.Backend == options.BackendNFTables {
		err = watcher.WatchServiceCIDRs(config)
	}
	if err != nil {
		return err
	}
	a.setSource(watcher)
	if o.IPMasqAgent {
		maps, err := kube.NewConfigMaps(config, a.api.note, metav1.NamespaceSystem, o.MasqConfigMaps...)
		if err != nil {
			return err
		}
		a.addMasqAgent(maps)
	}
	if o.CleanupOnDelete != "" && o.ServiceProxy {
		namespace, name, _ := strings.Cut(o.CleanupOnDelete, "/")
		if a.owner, err = kube.NewOwner(config, a.api.note, namespace, name); err != nil {
			return err
		}
	}
	return a.run(ctx)
}

// newAgent returns an agent that has no source yet.
func newAgent(o options.Options, logger *slog.Logger) *agent {
	a := &agent{
		Options: o, logger: report.Logger{Logger: logger}, registry: &metrics.Registry{}, nft: &ruleset.NFTables{},
		health: proxy.NewHealth(2*o.SyncPeriod, time.Now),
		timing: usualTiming,
	}
	a.metrics = serviceproxy.NewMetrics(a.registry, o.Backend)
	a.metrics.Start(o.Families)
	own := addMetrics(a.registry)
	if o.NodeName != "" {
		a.registry.SetCommon("node", o.NodeName)
	}
	own.build.Of(o.Version, runtime.Version()).Set(1)
	a.faults = report.NewFaults(a.logger, report.FaultsLast)
	a.events = &report.Events{Node: o.NodeName, Logger: a.logger}
	a.api = apiServer{faults: a.faults, logger: a.logger, reachable: own.apiReachable}
	a.waiter = takeover.NewWaiter(o.NodeName, a.logger, a.faults, a.events, own.waiting)
	for _, f := range o.Families {
		a.programs = append(a.programs, iptablescmd.New(f, o.IPTablesVariant))
	}
	a.watcher = rulewatch.New(a.nft, a.programs)
	return a
}

// agentMetrics are those that belong to no part of the agent.
type agentMetrics struct {
	build, apiReachable *metrics.Metric
	waiting             *metrics.Series
}

func addMetrics(r *metrics.Registry) agentMetrics {
	r.AddProcess()
	return agentMetrics{
		build:        r.Add("gauge", "packetwalk_build_info", "Always 1; the labels are the program's versions.", "version,go_version"),
		apiReachable: r.Add("gauge", "packetwalk_api_server_reachable", "1 if the API server answered the last request.", ""),
		waiting:      r.Add("gauge", "packetwalk_waiting", "1 while this waits for another service proxy to end.", "").Of(),
	}
}

// MetricNames returns the metrics that an agent of a backend has as the service proxy.
func MetricNames(backend string) []string {
	var r metrics.Registry
	serviceproxy.NewMetrics(&r, backend)
	addMetrics(&r)
	var names []string
	for name := range r.Kinds() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// setSource gives the agent the API.
func (a *agent) setSource(source apiClient) { a.source, a.events.Sink = source, source }

// addMasqAgent makes the agent keep the rules of the ip-masq-agent.
func (a *agent) addMasqAgent(source masq.Source) {
	var targets []masq.Target
	for _, p := range a.programs {
		t := masq.Target{Family: p.Family, Tables: p}
		if p.Family == service.IPv4 {
			t.Ahead = a.NodeRules().Postrouting
		}
		targets = append(targets, t)
	}
	a.masq = masq.New(a.Options, source, targets, a.registry, a.logger)
}

// newServiceProxy returns the node's service proxy. It sets the sysctls that this needs.
func (a *agent) newServiceProxy() (*serviceproxy.Proxy, error) {
	return serviceproxy.New(serviceproxy.Config{
		Options: a.Options, Source: a.source, Programs: a.programs, NFTables: nftables.NewRules(a.nft), Damaged: a.watcher.Damaged(),
		Health: a.health, Metrics: a.metrics, Logger: a.logger, Faults: a.faults, Events: a.events, Waiter: a.waiter,
		Others:       takeover.Others{Look: conflict.ServiceProxies, Quiet: a.timing.quiet},
		Leaving:      takeover.Departure{Owner: a.owner, Logger: a.logger, Time: a.timing.leave},
		Canary:       a.timing.canary,
		BeforeRepair: a.ensureNodeRules, AfterRepair: a.repairMasq,
	})
}

// run runs the agent until it is told to stop by the end of stop, and until it has left the node.
func (a *agent) run(stop context.Context) (err error) {
	var services *serviceproxy.Proxy // nil: another one is beside the agent
	if a.ServiceProxy {
		if services, err = a.newServiceProxy(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	var beside sync.WaitGroup
	defer func() { cancel(); beside.Wait() }()
	a.adjustOOMScore()
	if err := a.serve(ctx, &beside); err != nil {
		return err
	}
	a.logger.Infof("packetwalk-node %s on node %s: %s, rules %s, families %v", a.Version, a.NodeName, a.Backend, a.Rules, a.Families)
	if a.Pod != "" {
		beside.Go(func() { a.waiter.KeepCondition(ctx, a.source, a.Pod) })
	}
	if !a.waiter.AcquireRoles(stop, a.roles()) {
		return nil
	}
	a.acquired.Store(true)
	beside.Go(func() { a.source.Run(ctx) })
	if a.owner != nil {
		beside.Go(func() { a.owner.Run(ctx) })
	}
	a.ensureNodeRules(ctx) // before the first sync: it needs nothing of the API
	if a.masq != nil {
		beside.Go(func() { a.masq.Run(ctx) })
	}
	if !a.source.WaitForSync(stop) {
		return nil // told to stop before the API answered
	}
	if services != nil && !services.Wait(stop) {
		return nil
	}
	a.waiter.Finish()
	watch := func() {
		if a.WatchKernel {
			beside.Go(func() { a.watcher.Run(ctx, a.faults, a.SyncPeriod) })
		}
	}
	if services != nil {
		return services.Run(ctx, stop, watch)
	}
	watch()
	a.keepNodeRules(stop)
	a.logger.Infof("stopped; rules stay in place")
	return nil
}

// keepNodeRules keeps the rules beside another service proxy's until ctx ends.
func (a *agent) keepNodeRules(ctx context.Context) {
	check := reconcile.NewCheck(a.SyncPeriod, reconcile.NewPacer(a.Backend, a.MinSyncPeriod, a.SyncPeriod))
	loop := reconcile.Loop{
		Damaged: reconcile.Wakeup{From: a.watcher.Damaged(), Note: check.Notice},
		Tasks: []reconcile.Task{{Until: check.Until, Run: func(ctx context.Context) {
			check.Run(func() { a.ensureNodeRules(ctx); a.repairMasq() })
		}}},
	}
	loop.Run(ctx)
}

// roles returns what the agent keeps, by the names under which it acquires them.
func (a *agent) roles() (names []string) {
	for name, wanted := range map[string]bool{conflict.ServiceProxy: a.ServiceProxy, conflict.MasqAgent: a.IPMasqAgent} {
		if wanted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// repairMasq asks for a look at the ip-masq-agent's rules.
func (a *agent) repairMasq() {
	if a.masq != nil {
		a.masq.Repair()
	}
}

// adjustOOMScore sets how likely the kernel ends the process when memory is short.
func (a *agent) adjustOOMScore() {
	if a.OOMScore == nil {
		return
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*a.OOMScore))), 0); err != nil {
		a.logger.Warnf("set oom_score_adj to %d: %v", *a.OOMScore, err)
	}
}
