package agent

import (
	"context"
	"time"
)

// reconciler brings the kernel to a desired state, again and again: the service proxy's rules, or the ip-masq-agent's. Each has a
// reconciler in a goroutine of its own, so that neither waits for the other.
type reconciler struct {
	start   func(context.Context) // runs first; may be nil
	changed wakeup                // the desired state may have changed
	damaged wakeup                // the kernel's state may have changed
	stop    context.Context       // its end asks for tasks that lead to the end of the reconciler's context; nil: that one's end stops it
	told    wakeup                // received from once stop has ended
	tasks   []task                // run one after the other, those that are due, in this order
}

// wakeup is a channel whose messages ask for tasks.
type wakeup struct {
	from <-chan struct{}
	note func()
}

// task is something that a reconciler does whenever it is due.
type task struct {
	until func(now time.Time) time.Duration // how long it is until the task is due; forever: until a wakeup asks for it
	run   func(context.Context)
}

// run reconciles until the context ends. A task that runs when the reconciler is told to stop may continue for stopGrace.
func (r *reconciler) run(ctx context.Context) {
	work, cancel := finishing(ctx)
	defer cancel()
	untilStop := work // and for what tasks leave running
	if r.stop != nil {
		untilStop, cancel = finishing(r.stop)
		defer cancel()
	}
	do := func(task func(context.Context)) {
		if r.stop != nil && r.stop.Err() == nil {
			task(untilStop)
		} else {
			task(work)
		}
	}
	if r.start != nil {
		do(r.start)
	}
	due := time.NewTimer(forever)
	defer due.Stop()
	for {
		now, wait := time.Now(), forever
		for _, t := range r.tasks {
			wait = min(wait, t.until(now))
		}
		due.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-r.changed.from:
			r.changed.note()
		case <-r.damaged.from:
			r.damaged.note()
		case <-r.told.from:
			r.told.note()
		case <-due.C:
			for _, t := range r.tasks {
				if ctx.Err() == nil && t.until(time.Now()) == 0 {
					do(t.run)
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

// backoff is how long to wait after each of several failures in a row: a second, then two, four, … up to max.
type backoff struct {
	max  time.Duration
	wait time.Duration // after the last try; 0: it succeeded
}

// after notes the outcome of a try.
func (b *backoff) after(ok bool) {
	if ok {
		b.wait = 0
		return
	}
	b.wait = min(max(2*b.wait, time.Second), b.max)
}

// ruleCheck is when the agent compares all rules with the kernel's: every period, and soon after the kernel has told of a deleted rule.
type ruleCheck struct {
	period time.Duration
	next   time.Time // by the period
	soon   time.Time // after a notice; zero: there was none
	pace   pacer     // of those after notices. A check of thousands of services takes longer than a change, which does not wait for its rest.
}

// notice asks for a check, at a pace at which another program that fights for the same rules cannot make the agent spin.
func (c *ruleCheck) notice() {
	if now := time.Now(); c.soon.IsZero() {
		c.soon = now.Add(max(noticeQuiet, c.pace.delay(now)))
	}
}

func (c *ruleCheck) until(now time.Time) time.Duration {
	if c.soon.IsZero() || c.next.Before(c.soon) {
		return max(0, c.next.Sub(now))
	}
	return max(0, c.soon.Sub(now))
}

// run runs a check, and notes when the next ones are due.
func (c *ruleCheck) run(check func()) {
	start := time.Now()
	asked := !c.soon.IsZero() && !c.soon.After(start)
	check()
	end := time.Now()
	if asked {
		c.soon = time.Time{}
		c.pace.after(start, end, true)
	}
	if !c.next.After(start) {
		c.next = end.Add(untilLook(c.period, end.Sub(start)))
	}
}
