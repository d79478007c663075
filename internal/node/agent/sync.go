package agent

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/servicemaps"
	"packetwalk.dev/internal/node/serviceproxy"
	"packetwalk.dev/internal/syntax/iptables"
)

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
		p.config.NodeIP, p.config.ServiceCIDRs = nodeIP(p.family, snapshot.Node), serviceCIDRs(p.family, snapshot.ServiceCIDRs)
		err := a.syncFamily(ctx, p, ports)
		ok = ok && err == nil
		a.faults.note(fmt.Sprintf("sync %s", p.family), err)
		a.tellFailure(ctx, p, snapshot.Node, err)
	}
	if ok {
		a.observe(snapshot.EndpointSlices)
	}
	a.syncChecks(ctx, service.HealthChecks(families...))
	return ok || ctx.Err() != nil
}

// tellFailure makes an event of the node's when the rules cannot be written: not of the first time, which may be somebody's haste.
func (a *agent) tellFailure(ctx context.Context, p *proxy, node *corev1.Node, err error) {
	if p.failed++; err == nil {
		p.failed = 0
	}
	if p.failed != 2 || node == nil {
		return
	}
	a.event(ctx, corev1.Event{
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		Reason:         "FailedToWriteServiceRules", Action: "Sync",
		Message: fmt.Sprintf("node %s cannot write the %s rules of Services; what it wrote before stays in force: %v", a.NodeName, p.family, err),
	})
}

// event makes an event, beside everything else.
func (a *agent) event(ctx context.Context, e corev1.Event) {
	e.Source = corev1.EventSource{Component: "kube-proxy", Host: a.NodeName}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		if err := a.source.Event(ctx, e); err != nil && ctx.Err() == nil {
			a.log("%v", err)
		}
	}()
}

func (a *agent) syncFamily(ctx context.Context, p *proxy, ports []service.Port) error {
	start := time.Now()
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
		what := [2]string{iptables.NAT, "nat rules"}
		if a.Backend == BackendNFTables {
			what = [2]string{servicemaps.TableName, "elements"}
		}
		a.repairKept() // the service proxy's jumps may have come before Calico's
		a.log("synced %s: %d service ports, %d %s in %v",
			p.family, len(ports), result.Total[what[0]], what[1], time.Since(start).Round(time.Millisecond))
	}
	a.removeOther(ctx, p)
	a.health.Updated(p.family)
	a.cleanFlows(p, ports)
	return nil
}

// removeOther removes what the other backend left behind, once there are rules.
func (a *agent) removeOther(ctx context.Context, p *proxy) {
	if p.other == nil {
		return
	}
	err := p.other.Remove(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		err = nil // without iptables there are no rules of it
	}
	if a.faults.note(fmt.Sprintf("remove %s rules of the other backend", p.family), err); err == nil {
		p.other = nil
	}
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
		a.metrics.conntrackDeleted.of(p.family.String()).add(float64(n))
		a.metrics.conntrack.of(p.family.String()).observe(time.Since(start))
		if err != nil {
			a.log("%v", err)
			return
		}
	}
	p.udp = state
}

// syncChecks serves the health check node ports. A port that cannot be opened is reported once, as an event of its service.
func (a *agent) syncChecks(ctx context.Context, checks []service.HealthCheck) {
	a.wantedChecks = checks
	failed := map[service.Key]bool{}
	errs := a.checks.Sync(checks)
	a.faults.note("health check node ports", errors.Join(errs...))
	for _, err := range errs {
		var e *serviceproxy.ListenError
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
				a.metrics.programming.of(p.family.String()).observe(now.Sub(at))
			}
		}
	}
	a.triggered = seen
}
