package agent

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/syntax/iptables"
)

const (
	// leaveTime is how long the agent stays, when told to stop, for another service proxy to write its rules. The chart's pods get 30 s.
	leaveTime  = 20 * time.Second
	leavePause = 250 * time.Millisecond // between two looks at that
	askTime    = 5 * time.Second        // how long the API server may take to say whether a DaemonSet exists
)

// handOver removes this agent's rules of each family for which another service proxy's are in force, as the kernel shows.
func (a *agent) handOver(ctx context.Context, found []string) {
	for _, p := range a.proxies {
		if p.left {
			continue
		}
		left, err := a.handOverFamily(ctx, p)
		a.faults.note(fmt.Sprintf("hand the %s rules over", p.family), err)
		if p.left = left && err == nil; p.left && p.triggered != nil {
			a.log("handed the %s rules of Services over to %s and removed packetwalk-node's", p.family, strings.Join(found, ", "))
		}
	}
}

// handOverFamily reports whether another service proxy's rules are in force, and none of this agent's are left.
func (a *agent) handOverFamily(ctx context.Context, p *familyProxy) (bool, error) {
	ports := p.ports.All()
	serves, err := nftables.KubeProxyServes(ctx, a.rules, p.family, ports)
	switch {
	case err != nil:
		return false, err
	case serves:
		return true, a.removeOwn(ctx, p)
	case a.Backend == BackendIPTables:
		return false, nil // the chains are whoever's who runs
	}
	nat, err := p.programs.Save(ctx, iptables.NAT)
	if errors.Is(err, exec.ErrNotFound) {
		return false, nil
	}
	if err != nil || !iptablesproxy.Serves(nat, ports) {
		return false, err
	}
	return true, a.removeOwn(ctx, p)
}

// removeOwn removes the rules that the agent's own backend writes.
func (a *agent) removeOwn(ctx context.Context, p *familyProxy) error {
	err := p.syncer.Remove(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		return withoutIPTables(ctx, a.rules, p.family)
	}
	return err
}

// leaving is what the agent does between being told to stop and its end. Only the agent's loop uses it.
type leaving struct {
	owner   ownerSource                 // the agent's DaemonSet; nil: not followed, so its deletion is never known
	remove  func(context.Context) error // removes all rules of Services
	end     context.CancelFunc
	deleted bool      // the DaemonSet
	err     error     // of the removal
	due, by time.Time // when to look next, and for the last time; zero: not told to stop
}

// ownerSource follows the DaemonSet of the agent's pod; *kube.Owner is one.
type ownerSource interface {
	Run(ctx context.Context)
	// Deleted reports whether the DaemonSet has certainly been deleted.
	Deleted(ctx context.Context) (bool, error)
}

func (l *leaving) start() {
	l.due = time.Now()
	l.by = l.due.Add(leaveTime)
}

func (l *leaving) until(now time.Time) time.Duration {
	if l.due.IsZero() {
		return forever
	}
	return max(0, l.due.Sub(now))
}

// leave decides what becomes of the rules. Where another service proxy runs they go as soon as its are in force. Where none does they stay
// for the next packetwalk-node, unless the DaemonSet has been deleted: then they go when no other service proxy has come in time. Until it
// is decided the agent keeps its rules up to date.
func (a *agent) leave(ctx context.Context) {
	l := &a.leaving
	l.due = time.Now().Add(leavePause)
	a.lookForOthers(ctx)
	others, late := len(a.others.found) > 0, !time.Now().Before(l.by)
	switch {
	case others && a.yieldsAll():
		a.log("stopped")
	case others && !late:
		return // until the other's rules are in force
	case !a.isDeleted(ctx):
		a.log("stopped; rules stay in place")
	case !late:
		return // another service proxy may be about to start
	default:
		a.log("the DaemonSet has been deleted: removing the rules of Services")
		l.err = l.remove(ctx)
	}
	l.end()
}

// isDeleted reports whether the agent's DaemonSet has certainly been deleted.
func (a *agent) isDeleted(ctx context.Context) bool {
	l := &a.leaving
	if l.owner == nil || l.deleted {
		return l.deleted
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	gone, err := l.owner.Deleted(ctx)
	if err != nil {
		a.warn("rules stay: %v", err)
	}
	l.deleted = gone && err == nil
	return l.deleted
}
