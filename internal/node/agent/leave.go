package agent

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
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
		has, err := a.hasRules(ctx, p)
		if err == nil && !has {
			p.left = a.Backend == BackendNFTables // the chains of iptables may be in question later
			continue
		}
		keep := true
		if err == nil {
			keep, err = a.mustKeep(ctx, p)
		}
		if err == nil && !keep {
			err = a.removeOwn(ctx, p)
		}
		a.faults.note(fmt.Sprintf("hand the %s rules over", p.family), err)
		if p.left = err == nil && !keep; p.left {
			a.log("handed the %s rules of Services over to %s and removed packetwalk-node's", p.family, strings.Join(found, ", "))
		}
	}
}

// hasRules reports whether a family may have rules that are this agent's alone. Chains of iptables are those of the service proxy that
// runs, except where that has a table of nftables.
func (a *agent) hasRules(ctx context.Context, p *familyProxy) (bool, error) {
	if a.Backend == BackendIPTables {
		return nftables.KubeProxyServes(ctx, a.rules, p.family, nil)
	}
	return p.syncer.Canary(ctx)
}

// mustKeep reports whether a service port of a family is reached by this agent's rules only.
func (a *agent) mustKeep(ctx context.Context, p *familyProxy) (bool, error) {
	ports := slices.DeleteFunc(p.ports.All(), func(p service.Port) bool { return !p.LeadsInside() })
	if len(ports) == 0 {
		return false, nil
	}
	serves, err := nftables.KubeProxyServes(ctx, a.rules, p.family, ports)
	if err != nil || serves || a.Backend == BackendIPTables {
		return !serves, err
	}
	nat, err := p.programs.Save(ctx, iptables.NAT)
	if errors.Is(err, exec.ErrNotFound) {
		return true, nil
	}
	return !iptablesproxy.Serves(nat, ports), err
}

// removeOwn removes the rules that the agent's own backend writes.
func (a *agent) removeOwn(ctx context.Context, p *familyProxy) error {
	err := p.syncer.Remove(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		return withoutIPTables(ctx, a.rules, p.family)
	}
	return err
}

// departure holds what the agent does between being told to stop and its end. Only the agent's loop uses it.
type departure struct {
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

func (l *departure) start() {
	l.due = time.Now()
	l.by = l.due.Add(leaveTime)
}

func (l *departure) until(now time.Time) time.Duration {
	if l.due.IsZero() {
		return forever
	}
	return max(0, l.due.Sub(now))
}

// leave decides what becomes of the rules. Where another service proxy runs they go as soon as its are in force. Where none does they stay
// for the next packetwalk-node, unless the DaemonSet has been deleted: then they go when no other service proxy has come in time. Until it
// is decided the agent keeps its rules up to date. A question about the DaemonSet that has no answer is asked again: the DaemonSet's rights
// are deleted with it, and the news of its own deletion may come later.
func (a *agent) leave(ctx context.Context) {
	l := &a.leaving
	l.due = time.Now().Add(leavePause)
	a.lookForOthers(ctx)
	others, late := len(a.others.found) > 0, !time.Now().Before(l.by)
	if others && a.yieldsAll() {
		a.log("stopped")
		l.end()
		return
	}
	if others && !late {
		return // until the other's rules are in force
	}
	deleted, err := a.isDeleted(ctx)
	switch {
	case deleted && !late:
		return // another service proxy may be about to start
	case err != nil && time.Now().Before(l.by.Add(-askTime)):
		return // the next answer may tell
	case err != nil:
		a.warn("stopped; rules stay in place: %v", err)
	case !deleted:
		a.log("stopped; rules stay in place")
	default:
		a.log("the DaemonSet has been deleted: removing the rules of Services")
		l.err = l.remove(ctx)
	}
	l.end()
}

// isDeleted reports whether the agent's DaemonSet has certainly been deleted. The error says that this is unknown.
func (a *agent) isDeleted(ctx context.Context) (bool, error) {
	l := &a.leaving
	if l.owner == nil || l.deleted {
		return l.deleted, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	gone, err := l.owner.Deleted(ctx)
	l.deleted = gone && err == nil
	return l.deleted, err
}
