package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// apiClient reads the API's objects and reports to it; *kube.Watcher is one.
type apiClient interface {
	objectSource
	reporter
}

// objectSource is where the agent gets the API's objects from.
type objectSource interface {
	Run(ctx context.Context)
	WaitForSync(ctx context.Context) bool
	Changed() <-chan struct{}
	// Delta gives what has changed since it was asked for the last time, or all there is.
	Delta(whole bool) kube.Delta
}

// reporter tells the API what the agent did.
type reporter interface {
	Event(ctx context.Context, e corev1.Event) error
	SetPodCondition(ctx context.Context, namespace, name string, c corev1.PodCondition) error
}

// canaryPeriod is how often the agent looks whether all its rules were flushed.
const canaryPeriod = 5 * time.Second

// watchRetry is how long the agent waits before it listens for notices again.
const watchRetry = 5 * time.Second

// noticeQuiet is how long after a notice of a deleted rule the agent looks: who flushes tables does it in several steps.
const noticeQuiet = 100 * time.Millisecond

type agent struct {
	Options
	source      apiClient
	metrics     *metrics
	health      *proxy.Health
	checks      *proxy.HealthChecks
	nft         *ruleset.NFTables // for all families, as are its rules
	rules       *nftables.Rules
	families    []programsOf
	proxies     []*familyProxy // none without the service proxy
	unserved    []*familyProxy // of families that are not served and may have rules of another service proxy
	allUnserved []*familyProxy // of families that are not served
	own         noderules.Rules
	masq        *masqAgent // nil without
	faults      faults
	api         apiServer
	waiting     waitState
	acquired    atomic.Bool // all roles are this agent's
	others      others
	leaving     departure
	logger      *slog.Logger

	node  *service.Node // as the service ports see it; nil before the first sync
	whole bool          // all rules of a family were compared or written

	wantedChecks []service.HealthCheck
	failedChecks map[service.Key]bool // health check node ports whose failure has been reported
	notices      chan struct{}
}

// programsOf are the programs for the rules of one family.
type programsOf struct {
	family   service.Family
	programs *programs
}

// familyProxy is the service proxy of one family, which waits for no other's.
type familyProxy struct {
	programsOf
	pace   pacer
	ports  *service.Ports
	syncer syncer
	config proxy.Config
	other  syncer // of the other backend, whose rules are to be removed; nil: they are
	idle   syncer // of the other backend
	left   bool   // the rules are another service proxy's, which runs
	behind bool   // the rules are those of another one that has ended, until the next sync succeeds
	udp    bool   // UDP flows may be stale
	failed int    // syncs in a row
	told   bool   // of these, by an event

	pending   map[service.Key][]time.Time // changed since the last sync that succeeded, with the trigger times of its endpoints' changes
	triggered map[service.Key]time.Time   // last of those that has been observed; nil before the first sync that succeeds
}

// syncer keeps the rules of one family, made by proxy/iptables or proxy/nftables.
type syncer interface {
	ruleWriter
	ruleChecker
}

// ruleWriter writes rules and removes them.
type ruleWriter interface {
	Configure(proxy.Config)
	// Sync writes what differs, of all if it did not succeed the last time, else of services that have changed since.
	Sync(ctx context.Context, ports *service.Ports, changed []service.Key) (proxy.Result, error)
	// ForceFull makes the next Sync write everything that differs.
	ForceFull()
	// Remove removes all rules.
	Remove(context.Context) error
}

// ruleChecker finds and repairs rules that others removed or changed.
type ruleChecker interface {
	// Canary reports whether any of the rules exist.
	Canary(context.Context) (bool, error)
	// Repair restores rules that others changed, and returns the names of what it wrote.
	Repair(context.Context) ([]string, error)
}

// iptablesSyncer writes the rules of all services together.
type iptablesSyncer struct{ *iptables.Syncer }

func (s iptablesSyncer) Sync(ctx context.Context, ports *service.Ports, _ []service.Key) (proxy.Result, error) {
	return s.Syncer.Sync(ctx, ports.All())
}

// Run runs the agent until the context ends. It then hands over to another service proxy or removes the rules of Services if its DaemonSet
// has been deleted; otherwise it leaves all rules in place. It fails only at the start: on options, on sysctls that it needs, and with
// BindHardFail on the addresses it listens on.
func Run(ctx context.Context, o Options, logger *slog.Logger) error {
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
	m := newMetrics(o.Backend)
	a, err := newAgent(o, m, logger)
	if err != nil {
		return err
	}
	a.api.url = config.Host
	config.Wrap(a.api.transport)
	if o.ServiceProxy && o.recognisesNoPods() {
		a.warn("clusterCIDR is empty: traffic from outside the cluster to cluster IPs keeps its source address; write the range of the pods")
	}
	watcher, err := kube.NewWatcher(config, a.api.note)
	if err == nil && o.ServiceProxy {
		err = watcher.WatchServices(config, o.NodeName, m.change)
	}
	if err == nil && o.ServiceProxy && o.Backend == BackendNFTables {
		err = watcher.WatchServiceCIDRs(config)
	}
	if err != nil {
		return err
	}
	a.source = watcher
	if o.IPMasqAgent {
		maps, err := kube.NewConfigMaps(config, a.api.note, metav1.NamespaceSystem, o.MasqConfigMaps...)
		if err != nil {
			return err
		}
		a.addMasqAgent(maps)
	}
	if o.CleanupOnDelete != "" && o.ServiceProxy {
		namespace, name, _ := strings.Cut(o.CleanupOnDelete, "/")
		if a.leaving.owner, err = kube.NewOwner(config, a.api.note, namespace, name); err != nil {
			return err
		}
	}
	return a.run(ctx)
}

// newAgent makes an agent that has no source yet.
func newAgent(o Options, m *metrics, logger *slog.Logger) (*agent, error) {
	a := &agent{
		Options: o, metrics: m, logger: logger,
		health:       proxy.NewHealth(2*o.SyncPeriod, time.Now),
		own:          o.nodeRules(),
		failedChecks: map[service.Key]bool{},
		notices:      make(chan struct{}, 1), nft: &ruleset.NFTables{},
	}
	a.rules = nftables.NewRules(a.nft)
	a.faults = faults{warn: a.warn, last: faultsLast, now: map[string]fault{}}
	a.api = apiServer{faults: &a.faults, log: a.log, reachable: m.apiReachable}
	a.waiting = newWaitState(m.waiting)
	a.others = others{look: conflict.ServiceProxies}
	a.leaving.remove = func(ctx context.Context) error { return Cleanup(ctx, a.Options) }
	m.start(&o)
	a.checks = proxy.NewHealthChecks(a.health.Healthy)
	for _, f := range o.Families {
		a.families = append(a.families, programsOf{f, newPrograms(f, o.IPTablesVariant)})
	}
	if !o.ServiceProxy {
		return a, nil
	}
	return a, a.addProxies()
}

// addProxies makes the agent the service proxy.
func (a *agent) addProxies() error {
	better, err := a.setSysctls()
	if better != nil {
		a.warn("%v", better)
	}
	if err != nil {
		return err
	}
	liberal, _ := sysctl.ReadInt(tcpBeLiberal) // absent: not liberal
	counters := false
	if a.Backend == BackendIPTables && a.Rules == iptables.RulesCurrent {
		if err := ensureCounters(); err != nil {
			a.warn("rules will not count: %v", err)
		} else {
			counters = true
		}
	}
	for _, f := range a.families {
		c := a.config(f.family)
		c.TCPLiberal, c.NFAcct = liberal != 0, counters
		p, err := newProxy(c, f, a.Backend, a.rules)
		if err != nil {
			return err
		}
		a.proxies = append(a.proxies, p)
		a.metrics.lastQueued.of(f.family.String()).setNow() // the first sync, as kube-proxy has it
	}
	for _, f := range a.SupportedFamilies() {
		if slices.Contains(a.Families, f) {
			continue
		}
		p, err := newProxy(a.config(f), programsOf{f, newPrograms(f, a.IPTablesVariant)}, a.Backend, a.rules)
		if err != nil {
			return err
		}
		a.unserved = append(a.unserved, p)
	}
	a.allUnserved = slices.Clone(a.unserved)
	return nil
}

func newProxy(c proxy.Config, f programsOf, backend string, rules *nftables.Rules) (*familyProxy, error) {
	syncer, err := iptables.NewSyncer(c, f.programs)
	if err != nil {
		return nil, err
	}
	p := &familyProxy{programsOf: f, ports: service.NewPorts(), syncer: iptablesSyncer{syncer},
		other: nftables.NewSyncer(c, rules), config: c}
	if backend == BackendNFTables {
		p.syncer, p.other = p.other, p.syncer
	}
	p.idle = p.other
	return p, nil
}

// addMasqAgent makes the agent keep the rules of the ip-masq-agent.
func (a *agent) addMasqAgent(source configSource) {
	var targets []masqTarget
	for _, p := range a.families {
		t := masqTarget{family: p.family, applier: p.programs}
		if p.family == service.IPv4 {
			t.ahead = a.own.Postrouting
		}
		targets = append(targets, t)
	}
	a.masq = newMasqAgent(a.Options, source, targets, newMasqMetrics(&a.metrics.meters, a.Families), a.log, a.warn)
}

// logf writes one line to a log.
type logf func(format string, args ...any)

func (a *agent) log(format string, args ...any) { a.logger.Info(fmt.Sprintf(format, args...)) }

// warn logs what an operator should look at.
func (a *agent) warn(format string, args ...any) { a.logger.Warn(fmt.Sprintf(format, args...)) }

// run runs the agent until it is told to stop by the end of stop, and until it has left the node.
func (a *agent) run(stop context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	var beside sync.WaitGroup
	defer func() { cancel(); beside.Wait() }()
	a.adjustOOMScore()
	if err := a.serve(ctx, &beside); err != nil {
		return err
	}
	defer a.checks.Close()

	a.log("packetwalk-node %s on node %s: %s, rules %s, families %v", a.Version, a.NodeName, a.Backend, a.Rules, a.Families)
	if a.Pod != "" {
		beside.Go(func() { a.keepCondition(ctx) })
	}
	if !a.acquireRoles(stop) {
		return nil
	}
	a.acquired.Store(true)
	beside.Go(func() { a.source.Run(ctx) })
	if a.leaving.owner != nil {
		beside.Go(func() { a.leaving.owner.Run(ctx) })
	}
	a.ensureNodeRules(ctx) // before the first sync: it needs nothing of the API
	if a.masq != nil {
		beside.Go(func() { a.masq.run(ctx) })
	}
	if !a.source.WaitForSync(stop) {
		return nil // told to stop before the API answered
	}
	if a.ServiceProxy && !a.waitForProxies(stop) {
		return nil
	}
	a.waiting.start()
	watch := func() { beside.Go(func() { a.watchKernel(ctx) }) }
	if !a.WatchKernel {
		watch = func() {}
	}
	a.leaving.end = cancel
	a.loop(ctx, stop, watch)
	return a.leaving.err
}

// loop syncs on changes, each family at the pace of its pacer, and looks after the rules in between. It calls watch after the first sync,
// because the kernel would report each rule that this writes. It does so even if the sync failed: one family's rules may have been written.
func (a *agent) loop(ctx, stop context.Context, watch func()) {
	pace := newPacer(a.Backend, a.MinSyncPeriod, a.SyncPeriod)
	for _, p := range a.proxies {
		p.pace = pace
	}
	check := ruleCheck{period: a.SyncPeriod, next: time.Now().Add(a.SyncPeriod), pace: pace}
	check.pace.began = true
	canary := time.Now().Add(canaryPeriod)
	told := make(chan struct{}, 1)
	defer context.AfterFunc(stop, func() { told <- struct{}{} })()
	r := reconciler{
		stop:    stop,
		told:    wakeup{told, a.leaving.start},
		start:   func(ctx context.Context) { a.sync(ctx, a.proxies...); watch() },
		changed: wakeup{a.source.Changed(), a.noteChange},
		damaged: wakeup{a.notices, check.notice},
		tasks: []task{
			{a.untilSync, func(ctx context.Context) { a.sync(ctx, a.dueProxies()...) }},
			{func(now time.Time) time.Duration { return max(0, canary.Sub(now)) }, func(ctx context.Context) {
				canary = time.Now().Add(canaryPeriod)
				if len(a.others.found) > 0 {
					a.lookForOthers(ctx)
				}
				a.lookForFlush(ctx)
			}},
			{a.leaving.until, a.leave},
			{check.until, func(ctx context.Context) { check.run(func() { a.repair(ctx) }) }},
		},
	}
	r.run(ctx)
}

// noteChange asks for a sync of all families.
func (a *agent) noteChange() {
	for _, p := range a.proxies {
		a.health.Queued(p.family)
		a.metrics.lastQueued.of(p.family.String()).setNow()
		p.pace.asked = true
	}
	if len(a.proxies) == 0 {
		a.applyDelta()
	}
}

// untilSync returns how long it is until a family is due.
func (a *agent) untilSync(now time.Time) time.Duration {
	wait := forever
	for _, p := range a.proxies {
		wait = min(wait, p.pace.untilSync(now))
	}
	return wait
}

// dueProxies returns those of the families that are due.
func (a *agent) dueProxies() []*familyProxy {
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(a.proxies), func(p *familyProxy) bool { return p.pace.untilSync(now) > 0 })
}

// lookForFlush looks whether something has deleted all rules; the next sync is then a full one, as it is after one that failed.
func (a *agent) lookForFlush(ctx context.Context) {
	for _, p := range a.proxies {
		if p.failed > 0 || a.mustYield(p) || !a.RepairRules {
			continue
		}
		there, err := p.syncer.Canary(ctx)
		a.faults.note(fmt.Sprintf("look for flushed %s rules", p.family), err)
		if err == nil && !there {
			if a.lookForOthers(ctx); a.mustYield(p) {
				continue
			}
			a.warn("the %s rules were flushed; writing all of them", p.family)
			p.syncer.ForceFull()
			p.pace.asked = true
			a.repairMasq()
		}
	}
}

// repair puts back what others have taken away or changed, and removes what could not be removed after a sync, stale flows too.
func (a *agent) repair(ctx context.Context) {
	a.ensureNodeRules(ctx)
	defer a.repairMasq()
	a.lookForOthers(ctx)
	a.syncChecks(ctx, a.wantedChecks) // a port that was taken may be free now
	for _, p := range a.proxies {
		if a.mustYield(p) || !a.RepairRules {
			continue
		}
		names, err := p.syncer.Repair(ctx)
		if err != nil {
			p.pace.asked = true // the next sync writes what this repair could not, and until then there is no other repair
		}
		a.faults.note(fmt.Sprintf("repair %s rules", p.family), err)
		if len(names) > 0 {
			a.metrics.repairs.of(p.family.String()).add(float64(len(names)))
			a.warn("put back %s rules that something else had changed: %s", p.family, shorten(names))
		}
	}
	for _, p := range a.proxies {
		if p.triggered != nil && !a.mustYield(p) && !p.behind {
			a.removeOthers(ctx, p)
			a.cleanFlows(p)
		}
	}
}

// repairMasq asks for a look at the ip-masq-agent's rules: what changed the service proxy's may have changed them.
func (a *agent) repairMasq() {
	if a.masq != nil {
		a.masq.repair()
	}
}

func shorten(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// isOwnChange reports whether the agent made a change itself.
func (a *agent) isOwnChange(n notice) bool {
	return n.port != 0 && n.port == a.nft.Port() ||
		slices.ContainsFunc(a.families, func(p programsOf) bool { return p.programs.isOwnChange(n) })
}

// watchKernel hears of deleted rules until the context ends.
func (a *agent) watchKernel(ctx context.Context) {
	const what = "watch the kernel's rules"
	report := func(n notice) {
		if a.isOwnChange(n) {
			return
		}
		select {
		case a.notices <- struct{}{}:
		default:
		}
	}
	for again := true; again; again = pause.For(ctx, watchRetry) {
		err := watchRules(ctx, func() {
			a.faults.note(what, nil)
			report(notice{}) // changes before the subscription send no notice
		}, report)
		if err != nil {
			a.faults.note(what, fmt.Errorf("%w; deleted rules come back within %v", err, a.SyncPeriod))
		}
	}
}
