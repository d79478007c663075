package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"runtime/debug"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// sync brings the kernel to the API's state of now, for some families.
func (a *agent) sync(ctx context.Context, proxies ...*familyProxy) {
	delta := a.applyDelta()
	for _, p := range proxies {
		start := time.Now()
		if a.mustYield(p) {
			p.pace.after(start, start, true)
			a.health.Updated(p.family) // the other service proxy writes what changes
			continue
		}
		err := a.syncFamily(ctx, p, delta)
		p.pace.after(start, time.Now(), err == nil || ctx.Err() != nil)
		a.faults.note(fmt.Sprintf("sync %s", p.family), err)
		a.reportFailure(ctx, p, delta.Node, err)
	}
	if a.whole {
		a.whole = false
		go debug.FreeOSMemory() // writing all needs twice what is kept
	}
	var checked [][]service.Port
	for _, p := range a.proxies {
		checked = append(checked, p.ports.Checked())
	}
	a.checks.Listen(a.listenIPs())
	a.syncChecks(ctx, service.HealthChecks(checked...))
}

// applyDelta updates the service ports of changed services. The first time, and after a change of the node's zone, it updates all.
func (a *agent) applyDelta() kube.Delta {
	a.metrics.taken()
	delta := a.source.Delta(a.node == nil)
	node := service.Node{Name: a.NodeName}
	if delta.Node != nil {
		node.Zone = delta.Node.Labels[corev1.LabelTopologyZone]
	}
	if a.node != nil && node != *a.node && !delta.Whole {
		delta = a.source.Delta(true)
	}
	a.node = &node
	if a.ServiceProxy {
		a.health.SetNodeEligible(eligible(delta.Node))
	}
	for _, p := range a.proxies {
		if delta.Whole {
			p.dropOthers(delta)
		}
		for key, of := range delta.Services {
			p.put(key, service.Of(p.family, node, of.Service, of.EndpointSlices), of.EndpointSlices)
		}
	}
	return delta
}

// dropOthers leaves the services that are not among all there are without ports.
func (p *familyProxy) dropOthers(all kube.Delta) {
	for _, key := range p.ports.Services() {
		if _, there := all.Services[key]; !there {
			p.put(key, nil, nil)
		}
	}
}

// put takes a service's ports, and the slices that they were made of.
func (p *familyProxy) put(key service.Key, ports []service.Port, of []*discoveryv1.EndpointSlice) {
	if p.pending == nil {
		p.pending = map[service.Key][]time.Time{}
	}
	p.pending[key] = nil
	for _, s := range of {
		at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil && at.After(p.triggered[key]) {
			p.pending[key] = append(p.pending[key], at)
		}
	}
	p.udp = p.udp || udpState(ports) != udpState(p.ports.Of(key))
	p.ports.Put(key, ports)
}

// reportFailure reports that the rules cannot be written: to the health check, and from the second failure on as an event of the node. The
// first failure is often transient.
func (a *agent) reportFailure(ctx context.Context, p *familyProxy, node *corev1.Node, err error) {
	if err == nil {
		p.failed, p.told = 0, false
		return
	}
	p.failed++
	a.health.Queued(p.family)
	if p.failed < 2 || p.told || node == nil {
		return
	}
	p.told = true
	a.event(ctx, corev1.Event{
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		Reason:         "FailedToWriteServiceRules", Action: "Sync",
		Message: fmt.Sprintf("node %s cannot write the %s rules of Services; what it wrote before stays in force: %v", a.NodeName, p.family, err),
	})
}

// event makes an event.
func (a *agent) event(ctx context.Context, e corev1.Event) {
	e.Source = corev1.EventSource{Component: "kube-proxy", Host: a.NodeName}
	sendEvent(ctx, a.warn, func(ctx context.Context) error { return a.source.Event(ctx, e) })
}

// reportTimeout is how long the API server may take for an event, or an answer.
const reportTimeout = 10 * time.Second

// sendEvent sends an event in the background.
func sendEvent(ctx context.Context, log logf, send func(context.Context) error) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		if err := send(ctx); err != nil && ctx.Err() == nil {
			log("%v", err)
		}
	}()
}

func (a *agent) syncFamily(ctx context.Context, p *familyProxy, delta kube.Delta) error {
	start := time.Now()
	if err := a.configure(p, delta); err != nil {
		return err
	}
	p.syncer.Configure(p.config)
	result, err := p.syncer.Sync(ctx, p.ports, slices.Collect(maps.Keys(p.pending)))
	a.metrics.synced(p.family, result, time.Since(start), err)
	if result.PartialErr != nil {
		a.warn("sync %s: %v; comparing all rules with the kernel's", p.family, result.PartialErr)
	}
	if err != nil {
		return err
	}
	if result.CleanupErr != nil {
		a.warn("sync %s: %v", p.family, result.CleanupErr)
	}
	if result.Full {
		what := [2]string{iptables.NAT, "nat rules"}
		if a.Backend == BackendNFTables {
			what = [2]string{nftables.TableName, "elements"}
		}
		a.log("synced %s: %d service ports, %d %s in %v",
			p.family, p.ports.Len(), result.Total[what[0]], what[1], time.Since(start).Round(time.Millisecond))
		a.whole = true
	}
	p.left, p.behind = false, false
	a.removeOthers(ctx, p)
	a.metrics.lastSync.of(p.family.String()).setNow()
	a.health.Updated(p.family)
	a.cleanFlows(p)
	a.observe(p)
	return nil
}

// removeOthers removes what the other backend left behind, and kube-proxy with nftables, once there are rules, and all of the family that
// is not served: kube-proxy always serves both.
func (a *agent) removeOthers(ctx context.Context, p *familyProxy) {
	if len(a.others.found) > 0 {
		return // they are in use
	}
	if p.other != nil && a.remove(ctx, p.family, p.other) == nil {
		p.other = nil
	}
	a.unserved = slices.DeleteFunc(a.unserved, func(p *familyProxy) bool { return a.remove(ctx, p.family, p.syncer, p.other) == nil })
}

// remove removes the rules of syncers, and kube-proxy's with nftables.
func (a *agent) remove(ctx context.Context, f service.Family, syncers ...syncer) error {
	err := nftables.RemoveKubeProxys(ctx, a.rules, f)
	for _, s := range syncers {
		failed := s.Remove(ctx)
		if errors.Is(failed, exec.ErrNotFound) { // not known is whether there are rules of iptables-legacy
			failed = withoutIPTables(ctx, a.rules, f)
		}
		err = errors.Join(err, failed)
	}
	a.faults.note(fmt.Sprintf("remove %s rules that are not in use", f), err)
	return err
}

// withoutIPTables is an error where there are rules of a service proxy with iptables-nft, and no programs to remove them.
func withoutIPTables(ctx context.Context, rules *nftables.Rules, f service.Family) error {
	there, err := nftables.HasIPTables(ctx, rules, f)
	if there {
		return errors.New("a service proxy with iptables left rules, which go on translating, and iptables is not installed here: install it")
	}
	return err
}

// cleanFlows looks at conntrack when something about UDP services has changed, and until that has succeeded.
func (a *agent) cleanFlows(p *familyProxy) {
	if !p.udp {
		return
	}
	start := time.Now()
	var err error
	if flows := iptablesproxy.NewUDPFlows(p.ports.UDP()); !flows.Empty() {
		var n int
		n, err = deleteStaleFlows(p.family, flows)
		a.metrics.conntrackDeleted.of(p.family.String()).add(float64(n))
		a.metrics.conntrack.of(p.family.String()).observe(time.Since(start))
	}
	a.faults.note(fmt.Sprintf("delete stale %s UDP flows", p.family), err)
	p.udp = err != nil
}

// syncChecks serves the health check node ports. A port that cannot be opened is reported once, as an event of its service.
func (a *agent) syncChecks(ctx context.Context, checks []service.HealthCheck) {
	a.wantedChecks = checks
	failed := map[service.Key]bool{}
	errs := a.checks.Sync(checks)
	a.faults.note("health check node ports", errors.Join(errs...))
	for _, err := range errs {
		var e *proxy.ListenError
		if !errors.As(err, &e) {
			continue
		}
		failed[e.Key] = true
		if a.failedChecks[e.Key] {
			continue
		}
		a.event(ctx, corev1.Event{
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.Namespace, Name: e.Service},
			Reason:         "FailedToStartServiceHealthcheck", Action: "Listen",
			Message: fmt.Sprintf("node %s failed to %v", a.NodeName, e),
		})
	}
	a.failedChecks = failed
}

// observe measures how long changes of endpoints took to get into the rules, by the time that their controller noted on each slice.
func (a *agent) observe(p *familyProxy) {
	now := time.Now()
	first := p.triggered == nil // what was there before we started says nothing about us
	if first {
		p.triggered = map[service.Key]time.Time{}
	}
	for key, times := range p.pending {
		for _, at := range times {
			if !first {
				a.metrics.programming.of(p.family.String()).observe(now.Sub(at))
			}
			p.triggered[key] = later(p.triggered[key], at)
		}
	}
	p.pending = nil
}
