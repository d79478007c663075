package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/node/ippool"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/syntax/iptables"
)

// poolSource is where the agent gets Calico's pools from; *kube.Pools is one.
type poolSource interface {
	Run(ctx context.Context)
	Changed() <-chan struct{}
	Snapshot() (pools, configurations []*kube.Calico, complete bool)
	Warn(ctx context.Context, about *kube.Calico, component, host, reason, message string) error
}

// ipSets reads and writes the node's IP sets; kernel.IPSets is one.
type ipSets interface {
	List(ctx context.Context) ([]ipset.Set, error)
	Update(ctx context.Context, plan func(have []ipset.Set) []ipset.Set) ([]string, error)
}

const (
	poolComponent = "packetwalk-node"
	poolWarnings  = 5 // at most of one object
)

// poolAgent keeps the IP sets and nat chains of Calico's pools. As long as the API has not told all pools, it touches nothing but what
// prepare makes.
type poolAgent struct {
	node    string
	sync    time.Duration // how often everything is compared with the kernel
	source  poolSource
	sets    ipSets
	targets []*poolTarget
	metrics *poolMetrics
	state   *poolState
	log     func(format string, args ...any)
	warner  warner
	known   bool // the API has told which pools there are
}

// poolTarget is one family's part.
type poolTarget struct {
	family  service.Family
	applier serviceproxy.Tables
	plan    *ippool.Plan // nil before the first
	written *ippool.Plan // whose rules the kernel was last seen to have; nil: look
}

func newPoolAgent(o Options, source poolSource, sets ipSets, targets []*poolTarget, m *poolMetrics, log func(string, ...any)) *keeper {
	a := &poolAgent{
		node: o.NodeName, sync: o.SyncPeriod, source: source, sets: sets, targets: targets, metrics: m, state: newPoolState(o),
		log: func(format string, args ...any) { log("calico pools: "+format, args...) },
	}
	a.warner.log = a.log
	return &keeper{part: a, source: source, look: canaryPeriod, repairs: make(chan struct{}, 1)}
}

func (a *poolAgent) period() time.Duration { return a.sync }

func (a *poolAgent) misconfigured() []string { return nil }

func (a *poolAgent) unready() []string { return a.state.now().Unhealthy }

func (a *poolAgent) serve(mux *http.ServeMux) { a.state.serve(mux) }

func (a *poolAgent) read(ctx context.Context, by trigger) bool {
	switch by {
	case byWatch:
		a.plan(ctx)
	case byLook:
		return a.changedByOthers(ctx)
	default:
		for _, t := range a.targets {
			t.written = nil // apply reads the kernel's rules
		}
	}
	return true
}

// prepare makes the kernel track connections before there is one to the API server, where nothing else has yet: it writes the rule that
// translates, with empty sets. A connection that is older than tracking would otherwise be met in its middle by a rule that translates it
// to a port at random, which ends it; the agent's own goes to an address that is in no pool.
func (a *poolAgent) prepare(ctx context.Context) {
	for _, t := range a.targets {
		if err := a.prepareFor(ctx, t); err != nil && ctx.Err() == nil {
			a.log("%v", err)
		}
	}
}

func (a *poolAgent) prepareFor(ctx context.Context, t *poolTarget) error {
	dump, err := t.applier.Save(ctx, iptables.NAT)
	if err != nil || bytes.Contains(dump, []byte("MASQUERADE")) {
		return err
	}
	plan := ippool.Build(t.family, ippool.Felix{}, nil)
	_, err = a.sets.Update(ctx, func(have []ipset.Set) []ipset.Set {
		missing := []ipset.Set{plan.All.IPSet(), plan.Masq.IPSet()}
		return slices.DeleteFunc(missing, func(s ipset.Set) bool {
			return slices.ContainsFunc(have, func(h ipset.Set) bool { return h.Name == s.Name })
		})
	})
	if err == nil {
		_, err = editNAT(ctx, t.applier, plan.Prepared().Edit)
	}
	return err
}

// plan plans for the pools that there are.
func (a *poolAgent) plan(ctx context.Context) {
	objects, configurations, complete := a.source.Snapshot()
	if !complete {
		return
	}
	var pools []ippool.Pool
	problems := map[*kube.Calico][]string{}
	note := func(about *kube.Calico, err error) {
		for line := range strings.Lines(err.Error()) {
			problems[about] = append(problems[about], strings.TrimSpace(line))
		}
	}
	byName := map[string]*kube.Calico{}
	for _, o := range objects {
		p, err := ippool.ParsePool(o.Name, o.Spec)
		if err != nil {
			note(o, err)
		}
		byName[o.Name] = o
		pools = append(pools, p)
	}
	for _, o := range ippool.Overlaps(pools) {
		newer, older := byName[o.Pool], byName[o.With]
		if newer.CreationTimestamp.Before(&older.CreationTimestamp) {
			newer, older = older, newer
		}
		note(newer, fmt.Errorf("spec.cidr: overlaps pool %s", older.Name))
	}
	var specs []ippool.Configuration
	for _, c := range configurations {
		specs = append(specs, ippool.Configuration{Name: c.Name, Spec: c.Spec})
	}
	felix, failed := ippool.ParseFelix(a.node, specs)
	for _, c := range configurations {
		if err := failed[c.Name]; err != nil {
			note(c, err)
		}
	}
	a.known = true
	a.report(ctx, problems)
	a.state.noteProblems(problems)
	a.metrics.problems.set(float64(len(problems)))
	for _, t := range a.targets {
		plan := ippool.Build(t.family, felix, pools)
		t.plan = &plan
		a.metrics.members.of(plan.All.Name).set(float64(len(plan.All.Members)))
		a.metrics.members.of(plan.Masq.Name).set(float64(len(plan.Masq.Members)))
	}
}

// changedByOthers tells whether the sets are not what they were made to be. What cannot be read is for apply to report.
func (a *poolAgent) changedByOthers(ctx context.Context) bool {
	if !a.known {
		return false
	}
	have, err := a.sets.List(ctx)
	return err != nil || slices.ContainsFunc(a.targets, func(t *poolTarget) bool { return !t.plan.Holds(have) })
}

// apply brings the kernel to the plans.
func (a *poolAgent) apply(ctx context.Context) error {
	if !a.known {
		return nil
	}
	var failed error
	for _, t := range a.targets {
		start := time.Now()
		did, err := a.applyTo(ctx, t)
		if err != nil {
			failed, t.written = err, nil
			a.metrics.failures.of(t.family.String()).add(1)
			a.log("%v", err)
			continue
		}
		if len(did) > 0 {
			a.metrics.changes.of(t.family.String()).add(1)
			a.log("wrote %s in %v", strings.Join(did, ", "), time.Since(start).Round(time.Millisecond))
		}
		a.metrics.lastSuccess.of(t.family.String()).setNow()
	}
	if failed == nil {
		a.state.hold(a.targets)
	}
	a.state.note(failed)
	return failed
}

// applyTo brings one family's sets, and then the rules that look into them, to the plan. It names what it wrote.
func (a *poolAgent) applyTo(ctx context.Context, t *poolTarget) ([]string, error) {
	did, err := a.sets.Update(ctx, t.plan.Steps)
	if errors.Is(err, kernel.ErrSetInUse) {
		// A set of another kind, which cannot be swapped with ours. Without rules that look into it, it can be made anew.
		if _, err = editNAT(ctx, t.applier, t.plan.Idle().Edit); err == nil {
			t.written = nil
			did, err = a.sets.Update(ctx, t.plan.Steps)
		}
	}
	if err != nil {
		return nil, err
	}
	if t.written != nil && t.written.SameRules(t.plan) {
		return did, nil
	}
	n, err := editNAT(ctx, t.applier, t.plan.Edit)
	if err != nil {
		return nil, err
	}
	t.written = t.plan
	if n > 0 {
		did = append(did, fmt.Sprintf("%d rules of %s", n, t.family))
	}
	return did, nil
}

// report makes events of what is wrong with objects, once for each version of one.
func (a *poolAgent) report(ctx context.Context, problems map[*kube.Calico][]string) {
	events := map[string]func(context.Context) error{}
	for about, texts := range problems {
		if len(texts) > poolWarnings {
			more := fmt.Sprintf("and %d more", len(texts)-poolWarnings+1)
			texts = append(slices.Clone(texts[:poolWarnings-1]), more)
		}
		message := strings.Join(texts, "; ")
		events[fmt.Sprint(about.UID, about.ResourceVersion, message)] = func(ctx context.Context) error {
			a.log("%s %s: %s", about.Kind, about.Name, message)
			return a.source.Warn(ctx, about, poolComponent, a.node, "Invalid"+about.Kind, message)
		}
	}
	a.warner.send(ctx, events)
}

// poolMetrics are those of Calico's pools.
type poolMetrics struct {
	members, lastSuccess, changes, failures *meter
	problems                                *series
}

func newPoolMetrics(m *meters) *poolMetrics {
	const prefix, family = "packetwalk_calico_pools_", "ip_family"
	return &poolMetrics{
		members:     m.add("gauge", prefix+"set_members", "Ranges that each IP set is to have.", "set"),
		problems:    m.add("gauge", prefix+"problem_objects", "IPPools and FelixConfigurations with something wrong.", "").of(),
		changes:     m.add("counter", prefix+"changes_total", "Times that sets or rules were written.", family),
		failures:    m.add("counter", prefix+"failures_total", "Failures to read or write sets or rules.", family),
		lastSuccess: m.add("gauge", prefix+"last_success_timestamp_seconds", "When sets and rules were last found or made right.", family),
	}
}
