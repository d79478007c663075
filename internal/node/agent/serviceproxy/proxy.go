// Package serviceproxy is the service proxy of one node: it makes the desired state of Services and EndpointSlices with service and proxy,
// applies it to the kernel, repairs what others delete, and hands over to another service proxy and takes over from it.
package serviceproxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/reconcile"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// CanaryPeriod is how often the proxy looks whether all its rules were flushed.
const CanaryPeriod = 5 * time.Second

// Source gives the proxy the API's objects; *kube.Watcher implements it.
type Source interface {
	Changed() <-chan struct{}
	// Delta returns what has changed since the call before, or everything.
	Delta(whole bool) kube.Delta
}

// Config holds what the proxy gets from the agent that runs it.
type Config struct {
	options.Options
	Source   Source
	Programs []*iptablescmd.Programs // one for each served family
	NFTables *nftables.Rules
	Damaged  <-chan struct{} // receives after others changed rules
	Health   *proxy.Health
	Metrics  *Metrics
	Logger   report.Logger
	Faults   *report.Faults
	Events   *report.Events
	Waiter   *takeover.Waiter
	Others   takeover.Others
	Leaving  takeover.Departure
	Canary   time.Duration // CanaryPeriod

	// BeforeRepair and AfterRepair run around each repair, for rules that the agent keeps beside those of Services. AfterRepair also runs
	// when all rules of Services were flushed. Either may be nil.
	BeforeRepair func(context.Context)
	AfterRepair  func()
}

// common holds what the families have in common.
type common struct {
	Config
	whole bool // all rules of a family were compared or written
}

// Proxy is the service proxy of all families.
type Proxy struct {
	*common
	checks      *proxy.HealthChecks
	families    []*family
	unserved    []*family                   // of families that are not served and may have rules of another service proxy
	allUnserved []*family                   // of families that are not served
	cleanup     func(context.Context) error // removes all rules of Services

	node         *service.Node // as the service ports see it; nil before the first sync
	wantedChecks []service.HealthCheck
	failedChecks map[service.Key]bool // health check node ports whose failure has been reported
}

// New returns a proxy. It sets the sysctls that the proxy needs.
func New(c Config) (*Proxy, error) {
	p := newProxy(c)
	better, err := setSysctls(&c.Options)
	if better != nil {
		p.Logger.Warnf("%v", better)
	}
	if err != nil {
		return nil, err
	}
	return p, p.addFamilies()
}

// newProxy returns a proxy of no family.
func newProxy(c Config) *Proxy {
	p := &Proxy{common: &common{Config: c}, failedChecks: map[service.Key]bool{}}
	p.checks = proxy.NewHealthChecks(c.Health.Healthy)
	p.cleanup = func(ctx context.Context) error { return Cleanup(ctx, c.Options) }
	return p
}

// addFamilies adds the families, those that are not served too.
func (p *Proxy) addFamilies() error {
	liberal, _ := sysctl.ReadInt(tcpBeLiberal) // absent: not liberal
	counters := false
	if p.Backend == options.BackendIPTables && p.Rules == iptables.RulesCurrent {
		if err := ensureCounters(); err != nil {
			p.Logger.Warnf("rules will not count: %v", err)
		} else {
			counters = true
		}
	}
	for _, programs := range p.Programs {
		c := p.Options.Config(programs.Family)
		c.TCPLiberal, c.NFAcct = liberal != 0, counters
		f, err := newFamily(p.common, c, programs)
		if err != nil {
			return err
		}
		p.families = append(p.families, f)
		p.Metrics.lastQueued.Of(f.String()).SetNow() // the first sync, as kube-proxy has it
	}
	for _, one := range p.SupportedFamilies() {
		if slices.Contains(p.Families, one) {
			continue
		}
		f, err := newFamily(p.common, p.Options.Config(one), iptablescmd.New(one, p.IPTablesVariant))
		if err != nil {
			return err
		}
		p.allUnserved = append(p.allUnserved, f)
	}
	p.unserved = slices.Clone(p.allUnserved)
	return nil
}

// Wait waits until no other service proxy runs on the node. It returns false if ctx ended before. The other's rules stay meanwhile, and the
// first sync takes them over. A table that a packetwalk-node left goes as at handOver.
func (p *Proxy) Wait(ctx context.Context) bool {
	return p.Waiter.Wait(ctx, p.Others.Quiet, func(ctx context.Context) ([]string, error) {
		found, err := p.Others.Look(ctx)
		if len(found) > 0 && err == nil && p.Backend == options.BackendNFTables {
			p.applyDelta()
			p.handOver(ctx, found)
		}
		return found, err
	})
}

// Run syncs on changes, each family at the pace of its pacer, and looks after the rules in between. It runs until ctx ends, or until the
// proxy has left the node after the end of stop, and returns why it failed to remove the rules then. It calls synced after the first sync,
// because the kernel would report each rule that this writes. It does so even if the sync failed: one family's rules may have been written.
func (p *Proxy) Run(ctx, stop context.Context, synced func()) (err error) {
	defer p.checks.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	pace := reconcile.NewPacer(p.Backend, p.MinSyncPeriod, p.SyncPeriod)
	for _, f := range p.families {
		f.pace = pace
	}
	check := reconcile.NewCheck(p.SyncPeriod, pace)
	canary := time.Now().Add(p.Canary)
	told := make(chan struct{}, 1)
	defer context.AfterFunc(stop, func() { told <- struct{}{} })()
	loop := reconcile.Loop{
		Stop:    stop,
		Told:    reconcile.Wakeup{From: told, Note: p.Leaving.Start},
		Start:   func(ctx context.Context) { p.sync(ctx, p.families...); synced() },
		Changed: reconcile.Wakeup{From: p.Source.Changed(), Note: p.noteChange},
		Damaged: reconcile.Wakeup{From: p.Damaged, Note: check.Notice},
		Tasks: []reconcile.Task{
			{Until: p.untilSync, Run: func(ctx context.Context) { p.sync(ctx, p.dueFamilies()...) }},
			{Until: func(now time.Time) time.Duration { return max(0, canary.Sub(now)) }, Run: func(ctx context.Context) {
				canary = time.Now().Add(p.Canary)
				if len(p.Others.Running()) > 0 {
					p.lookForOthers(ctx)
				}
				p.lookForFlush(ctx)
			}},
			{Until: p.Leaving.Until, Run: func(ctx context.Context) {
				var left bool
				if left, err = p.leave(ctx); left {
					end()
				}
			}},
			{Until: check.Until, Run: func(ctx context.Context) { check.Run(func() { p.repair(ctx) }) }},
		},
	}
	loop.Run(ctx)
	return err
}

// noteChange asks for a sync of all families.
func (p *Proxy) noteChange() {
	for _, f := range p.families {
		p.Health.Queued(f.Family)
		p.Metrics.lastQueued.Of(f.String()).SetNow()
		f.pace.Request()
	}
}

// untilSync returns how long it is until a family is due.
func (p *Proxy) untilSync(now time.Time) time.Duration {
	wait := reconcile.Forever
	for _, f := range p.families {
		wait = min(wait, f.pace.UntilSync(now))
	}
	return wait
}

// dueFamilies returns those of the families that are due.
func (p *Proxy) dueFamilies() []*family {
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(p.families), func(f *family) bool { return f.pace.UntilSync(now) > 0 })
}

// lookForFlush looks whether something has deleted all rules; the next sync is then a full one, as it is after one that failed.
func (p *Proxy) lookForFlush(ctx context.Context) {
	for _, f := range p.families {
		if f.failed > 0 || f.mustYield() || !p.RepairRules {
			continue
		}
		exist, err := f.syncer.Canary(ctx)
		p.Faults.Note(fmt.Sprintf("look for flushed %s rules", f), err)
		if err == nil && !exist {
			if p.lookForOthers(ctx); f.mustYield() {
				continue
			}
			p.Logger.Warnf("the %s rules were flushed; writing all of them", f)
			f.rewrite()
			p.repairOthers()
		}
	}
}

// repairOthers lets the agent look at its other rules: what changed those of Services may have changed them.
func (p *Proxy) repairOthers() {
	if p.AfterRepair != nil {
		p.AfterRepair()
	}
}

// repair puts back what others have taken away or changed, and removes what could not be removed after a sync, stale flows too.
func (p *Proxy) repair(ctx context.Context) {
	if p.BeforeRepair != nil {
		p.BeforeRepair(ctx)
	}
	defer p.repairOthers()
	p.lookForOthers(ctx)
	p.syncChecks(ctx, p.wantedChecks) // a port that was taken may be free now
	for _, f := range p.families {
		if !f.mustYield() && p.RepairRules {
			f.repair(ctx)
		}
	}
	for _, f := range p.families {
		if f.triggered != nil && !f.mustYield() && !f.behind {
			f.removeOther(ctx)
			p.removeUnserved(ctx)
			f.cleanFlows()
		}
	}
}

// removeUnserved removes all rules of the families that are not served: kube-proxy always serves both.
func (p *Proxy) removeUnserved(ctx context.Context) {
	if len(p.Others.Running()) == 0 { // else they are in use
		p.unserved = slices.DeleteFunc(p.unserved, func(f *family) bool { return f.remove(ctx, f.syncer, f.other) == nil })
	}
}

// lookForOthers looks for another service proxy that has started beside this one, as kubeadm upgrade starts kube-proxy. It hands over to
// that one, and takes over when the other has ended.
func (p *Proxy) lookForOthers(ctx context.Context) {
	before := p.Others.Running()
	found, change, err := p.Others.Observe(ctx)
	if p.Faults.Note(takeover.LookFault, err); err != nil {
		return
	}
	p.Metrics.others.Set(float64(len(found)))
	if len(found) > 0 {
		if p.handOver(ctx, found); p.yieldsAll() {
			p.Waiter.Set(found, nil)
		}
	}
	switch change {
	case takeover.Started:
		p.Waiter.Warn(ctx, "OtherServiceProxyRunning",
			"%s runs beside packetwalk-node, which hands over to it and takes over when it has ended; remove one of the two",
			strings.Join(found, ", "))
	case takeover.Ended:
		p.Logger.Infof("%s has ended; writing all rules and removing those that it left", strings.Join(before, ", "))
		p.takeOver()
	}
}

// takeOver asks for a sync of all rules after another service proxy has ended, and for the removal of the rules that it left.
func (p *Proxy) takeOver() {
	p.Waiter.Set(nil, nil)
	p.unserved = slices.Clone(p.allUnserved)
	for _, f := range append(slices.Clone(p.families), p.unserved...) {
		f.other, f.left, f.behind = f.idle, false, true
		f.rewrite()
	}
}

// yieldsAll reports whether another service proxy writes the rules of all families.
func (p *Proxy) yieldsAll() bool {
	return !slices.ContainsFunc(p.families, func(f *family) bool { return !f.mustYield() })
}

// leave does what the departure decides, and reports whether the proxy has left the node.
func (p *Proxy) leave(ctx context.Context) (left bool, err error) {
	p.lookForOthers(ctx)
	switch p.Leaving.Decide(ctx, len(p.Others.Running()) > 0, p.yieldsAll()) {
	case takeover.RemoveRules:
		return true, p.cleanup(ctx)
	case takeover.LeaveRules:
		return true, nil
	}
	return false, nil
}
