package agent

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
	"packetwalk.dev/internal/node/conflict"
)

const (
	takeoverPause = time.Second // between two looks for other processes
	// takeoverQuiet is how long a service proxy must be gone: its kubelet restarts one that has died, at first at once.
	takeoverQuiet = 5 * time.Second
)

// lookFault is the fault of not knowing which other processes run.
const lookFault = "look for other service proxies on this node"

// waitState holds what the agent waits for: before it starts to write rules, and while another service proxy writes the same. It is safe for
// concurrent use.
type waitState struct {
	metric  *series
	changed chan struct{} // receives after changes; several make one

	mu      sync.Mutex
	others  []string // processes that have to end
	unknown error    // why others may be incomplete
	looked  bool     // for all processes that have to end
}

func newWaitState(metric *series) waitState {
	return waitState{metric: metric, changed: make(chan struct{}, 1)}
}

// state returns the processes that have to end, and why they are not known.
func (w *waitState) state() (others []string, unknown error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.others, w.unknown
}

// condition returns the state as a condition of the agent's pod; false: it is not known yet.
func (w *waitState) condition() (c corev1.PodCondition, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c = corev1.PodCondition{Type: WaitingCondition, Status: corev1.ConditionFalse, Reason: "NoOtherServiceProxy"}
	switch {
	case w.unknown != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "LookFailed", w.unknown.Error()
	case len(w.others) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "OtherServiceProxyRunning", "waits for "+strings.Join(w.others, ", ")
	}
	return c, w.looked || c.Status != corev1.ConditionFalse
}

// start notes that there is nothing to wait for any more.
func (w *waitState) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked = true
	w.notify()
}

func (w *waitState) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// set reports whether that is another state than before.
func (w *waitState) set(others []string, unknown error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(others, w.others) && fmt.Sprint(unknown) == fmt.Sprint(w.unknown) {
		return false
	}
	w.others, w.unknown = others, unknown
	w.metric.set(float64(min(len(others), 1)))
	w.notify()
	return true
}

// roles returns what the agent keeps, by the names under which it acquires them.
func (a *agent) roles() (names []string) {
	for name, wanted := range map[string]bool{conflict.ServiceProxy: a.ServiceProxy, conflict.MasqAgent: a.IPMasqAgent} {
		if wanted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// acquireRoles waits until no other packetwalk-node has a role of this one; false: ctx ended before.
func (a *agent) acquireRoles(ctx context.Context) bool {
	left := a.roles()
	return a.waitForOthers(ctx, 0, func(context.Context) (others []string, err error) {
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

// waitForProxies waits until no other service proxy runs on the node; false: ctx ended before. The other's rules stay meanwhile, and the
// first sync takes them over. A table that a packetwalk-node left goes as at handOver.
func (a *agent) waitForProxies(ctx context.Context) bool {
	return a.waitForOthers(ctx, takeoverQuiet, func(ctx context.Context) ([]string, error) {
		found, err := a.others.look(ctx)
		if len(found) > 0 && err == nil && a.Backend == BackendNFTables {
			a.applyDelta()
			a.handOver(ctx, found)
		}
		return found, err
	})
}

// waitForOthers waits until look finds no process, and for as long as quiet if it ever found one. It reports what it waits for in the log,
// at /readyz, as a metric and a condition of the pod, and by an event of the node. While look fails it waits, too.
func (a *agent) waitForOthers(ctx context.Context, quiet time.Duration, look func(context.Context) ([]string, error)) bool {
	var seen time.Time
	for {
		others, err := look(ctx)
		a.faults.note(lookFault, err)
		if len(others) > 0 || err != nil {
			seen = time.Now()
		} else if seen.IsZero() || time.Since(seen) >= quiet {
			if a.waiting.set(nil, nil) {
				a.log("no other service proxy runs on this node any more; taking over")
			}
			return ctx.Err() == nil
		}
		if (len(others) > 0 || err != nil) && a.waiting.set(others, err) {
			if err != nil {
				others = append(slices.Clone(others), lookFault+": "+err.Error())
			}
			a.warnOfOthers(ctx, "WaitingForServiceProxy",
				"packetwalk-node waits for %s to end and writes no rules until then", strings.Join(others, ", "))
		}
		if !pause.For(ctx, takeoverPause) {
			return false
		}
	}
}

// warnOfOthers makes a line of the log and an event of the node.
func (a *agent) warnOfOthers(ctx context.Context, reason, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	a.warn("%s", text)
	a.event(ctx, corev1.Event{
		// The kubelet gives events of its node this UID, too (pkg/kubelet/kubelet.go): the object may not be known yet.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.NodeName, UID: types.UID(a.NodeName)},
		Reason:         reason, Action: "Start", Message: fmt.Sprintf("node %s: %s", a.NodeName, text),
	})
}

// others are the service proxies that run beside this one, which only the agent's loop looks at.
type others struct {
	look  func(context.Context) ([]string, error)
	found []string
	gone  time.Time // when none was found any more; zero: some run, or there were none
}

// mustYield reports whether another service proxy writes a family's rules in place of this one. With iptables that is so as soon as the
// other runs, because both would write the same chains. A table of nftables is one proxy's alone, so ours stays until the other has its
// rules.
func (a *agent) mustYield(p *familyProxy) bool {
	return len(a.others.found) > 0 && (p.left || a.Backend == BackendIPTables)
}

// yieldsAll reports whether another service proxy writes the rules of all families.
func (a *agent) yieldsAll() bool {
	return !slices.ContainsFunc(a.proxies, func(p *familyProxy) bool { return !a.mustYield(p) })
}

// lookForOthers looks for another service proxy that has started beside this one, as kubeadm upgrade starts kube-proxy. It hands over to
// that one, and takes over when the other has ended.
func (a *agent) lookForOthers(ctx context.Context) {
	if !a.ServiceProxy {
		return
	}
	found, err := a.others.look(ctx)
	if a.faults.note(lookFault, err); err != nil {
		return
	}
	a.metrics.others.set(float64(len(found)))
	o := &a.others
	switch {
	case len(found) > 0:
		o.gone = time.Time{}
		isNew := !slices.Equal(found, o.found)
		o.found = found
		if a.handOver(ctx, found); a.yieldsAll() {
			a.waiting.set(found, nil)
		}
		if isNew {
			a.warnOfOthers(ctx, "OtherServiceProxyRunning",
				"%s runs beside packetwalk-node, which hands over to it and takes over when it has ended; remove one of the two",
				strings.Join(found, ", "))
		}
	case len(o.found) == 0:
	case o.gone.IsZero():
		o.gone = time.Now()
	case time.Since(o.gone) >= takeoverQuiet:
		a.log("%s has ended; writing all rules and removing those that it left", strings.Join(o.found, ", "))
		o.found, o.gone = nil, time.Time{}
		a.waiting.set(nil, nil)
		a.unserved = slices.Clone(a.allUnserved)
		for _, p := range append(slices.Clone(a.proxies), a.unserved...) {
			p.other, p.left, p.behind = p.idle, false, true
			p.syncer.ForceFull()
			p.pace.asked = true
		}
	}
}

// WaitingCondition is the type of the condition of the agent's pod that says whether it waits for another service proxy.
const WaitingCondition = "packetwalk.dev/WaitingForServiceProxy"

// keepCondition keeps the condition of the agent's pod until ctx ends.
func (a *agent) keepCondition(ctx context.Context) {
	namespace, name, _ := strings.Cut(a.Pod, "/")
	for {
		var retry <-chan time.Time
		if c, known := a.waiting.condition(); known {
			err := a.source.SetPodCondition(ctx, namespace, name, c)
			if a.faults.note("set the condition of pod "+a.Pod, err); err != nil {
				retry = time.After(watchRetry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-a.waiting.changed:
		case <-retry:
		}
	}
}
