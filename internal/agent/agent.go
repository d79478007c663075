package agent

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/iptables"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/kube"
	"packetwalk.dev/internal/service"
	"packetwalk.dev/internal/serviceproxy"
)

// Source is where the agent gets the API's objects from; *kube.Watcher is one.
type Source interface {
	Run(ctx context.Context)
	WaitForSync(ctx context.Context) error
	Changed() <-chan struct{}
	Snapshot() kube.Snapshot
	Event(ctx context.Context, key service.Key, component, host, reason, message string) error
}

// canaryPeriod is how often the agent looks whether all its rules were flushed.
const canaryPeriod = 5 * time.Second

// noticeQuiet is how long after a notice of a deleted rule the agent looks: who flushes tables does it in several steps.
const noticeQuiet = 100 * time.Millisecond

type agent struct {
	Options
	source  Source
	metrics *metrics
	health  *serviceproxy.Health
	checks  *serviceproxy.HealthChecks
	proxies []*proxy
	masq    []iptables.Rule // the node's own, at the end of POSTROUTING
	ipMasq  *masqAgent      // nil: the node has none
	pools   *poolAgent      // nil: Calico's pools are not ours
	logger  *log.Logger

	failedChecks map[service.Key]bool // health check node ports whose failure has been reported
	triggered    map[string]string    // last change trigger time of each slice that has been observed
	notices      chan struct{}
}

// proxy is the service proxy of one family.
type proxy struct {
	family   service.Family
	programs *programs
	syncer   *serviceproxy.Syncer
	config   serviceproxy.Config
	udp      string // udpState at the last look at conntrack
}

// Run runs the agent until the context ends, and then returns nil with all rules left in place. It fails only at the start: on options, on
// the addresses it listens on, on sysctls that it needs.
func Run(ctx context.Context, o Options, logger *log.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	config, err := kube.Config(o.Kubeconfig, "packetwalk-node/"+o.Version)
	if err != nil {
		return err
	}
	m := newMetrics()
	source, err := kube.NewWatcher(config, o.NodeName, m.change)
	if err != nil {
		return err
	}
	a, err := newAgent(o, source, m, logger)
	if err != nil {
		return err
	}
	if o.IPMasqAgent {
		maps, err := kube.NewConfigMaps(config, metav1.NamespaceSystem, o.MasqConfigMaps...)
		if err != nil {
			return err
		}
		a.addMasqAgent(maps)
	}
	if o.CalicoPools {
		pools, err := kube.NewPools(config)
		if err != nil {
			return err
		}
		a.addPools(pools)
	}
	return a.run(ctx)
}

func newAgent(o Options, source Source, m *metrics, logger *log.Logger) (*agent, error) {
	a := &agent{
		Options: o, source: source, metrics: m, logger: logger,
		health:       serviceproxy.NewHealth(2*o.SyncPeriod, time.Now),
		masq:         o.nodeRules(),
		failedChecks: map[service.Key]bool{}, triggered: map[string]string{},
		notices: make(chan struct{}, 1),
	}
	a.checks = serviceproxy.NewHealthChecks(a.health.Healthy, a.listenIPs())
	if err := a.setSysctls(); err != nil {
		return nil, err
	}
	liberal, _ := readSysctl(tcpBeLiberal) // absent: not liberal
	counters := false
	if o.Rules == serviceproxy.RulesCurrent {
		if err := ensureCounters(); err != nil {
			a.log("rules will not count: %v", err)
		} else {
			counters = true
		}
	}
	for _, f := range o.Families {
		c := o.config(f)
		c.TCPLiberal, c.NFAcct = liberal != 0, counters
		p := &proxy{family: f, programs: newPrograms(f), config: c}
		syncer, err := serviceproxy.NewSyncer(c, p.programs)
		if err != nil {
			return nil, err
		}
		p.syncer = syncer
		a.proxies = append(a.proxies, p)
	}
	return a, nil
}

// addMasqAgent makes the node have an ip-masq agent.
func (a *agent) addMasqAgent(source ConfigSource) {
	var targets []masqTarget
	for _, p := range a.proxies {
		t := masqTarget{family: p.family, applier: p.programs}
		if p.family == service.IPv4 {
			t.ahead = a.masq
		}
		targets = append(targets, t)
	}
	a.ipMasq = newMasqAgent(a.Options, source, targets, newMasqMetrics(a.metrics.registry), a.log)
}

// addPools makes the agent keep the sets and chains of Calico's pools.
func (a *agent) addPools(source PoolSource) {
	var targets []*poolTarget
	for _, p := range a.proxies {
		targets = append(targets, &poolTarget{family: p.family, applier: p.programs})
	}
	a.pools = newPoolAgent(a.Options, source, kernel.IPSets{}, targets, newPoolMetrics(a.metrics.registry), a.log)
}

func (a *agent) log(format string, args ...any) { a.logger.Printf(format, args...) }

func (a *agent) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopServers, err := a.serve()
	if err != nil {
		return err
	}
	defer stopServers()
	defer a.checks.Close()

	if a.pools != nil {
		a.pools.prepare(ctx)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		a.source.Run(ctx)
	}()
	defer func() { cancel(); <-finished }()

	a.log("packetwalk-node %s on node %s: rules %s, families %v", a.Version, a.NodeName, a.Rules, a.Families)
	a.ensureMasquerade(ctx) // before the first sync: it needs nothing of the API
	if a.ipMasq != nil {
		var running sync.WaitGroup
		running.Go(func() { a.ipMasq.run(ctx) })
		defer running.Wait()
		defer cancel()
	}
	if a.pools != nil {
		var running sync.WaitGroup
		running.Go(func() { a.pools.run(ctx) })
		defer func() { cancel(); running.Wait() }()
	}
	if err := a.source.WaitForSync(ctx); err != nil {
		return nil // told to stop before the API answered
	}
	if a.WatchKernel {
		go a.watchKernel(ctx)
	}
	a.loop(ctx)
	a.log("stopped; rules stay in place")
	return nil
}

// loop syncs on changes, at the pace of pacer, and looks after the rules in between.
func (a *agent) loop(ctx context.Context) {
	pace := pacer{min: a.MinSyncPeriod, max: a.SyncPeriod}
	due := time.NewTimer(0)
	pending := true
	canary := time.NewTicker(canaryPeriod)
	defer canary.Stop()
	repair := time.NewTicker(a.SyncPeriod)
	defer repair.Stop()
	var quiet <-chan time.Time
	work := context.WithoutCancel(ctx) // what has begun is finished: half a sync is for nobody's good
	ask := func() {
		if !pending {
			pending = true
			due.Reset(pace.delay(time.Now()))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.source.Changed():
			for _, p := range a.proxies {
				a.health.Queued(p.family)
				a.metrics.lastQueued.WithLabelValues(p.family.String()).SetToCurrentTime()
			}
			ask()
		case <-due.C:
			start := time.Now()
			pending = false
			ok := a.sync(work)
			pace.after(start, time.Now(), ok)
			if !ok {
				ask()
			}
		case <-canary.C:
			if a.flushed(work) {
				ask()
			}
		case <-a.notices:
			// No sooner than the pace allows, so that another program that fights for the same rules cannot make us spin.
			if quiet == nil {
				quiet = time.After(max(noticeQuiet, pace.delay(time.Now())))
			}
		case <-quiet:
			quiet = nil
			start := time.Now()
			a.repair(work)
			pace.after(start, time.Now(), true)
		case <-repair.C:
			a.repair(work)
		}
	}
}

// sync brings the kernel to the API's state of now and tells whether it succeeded.
func (a *agent) sync(ctx context.Context) bool {
	snapshot := a.source.Snapshot()
	a.metrics.taken()
	a.health.SetNodeEligible(eligible(snapshot.Node))
	ok := true
	var families [][]service.Port
	for _, p := range a.proxies {
		ports := service.Build(p.family, a.node(snapshot.Node), snapshot.Services, snapshot.EndpointSlices)
		families = append(families, ports)
		if err := a.syncFamily(ctx, p, snapshot.Node, ports); err != nil {
			ok = false
			if ctx.Err() == nil {
				a.log("sync %s: %v", p.family, err)
			}
		}
	}
	if ok {
		a.observe(snapshot.EndpointSlices)
	}
	a.syncChecks(ctx, service.HealthChecks(families...))
	return ok || ctx.Err() != nil
}

func (a *agent) syncFamily(ctx context.Context, p *proxy, node *corev1.Node, ports []service.Port) error {
	start := time.Now()
	p.config.NodeIP = nodeIP(p.family, node)
	if err := a.nodePortIPs(p); err != nil {
		return err
	}
	p.syncer.Configure(p.config)
	result, err := p.syncer.Sync(ctx, ports)
	a.metrics.synced(p.family, result, time.Since(start), err)
	if err != nil {
		return err
	}
	if result.CleanupErr != nil {
		a.log("sync %s: %v", p.family, result.CleanupErr)
	}
	if result.Full {
		a.pools.repair() // the service proxy's jumps may have come before Calico's
		a.log("synced %s: %d service ports, %d nat rules in %v", p.family, len(ports), result.Total[iptables.NAT], time.Since(start).Round(time.Millisecond))
	}
	a.health.Updated(p.family)
	a.cleanFlows(p, ports)
	return nil
}

// cleanFlows looks at conntrack when something about UDP services has changed.
func (a *agent) cleanFlows(p *proxy, ports []service.Port) {
	state := udpState(ports)
	if state == p.udp {
		return
	}
	start := time.Now()
	if flows := serviceproxy.NewUDPFlows(ports); !flows.Empty() {
		n, err := deleteStaleFlows(p.family, flows)
		a.metrics.conntrackDeleted.WithLabelValues(p.family.String()).Add(float64(n))
		a.metrics.conntrack.WithLabelValues(p.family.String()).Observe(time.Since(start).Seconds())
		if err != nil {
			a.log("%v", err)
			return
		}
	}
	p.udp = state
}

// flushed tells whether something has deleted all rules; the next sync is then a full one.
func (a *agent) flushed(ctx context.Context) bool {
	gone := false
	for _, p := range a.proxies {
		there, err := p.syncer.Canary(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.log("look for flushed rules: %v", err)
			}
			continue
		}
		if !there {
			a.log("the %s rules were flushed; writing all of them", p.family)
			p.syncer.ForceFull()
			gone = true
			a.repairMasq()
		}
	}
	return gone
}

func (a *agent) repairMasq() {
	if a.ipMasq != nil {
		a.ipMasq.repair()
	}
}

func (a *agent) repair(ctx context.Context) {
	a.ensureMasquerade(ctx)
	a.repairMasq()
	defer a.pools.repair()
	for _, p := range a.proxies {
		names, err := p.syncer.Repair(ctx)
		if err != nil && ctx.Err() == nil {
			a.log("repair %s rules: %v", p.family, err)
		}
		if len(names) > 0 {
			a.metrics.repairs.WithLabelValues(p.family.String()).Add(float64(len(names)))
			a.log("put back %s rules that something else had changed: %s", p.family, shorten(names))
		}
	}
}

func shorten(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func (a *agent) ensureMasquerade(ctx context.Context) {
	for _, p := range a.proxies {
		if p.family != service.IPv4 {
			continue
		}
		n, err := ensureMasquerade(ctx, p.programs, a.masq)
		if err != nil && ctx.Err() == nil {
			a.log("write the node's masquerade rules: %v", err)
		}
		if n > 0 && err == nil {
			a.log("appended %d masquerade rules of the node", n)
		}
	}
}

func (a *agent) watchKernel(ctx context.Context) {
	err := watchRules(ctx, func(n notice) {
		for _, p := range a.proxies {
			if p.programs.ours(n.pid) {
				return
			}
		}
		select {
		case a.notices <- struct{}{}:
		default:
		}
	})
	if err != nil {
		a.log("%v; deleted rules come back within %v", err, a.SyncPeriod)
	}
}

// syncChecks serves the health check node ports. A port that cannot be opened is reported once, as an event of its service.
func (a *agent) syncChecks(ctx context.Context, checks []service.HealthCheck) {
	failed := map[service.Key]bool{}
	for _, err := range a.checks.Sync(checks) {
		var e *serviceproxy.ListenError
		if !errors.As(err, &e) {
			continue
		}
		failed[e.Key] = true
		if a.failedChecks[e.Key] {
			continue
		}
		message := fmt.Sprintf("node %s failed to %v", a.NodeName, e)
		a.log("%s", message)
		go func() {
			if err := a.source.Event(ctx, e.Key, "kube-proxy", a.NodeName, "FailedToStartServiceHealthcheck", message); err != nil && ctx.Err() == nil {
				a.log("%v", err)
			}
		}()
	}
	a.failedChecks = failed
}

// observe measures how long changes of endpoints took to get into the rules, by the time that their controller noted on each slice.
func (a *agent) observe(slices []*discoveryv1.EndpointSlice) {
	now := time.Now()
	seen := make(map[string]string, len(slices))
	first := len(a.triggered) == 0 // what was there before we started says nothing about us
	for _, s := range slices {
		trigger := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
		key := s.Namespace + "/" + s.Name
		seen[key] = trigger
		if first || trigger == "" || a.triggered[key] == trigger {
			continue
		}
		if at, err := time.Parse(time.RFC3339Nano, trigger); err == nil {
			for _, p := range a.proxies {
				a.metrics.programming.WithLabelValues(p.family.String()).Observe(now.Sub(at).Seconds())
			}
		}
	}
	a.triggered = seen
}

func (a *agent) node(n *corev1.Node) service.Node {
	node := service.Node{Name: a.NodeName}
	if n != nil {
		node.Zone = n.Labels[corev1.LabelTopologyZone]
	}
	return node
}

// nodeIP is the node's internal address of a family, else any of that family, else invalid.
func nodeIP(f service.Family, n *corev1.Node) netip.Addr {
	var found netip.Addr
	if n == nil {
		return found
	}
	for _, address := range n.Status.Addresses {
		ip, err := netip.ParseAddr(address.Address)
		if err != nil || !f.Of(ip) {
			continue
		}
		if address.Type == corev1.NodeInternalIP {
			return ip
		}
		if !found.IsValid() {
			found = ip
		}
	}
	return found
}

// toBeDeleted is the taint of the cluster autoscaler on a node that it is about to delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// eligible tells whether load balancers may send to the node. A node that the API does not have (yet) is not.
func eligible(n *corev1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeleted })
}

// nodePortIPs finds the addresses that node ports answer on, when only some are wanted.
func (a *agent) nodePortIPs(p *proxy) error {
	cidrs := slices.DeleteFunc(slices.Clone(a.NodePortCIDRs), func(c netip.Prefix) bool { return !p.family.Of(c.Addr()) })
	if len(cidrs) == 0 || slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Bits() == 0 }) {
		p.config.NodePortIPs = nil
		return nil
	}
	all, err := localAddresses()
	if err != nil {
		return err
	}
	p.config.NodePortIPs = []netip.Addr{}
	for _, ip := range all {
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(ip) }) {
			p.config.NodePortIPs = append(p.config.NodePortIPs, ip)
		}
	}
	return nil
}

func localAddresses() ([]netip.Addr, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var out []netip.Addr
	for _, address := range addresses {
		if n, ok := address.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}

// listenIPs are the addresses of the health check node ports: all, or those that node ports are restricted to.
func (a *agent) listenIPs() []string {
	if len(a.NodePortCIDRs) == 0 {
		return nil
	}
	all, err := localAddresses()
	if err != nil {
		a.log("%v; health check node ports listen on all of them", err)
		return nil
	}
	var ips []string
	for _, ip := range all {
		if slices.ContainsFunc(a.NodePortCIDRs, func(c netip.Prefix) bool { return c.Contains(ip) }) {
			ips = append(ips, ip.String())
		}
	}
	return ips
}

// serve starts the servers of health and metrics.
func (a *agent) serve() (stop func(), err error) {
	proxyMode := http.NewServeMux()
	proxyMode.Handle("/metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	proxyMode.Handle("/healthz", a.health.Handler(nil))
	if a.ipMasq != nil {
		a.ipMasq.state.serve(proxyMode)
	}
	if a.pools != nil {
		a.pools.state.serve(proxyMode)
	}
	proxyMode.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(a.Backend)) })
	var servers []*http.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), a.ShutdownTimeout)
		defer cancel()
		for _, s := range servers {
			_ = s.Shutdown(ctx) // at its end the process ends, and with it what did not shut down
		}
	}
	for _, s := range []struct {
		flag, address string
		handler       http.Handler
	}{
		{"--healthz-bind-address", a.HealthzAddress, a.health.Handler(a.metrics.answered)},
		{"--metrics-bind-address", a.MetricsAddress, proxyMode},
	} {
		if s.address == "" {
			continue
		}
		l, err := net.Listen("tcp", s.address)
		if err != nil {
			stop()
			return nil, fmt.Errorf("%s: %w", s.flag, err)
		}
		server := &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
		servers = append(servers, server)
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				a.log("%s: %v", s.flag, err)
			}
		}()
	}
	return stop, nil
}
