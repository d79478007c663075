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
	"packetwalk.dev/internal/node/incumbent"
)

const (
	turnPause = time.Second // between two looks at who is there
	// turnQuiet is how long a service proxy that was there must be gone: its kubelet, or who else keeps it running, starts one that has
	// died again, at first at once.
	turnQuiet = 5 * time.Second
)

// turn is for what the agent waits before it begins. It is safe for concurrent use.
type turn struct {
	mu      sync.Mutex
	waiting []string
}

func (t *turn) waitsFor() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// set says whether that is anything else than before.
func (t *turn) set(waiting []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := slices.Equal(waiting, t.waiting)
	t.waiting = waiting
	return !same
}

// parts are what the agent keeps, as the record of who has it names it.
func (a *agent) parts() (names []string) {
	for name, wanted := range map[string]bool{"service-proxy": a.ServiceProxy, "ip-masq-agent": a.IPMasqAgent, "calico-pools": a.CalicoPools} {
		if wanted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// takeParts waits until no other packetwalk-node has what this one is to keep; false: ctx ended before.
func (a *agent) takeParts(ctx context.Context) bool {
	left := a.parts()
	return a.await(ctx, 0, func(context.Context) (others []string, err error) {
		left = slices.DeleteFunc(left, func(part string) bool {
			failed := incumbent.Take(part)
			if errors.Is(failed, incumbent.ErrTaken) {
				others = append(others, fmt.Sprintf("another packetwalk-node (%s)", part))
			} else {
				err = errors.Join(err, failed)
			}
			return failed == nil
		})
		return others, err
	})
}

// awaitProxies waits until no other service proxy is alive on the node; false: ctx ended before. Its rules stay meanwhile, and are taken
// over by the first sync.
func (a *agent) awaitProxies(ctx context.Context) bool {
	return a.await(ctx, turnQuiet, incumbent.ServiceProxies)
}

// await waits until look finds nobody, if it ever found somebody for as long as quiet, and says for whom: in the log, at /readyz, and by an
// event of the node. What cannot be known is waited for, too.
func (a *agent) await(ctx context.Context, quiet time.Duration, look func(context.Context) ([]string, error)) bool {
	const what = "look who else is at work on this node"
	var seen time.Time
	for {
		others, err := look(ctx)
		a.faults.note(what, err)
		if err != nil {
			others = append(others, what+": "+err.Error())
		}
		if len(others) > 0 {
			seen = time.Now()
		} else if seen.IsZero() || time.Since(seen) >= quiet {
			a.turn.set(nil)
			return ctx.Err() == nil
		}
		if len(others) > 0 && a.turn.set(others) {
			a.tellWaiting(ctx, strings.Join(others, ", "))
		}
		if !pause.For(ctx, turnPause) {
			return false
		}
	}
}

func (a *agent) tellWaiting(ctx context.Context, others string) {
	text := fmt.Sprintf("packetwalk-node waits for %s to end, and leaves alone what that one keeps", others)
	a.log("%s", text)
	a.event(ctx, corev1.Event{
		// The kubelet gives events of its node this UID, too (pkg/kubelet/kubelet.go): the object may not be known yet.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.NodeName, UID: types.UID(a.NodeName)},
		Reason:         "WaitingForServiceProxy", Action: "Start", Message: fmt.Sprintf("node %s: %s", a.NodeName, text),
	})
}
