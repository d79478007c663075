package serviceproxy

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

// slowSyncer is a syncer whose Repair takes seconds.
type slowSyncer struct {
	syncer
	synced chan time.Time
	fails  error
}

func (slowSyncer) Configure(proxy.Config) {}

func (slowSyncer) Canary(context.Context) (bool, error) { return true, nil }

func (s slowSyncer) Sync(context.Context, *service.Ports, []service.Key) (proxy.Result, error) {
	s.synced <- time.Now()
	return proxy.Result{}, nil
}

func (s slowSyncer) Repair(context.Context) ([]string, error) {
	time.Sleep(4 * time.Second)
	return nil, s.fails
}

// changingAPI is an API that something changes in.
type changingAPI struct {
	oneNode
	changed chan struct{}
}

func (c changingAPI) Changed() <-chan struct{} { return c.changed }

func (changingAPI) Delta(bool) kube.Delta {
	return kube.Delta{Services: map[service.Key]kube.ServiceObjects{{Namespace: "default", Service: "web"}: {}}}
}

// startLoop runs a proxy with this syncer in the test's synctest bubble, for an hour of its time, and waits for the first sync.
func startLoop(t *testing.T, slow slowSyncer, more ...*family) (p *Proxy, damaged chan<- struct{}, api changingAPI, ended <-chan struct{}) {
	api = changingAPI{changed: make(chan struct{}, 1)}
	p, _ = newTestProxy(t, options.BackendIPTables, api)
	notices := make(chan struct{}, 1)
	p.Damaged = notices
	p.families = append([]*family{{Family: service.IPv4, ports: service.NewPorts(), syncer: slow}}, more...)
	for _, f := range p.families {
		f.common = p.common
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	done := make(chan struct{})
	go func() { _ = p.Run(ctx, ctx, func() {}); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	slow.awaits(t, done)
	return p, notices, api, done
}

// awaits returns when the next sync is.
func (s slowSyncer) awaits(t *testing.T, ended <-chan struct{}) time.Time {
	select {
	case at := <-s.synced:
		return at
	case <-ended:
		t.Fatal("no sync in an hour")
	}
	return time.Time{}
}

// TestChangeAfterRepair: a change is written at once after a repair that took seconds.
func TestChangeAfterRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowSyncer{synced: make(chan time.Time, 9)}
		_, damaged, api, ended := startLoop(t, slow)
		for range 3 {
			damaged <- struct{}{}
			time.Sleep(6 * time.Second) // the repair is over
			changed := time.Now()
			api.changed <- struct{}{}
			if took := slow.awaits(t, ended).Sub(changed); took > 5*time.Second { // it may wait for another repair
				t.Errorf("a change was written after %v", took)
			}
		}
	})
}

// TestRepairFails: after a repair that failed, the agent syncs.
func TestRepairFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowSyncer{synced: make(chan time.Time, 9), fails: unix.ENOBUFS}
		_, damaged, _, ended := startLoop(t, slow)
		damaged <- struct{}{}
		told := time.Now()
		if took := slow.awaits(t, ended).Sub(told); took > 10*time.Second {
			t.Errorf("the rules were written after %v", took)
		}
	})
}

// TestFamilyThatFails: the rules of one family follow changes at their own pace while the other's cannot be written, and that is tried
// again with each change.
func TestFamilyThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowSyncer{synced: make(chan time.Time, 9)}
		refused := 0
		six := &family{Family: service.IPv6, ports: service.NewPorts(),
			syncer: onceMore{failingSyncer{err: unix.ENOMEM}, &refused, func() {}}}
		p, _, api, ended := startLoop(t, slow, six)
		for range 60 {
			changed := time.Now()
			api.changed <- struct{}{}
			if took := slow.awaits(t, ended).Sub(changed); took > 5*time.Second { // it may wait for a repair
				t.Errorf("a change was written after %v", took)
			}
		}
		synctest.Wait() // the last change comes to the other family, too
		if refused < 60 {
			t.Errorf("the other was tried %d times", refused)
		}
		if four := p.families[0]; len(four.pending) > 0 || four.triggered == nil || len(six.pending) != 1 {
			t.Errorf("pending: %v and %v; observed of the good one: %v", four.pending, six.pending, four.triggered)
		}
		before := refused
		time.Sleep(20 * time.Minute)
		if n := refused - before; n < 35 || n > 50 {
			t.Errorf("without changes the other was tried %d times in 20 minutes", n)
		}
	})
}

// TestRefused: rules that the kernel does not take are a failure in the metrics, a fault, the end of being healthy though nothing changes
// in the API, and an event of the node's: once, if it lasts, also where there is no node at first.
func TestRefused(t *testing.T) {
	p, registry := newTestProxy(t, options.BackendNFTables, changingAPI{})
	p.Health = proxy.NewHealth(0, time.Now)
	api := oneNode{events: make(chan corev1.Event, 10)}
	p.Events.Sink = api
	f := &family{common: p.common, Family: service.IPv4, ports: service.NewPorts(), syncer: failingSyncer{err: unix.ENOMEM}}
	p.families = []*family{f}
	for i := range 5 {
		if i == 3 {
			p.Source = api
		}
		if p.sync(t.Context(), f); f.failed != i+1 || len(f.pending) != 1 || p.Health.Healthy() {
			t.Errorf("sync %d: failed %d times, %d pending, healthy: %v", i, f.failed, len(f.pending), p.Health.Healthy())
		}
	}
	if e := <-api.events; e.InvolvedObject.Name != "node0" || e.Reason != "FailedToWriteServiceRules" ||
		!strings.Contains(e.Message, "memory") {
		t.Errorf("event %+v", e)
	}
	if len(api.events) > 0 {
		t.Errorf("another event: %+v", <-api.events)
	}
	if faults := faultsOf(p); !strings.Contains(faults, "sync IPv4: cannot allocate memory") {
		t.Errorf("faults %s", faults)
	}
	text := string(registry.Text())
	if want := `kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 5`; !strings.Contains(text, want) {
		t.Errorf("no %s in\n%s", want, text)
	}
}

// onceMore is a failingSyncer that tells when it is asked for the second time.
type onceMore struct {
	failingSyncer
	syncs *int
	told  func()
}

func (o onceMore) Sync(ctx context.Context, ports *service.Ports, changed []service.Key) (proxy.Result, error) {
	if *o.syncs++; *o.syncs == 2 {
		o.told()
	}
	return o.failingSyncer.Sync(ctx, ports, changed)
}

// TestListensWhileAFamilyFails: of damage to the rules of one family is heard also where the other's cannot be written.
func TestListensWhileAFamilyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestProxy(t, options.BackendNFTables, oneNode{events: make(chan corev1.Event, 1)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p.families = []*family{{common: p.common, Family: service.IPv6, ports: service.NewPorts(),
			syncer: onceMore{failingSyncer{err: unix.EOPNOTSUPP}, new(int), cancel}}}
		watched := 0
		_ = p.Run(ctx, ctx, func() {
			if ctx.Err() == nil {
				watched++
			}
		})
		if watched != 1 {
			t.Errorf("after a sync that failed, it was listened to the kernel %d times", watched)
		}
	})
}
