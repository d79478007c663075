package takeover

import (
	"context"
	"time"

	"packetwalk.dev/internal/node/agent/reconcile"
	"packetwalk.dev/internal/node/agent/report"
)

const (
	// LeaveTime is how long the agent stays, when told to stop, for another service proxy to write its rules. The chart's pods get 30 s.
	LeaveTime  = 20 * time.Second
	leavePause = 250 * time.Millisecond // between two decisions
	askTime    = 5 * time.Second        // how long the API server may take to say whether a DaemonSet exists
)

// Departure decides about the rules between the agent's order to stop and its end. It is not safe for concurrent use.
type Departure struct {
	Owner  Owner // the agent's DaemonSet; nil: not followed, so its deletion is never known
	Logger report.Logger
	Time   time.Duration // LeaveTime

	deleted bool      // the DaemonSet
	due, by time.Time // when to decide next, and for the last time; zero: not told to stop
}

// Owner follows the DaemonSet of the agent's pod; *kube.Owner implements it.
type Owner interface {
	Run(ctx context.Context)
	// Deleted reports whether the DaemonSet has certainly been deleted.
	Deleted(ctx context.Context) (bool, error)
}

// Decision says what becomes of the rules.
type Decision int

// The decisions: keep the rules up to date and decide again, or end and leave the rules, or end and remove them.
const (
	Stay Decision = iota
	LeaveRules
	RemoveRules
)

// Start notes that the agent is told to stop.
func (d *Departure) Start() {
	d.due = time.Now()
	d.by = d.due.Add(d.Time)
}

// Until returns how long it is until the next decision.
func (d *Departure) Until(now time.Time) time.Duration {
	if d.due.IsZero() {
		return reconcile.Forever
	}
	return max(0, d.due.Sub(now))
}

// Decide decides what becomes of the rules. Where another service proxy runs they go as soon as its are in force. Where none does they stay
// for the next packetwalk-node, unless the DaemonSet has been deleted: then they go when no other service proxy has come in time. A question
// about the DaemonSet that has no answer is asked again: the DaemonSet's rights are deleted with it, and the news of its own deletion may
// come later. others says whether another service proxy runs, and yielded whether it writes the rules of all families.
func (d *Departure) Decide(ctx context.Context, others, yielded bool) Decision {
	d.due = time.Now().Add(leavePause)
	late := !time.Now().Before(d.by)
	if others && yielded {
		d.Logger.Infof("stopped")
		return LeaveRules
	}
	if others && !late {
		return Stay // until the other's rules are in force
	}
	deleted, err := d.isDeleted(ctx)
	switch {
	case deleted && !late:
		return Stay // another service proxy may be about to start
	case err != nil && time.Now().Before(d.by.Add(-askTime)):
		return Stay // the next answer may tell
	case err != nil:
		d.Logger.Warnf("stopped; rules stay in place: %v", err)
	case !deleted:
		d.Logger.Infof("stopped; rules stay in place")
	default:
		d.Logger.Infof("the DaemonSet has been deleted: removing the rules of Services")
		return RemoveRules
	}
	return LeaveRules
}

// isDeleted reports whether the agent's DaemonSet has certainly been deleted. The error says that this is unknown.
func (d *Departure) isDeleted(ctx context.Context) (bool, error) {
	if d.Owner == nil || d.deleted {
		return d.deleted, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	gone, err := d.Owner.Deleted(ctx)
	d.deleted = gone && err == nil
	return d.deleted, err
}
