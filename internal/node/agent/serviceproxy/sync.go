package serviceproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/reconcile"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// sync brings the kernel to the API's state of now, for some families.
func (p *Proxy) sync(ctx context.Context, families ...*family) {
	delta := p.applyDelta()
	for _, f := range families {
		start := time.Now()
		if f.mustYield() {
			f.pace.After(start, start, reconcile.Unchanged)
			p.Health.Updated(f.Family) // the other service proxy writes what changes
			continue
		}
		outcome, err := f.sync(ctx, delta)
		if err == nil {
			p.removeUnserved(ctx)
		}
		f.pace.After(start, time.Now(), outcome)
		p.Faults.Note(fmt.Sprintf("sync %s", f), err)
		f.reportFailure(ctx, delta.Node, err)
	}
	if p.whole {
		p.whole = false
		go debug.FreeOSMemory() // writing all needs twice what is kept
	}
	var checked [][]service.Port
	for _, f := range p.families {
		checked = append(checked, f.ports.Checked())
	}
	p.checks.Listen(p.listenIPs())
	p.syncChecks(ctx, service.HealthChecks(checked...))
}

// applyDelta updates the service ports of changed services. The first time, and after a change of the node's zone, it updates all.
func (p *Proxy) applyDelta() kube.Delta {
	p.Metrics.taken()
	delta := p.Source.Delta(p.node == nil)
	node := service.Node{Name: p.NodeName}
	if delta.Node != nil {
		node.Zone = delta.Node.Labels[corev1.LabelTopologyZone]
	}
	if p.node != nil && node != *p.node && !delta.Whole {
		delta = p.Source.Delta(true)
	}
	p.node = &node
	p.Health.SetNodeEligible(eligible(delta.Node))
	for _, f := range p.families {
		if delta.Whole {
			f.dropOthers(delta)
		}
		for key, of := range delta.Services {
			f.put(key, service.Of(f.Family, node, of.Service, of.EndpointSlices), of.EndpointSlices)
		}
	}
	return delta
}

// listenIPs returns the addresses of the health check node ports: those that node ports are restricted to, none for all.
func (p *Proxy) listenIPs() (ips []string) {
	for _, f := range p.families {
		for _, ip := range f.config.NodePortIPs {
			ips = append(ips, ip.String())
		}
	}
	return ips
}

// syncChecks serves the health check node ports. A port that cannot be opened is reported once, as an event of its service.
func (p *Proxy) syncChecks(ctx context.Context, checks []service.HealthCheck) {
	p.wantedChecks = checks
	failed := map[service.Key]bool{}
	errs := p.checks.Sync(checks)
	p.Faults.Note("health check node ports", errors.Join(errs...))
	for _, err := range errs {
		var e *proxy.ListenError
		if !errors.As(err, &e) {
			continue
		}
		failed[e.Key] = true
		if p.failedChecks[e.Key] {
			continue
		}
		p.Events.Make(ctx, corev1.Event{
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.Namespace, Name: e.Service},
			Reason:         "FailedToStartServiceHealthcheck", Action: "Listen",
			Message: fmt.Sprintf("node %s failed to %v", p.NodeName, e),
		})
	}
	p.failedChecks = failed
}

// reportFailure reports that the rules cannot be written: to the health check, and from the second failure on as an event of the node. The
// first failure is often transient.
func (f *family) reportFailure(ctx context.Context, node *corev1.Node, err error) {
	if err == nil {
		f.failed, f.told = 0, false
		return
	}
	f.failed++
	f.Health.Queued(f.Family)
	if f.failed < 2 || f.told || node == nil {
		return
	}
	f.told = true
	f.Events.Make(ctx, corev1.Event{
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		Reason:         "FailedToWriteServiceRules", Action: "Sync",
		Message: fmt.Sprintf("node %s cannot write the %s rules of Services; what it wrote before stays in force: %v", f.NodeName, f, err),
	})
}

// sync brings the family's rules to its service ports. A sync that the context ends has not failed.
func (f *family) sync(ctx context.Context, delta kube.Delta) (reconcile.Outcome, error) {
	start := time.Now()
	if err := f.configure(delta); err != nil {
		return reconcile.Failed, err
	}
	f.syncer.Configure(f.config)
	result, err := f.syncer.Sync(ctx, f.ports, slices.Collect(maps.Keys(f.pending)))
	f.Metrics.synced(f.Family, result, time.Since(start), err)
	if result.PartialErr != nil {
		f.Logger.Warnf("sync %s: %v; comparing all rules with the kernel's", f, result.PartialErr)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return reconcile.Changed, err
	default:
		return reconcile.Failed, err
	}
	if result.CleanupErr != nil {
		f.Logger.Warnf("sync %s: %v", f, result.CleanupErr)
	}
	if result.Full {
		what := [2]string{iptables.NAT, "nat rules"}
		if f.Backend == options.BackendNFTables {
			what = [2]string{nftables.TableName, "elements"}
		}
		f.Logger.Infof("synced %s: %d service ports, %d %s in %v",
			f, f.ports.Len(), result.Total[what[0]], what[1], time.Since(start).Round(time.Millisecond))
		f.whole = true
	}
	f.left, f.behind = false, false
	f.removeOther(ctx)
	f.Metrics.lastSync.Of(f.String()).SetNow()
	f.Health.Updated(f.Family)
	f.cleanFlows()
	f.observe()
	if result.Unchanged {
		return reconcile.Unchanged, nil
	}
	return reconcile.Changed, nil
}
