// Package takeover decides which service proxy writes a node's rules: when an agent takes over from another one, and what becomes of the
// rules when it leaves.
package takeover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/conflict"
)

// pollPeriod is the time between two looks for other processes.
const pollPeriod = time.Second

// LookFault is the fault of not knowing which other processes run.
const LookFault = "look for other service proxies on this node"

// ConditionType is the type of the condition of the agent's pod that says whether it waits for another service proxy.
const ConditionType = "packetwalk.dev/WaitingForServiceProxy"

// conditionRetry is how long the agent waits before it sets the condition again after a failure.
const conditionRetry = 5 * time.Second

// Waiter waits until other processes have ended, and reports what it waits for: in the log, as a metric, a condition of the pod and an event
// of the node. Its state is safe for concurrent use.
type Waiter struct {
	node    string
	logger  report.Logger
	faults  *report.Faults
	events  *report.Events
	metric  *metrics.Series
	changed chan struct{} // receives after changes; several make one

	mu      sync.Mutex
	others  []string // processes that have to end
	unknown error    // why others may be incomplete
	looked  bool     // for all processes that have to end
}

// NewWaiter returns a node's waiter, which waits for nothing.
func NewWaiter(node string, logger report.Logger, faults *report.Faults, events *report.Events, metric *metrics.Series) *Waiter {
	return &Waiter{node: node, logger: logger, faults: faults, events: events, metric: metric, changed: make(chan struct{}, 1)}
}

// State returns the processes that have to end, and why they are unknown.
func (w *Waiter) State() (others []string, unknown error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.others, w.unknown
}

// Waits reports whether another process keeps the rules that the agent is to keep.
func (w *Waiter) Waits() bool {
	others, _ := w.State()
	return len(others) > 0
}

// condition returns the state as a condition of the agent's pod, and whether it is known yet.
func (w *Waiter) condition() (c corev1.PodCondition, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c = corev1.PodCondition{Type: ConditionType, Status: corev1.ConditionFalse, Reason: "NoOtherServiceProxy"}
	switch {
	case w.unknown != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "LookFailed", w.unknown.Error()
	case len(w.others) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "OtherServiceProxyRunning", "waits for "+strings.Join(w.others, ", ")
	}
	return c, w.looked || c.Status != corev1.ConditionFalse
}

// Finish notes that the agent has looked for all processes that have to end.
func (w *Waiter) Finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked = true
	w.notify()
}

func (w *Waiter) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Set replaces the state and reports whether it differs from the one before.
func (w *Waiter) Set(others []string, unknown error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(others, w.others) && fmt.Sprint(unknown) == fmt.Sprint(w.unknown) {
		return false
	}
	w.others, w.unknown = others, unknown
	w.metric.Set(float64(min(len(others), 1)))
	w.notify()
	return true
}

// AcquireRoles waits until no other packetwalk-node has one of the roles, and acquires them. It returns false if ctx ended before.
func (w *Waiter) AcquireRoles(ctx context.Context, roles []string) bool {
	left := slices.Clone(roles)
	return w.Wait(ctx, 0, func(context.Context) (others []string, err error) {
		left = slices.DeleteFunc(left, func(role string) bool {
			failed := conflict.Take(role)
			if errors.Is(failed, conflict.ErrTaken) {
				others = append(others, fmt.Sprintf("another packetwalk-node (%s)", role))
			} else {
				err = errors.Join(err, failed)
			}
			return failed == nil
		})
		return others, err
	})
}

// Wait waits until look finds no process, and for as long as quiet if it ever found one. While look fails it waits, too. It returns false if
// ctx ended before.
func (w *Waiter) Wait(ctx context.Context, quiet time.Duration, look func(context.Context) ([]string, error)) bool {
	var seen time.Time
	for {
		others, err := look(ctx)
		w.faults.Note(LookFault, err)
		if len(others) > 0 || err != nil {
			seen = time.Now()
		} else if seen.IsZero() || time.Since(seen) >= quiet {
			if w.Set(nil, nil) {
				w.logger.Infof("no other service proxy runs on this node any more; taking over")
			}
			return ctx.Err() == nil
		}
		if (len(others) > 0 || err != nil) && w.Set(others, err) {
			if err != nil {
				others = append(slices.Clone(others), LookFault+": "+err.Error())
			}
			w.Warn(ctx, "WaitingForServiceProxy",
				"packetwalk-node waits for %s to end and writes no rules until then", strings.Join(others, ", "))
		}
		if !pause.For(ctx, pollPeriod) {
			return false
		}
	}
}

// Warn writes a line to the log and makes an event of the node.
func (w *Waiter) Warn(ctx context.Context, reason, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.logger.Warn(text)
	w.events.Make(ctx, corev1.Event{
		// The kubelet gives events of its node this UID, too (pkg/kubelet/kubelet.go): the object may not be known yet.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: types.UID(w.node)},
		Reason:         reason, Action: "Start", Message: fmt.Sprintf("node %s: %s", w.node, text),
	})
}

// PodConditions sets conditions of pods in the API; *kube.Watcher implements it.
type PodConditions interface {
	SetPodCondition(ctx context.Context, namespace, name string, c corev1.PodCondition) error
}

// KeepCondition keeps the condition of a pod, NAMESPACE/NAME, until ctx ends.
func (w *Waiter) KeepCondition(ctx context.Context, api PodConditions, pod string) {
	namespace, name, _ := strings.Cut(pod, "/")
	for {
		var retry <-chan time.Time
		if c, known := w.condition(); known {
			err := api.SetPodCondition(ctx, namespace, name, c)
			if w.faults.Note("set the condition of pod "+pod, err); err != nil {
				retry = time.After(conditionRetry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-retry:
		}
	}
}
