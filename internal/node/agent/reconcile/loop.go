// Package reconcile runs loops that bring the kernel's rules to a desired state again and again, and paces them.
package reconcile

import (
	"context"
	"math"
	"time"
)

// Loop brings the kernel to a desired state, again and again: the service proxy's rules, or the ip-masq-agent's. Each has a loop in a
// goroutine of its own, so that neither waits for the other.
type Loop struct {
	Start   func(context.Context) // runs first; may be nil
	Changed Wakeup                // the desired state may have changed
	Damaged Wakeup                // the kernel's state may have changed
	Stop    context.Context       // its end asks for tasks that lead to the end of the loop's context; nil: that one's end stops it
	Told    Wakeup                // received from once Stop has ended
	Tasks   []Task                // run one after the other, those that are due, in this order
}

// Wakeup is a channel whose messages ask for tasks.
type Wakeup struct {
	From <-chan struct{}
	Note func()
}

// Task is something that a loop does whenever it is due.
type Task struct {
	Until func(now time.Time) time.Duration // how long it is until the task is due; Forever: until a wakeup asks for it
	Run   func(context.Context)
}

// Run reconciles until the context ends. A task that runs when the loop is told to stop may continue for stopGrace.
func (r *Loop) Run(ctx context.Context) {
	work, cancel := finishing(ctx)
	defer cancel()
	untilStop := work // and for what tasks leave running
	if r.Stop != nil {
		untilStop, cancel = finishing(r.Stop)
		defer cancel()
	}
	do := func(task func(context.Context)) {
		if r.Stop != nil && r.Stop.Err() == nil {
			task(untilStop)
		} else {
			task(work)
		}
	}
	if r.Start != nil {
		do(r.Start)
	}
	due := time.NewTimer(Forever)
	defer due.Stop()
	for {
		now, wait := time.Now(), Forever
		for _, t := range r.Tasks {
			wait = min(wait, t.Until(now))
		}
		due.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-r.Changed.From:
			r.Changed.Note()
		case <-r.Damaged.From:
			r.Damaged.Note()
		case <-r.Told.From:
			r.Told.Note()
		case <-due.C:
			for _, t := range r.Tasks {
				if ctx.Err() == nil && t.Until(time.Now()) == 0 {
					do(t.Run)
				}
			}
		}
	}
}

// stopGrace is how long a task may continue after the agent is told to stop.
const stopGrace = time.Second

// finishing returns a context that ends stopGrace after ctx, so that a sync is not aborted midway.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return work, func() { stop(); cancel() }
}

// Forever is the time until a task that is neither requested nor to be retried.
const Forever = time.Duration(math.MaxInt64)

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
