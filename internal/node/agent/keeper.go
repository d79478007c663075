package agent

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/node/serviceproxy"
	"packetwalk.dev/internal/syntax/iptables"
)

// part is one of the things that a node's agent keeps beside the service proxy's rules.
type part interface {
	// prepare does what has to be done before the first connection to the API server.
	prepare(ctx context.Context)
	// read takes what is new, by what asked for it; false says that nothing has to be done.
	read(ctx context.Context, by trigger) bool
	// apply brings the kernel to what was read.
	apply(ctx context.Context) error
	// period is how long nothing may happen before everything is looked at again.
	period() time.Duration
	// unready is why what the part keeps is not in force, none where it is.
	unready() []string
	// misconfigured is why the part does not apply what the API has for it, none where it does.
	misconfigured() []string
	// serve adds the part's paths.
	serve(mux *http.ServeMux)
}

// trigger is what asks for a look at a part's rules.
type trigger string

const (
	byWatch    trigger = "watch"    // the API has changed
	byInterval trigger = "interval" // the period is over
	byRepair   trigger = "repair"   // rules were changed
	byLook     trigger = "look"     // nobody gives notice of changed sets
)

const (
	keeperGap     = 100 * time.Millisecond // least time between two looks at the kernel, however fast changes come
	keeperRetry   = time.Second            // after a failure; doubled up to the period
	reportTimeout = 10 * time.Second       // how long the API server may take for an event, or an answer
	stopGrace     = time.Second            // how long what has begun may go on when the agent is told to stop
)

// keeper runs a part beside the service proxy's loop: neither waits for the other, and the rules of each are the other's only to look at.
type keeper struct {
	part
	source interface {
		Run(ctx context.Context)
		Changed() <-chan struct{}
	}
	look    time.Duration // how often to look at what nobody gives notice of; 0: never
	repairs chan struct{}
	failed  int // in a row
}

// repair asks for a comparison with the kernel's rules; several make one.
func (k *keeper) repair() {
	select {
	case k.repairs <- struct{}{}:
	default:
	}
}

// run keeps the part's rules until the context ends, and leaves them in place.
func (k *keeper) run(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { k.source.Run(ctx) })
	defer watches.Wait()
	work, cancel := finishing(ctx)
	defer cancel()
	due := time.NewTimer(k.wait())
	defer due.Stop()
	var look <-chan time.Time
	if k.look > 0 {
		ticker := time.NewTicker(k.look)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		var by trigger
		select {
		case <-ctx.Done():
			return
		case <-k.source.Changed():
			by = byWatch
		case <-due.C:
			by = byInterval
		case <-k.repairs:
			by = byRepair
		case <-look:
			by = byLook
		}
		if !k.read(work, by) {
			continue
		}
		k.failed++
		if k.apply(work) == nil {
			k.failed = 0
		}
		due.Reset(k.wait())
		if !pause.For(ctx, keeperGap) {
			return
		}
	}
}

// wait is how long nothing may happen before the next look.
func (k *keeper) wait() time.Duration {
	if k.failed > 0 {
		return min(k.period(), keeperRetry<<min(k.failed-1, 10))
	}
	return k.period()
}

// finishing is a context for what has begun when ctx ends: half a sync is for nobody's good, and who stops the agent does not wait for
// ever.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return work, func() { stop(); cancel() }
}

// outcome is how a part's last look at the kernel went. It is safe for concurrent use.
type outcome struct {
	mu        sync.Mutex
	stale     time.Duration // how old a look may be
	failed    error
	succeeded time.Time
}

func (o *outcome) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed = err; err == nil {
		o.succeeded = time.Now()
	}
}

// stretch lets a look be older before it is too old.
func (o *outcome) stretch(stale time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stale = max(o.stale, stale)
}

// unhealthy is why what the part keeps is not in force, none where it is; waiting is why as long as nothing was tried.
func (o *outcome) unhealthy(waiting string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.failed != nil:
		return []string{o.failed.Error()}
	case o.succeeded.IsZero() && waiting != "":
		return []string{waiting}
	case !o.succeeded.IsZero() && time.Since(o.succeeded) > o.stale:
		return []string{"not looked at since " + o.succeeded.UTC().Format(time.RFC3339)}
	}
	return nil
}

// warner makes events of what is wrong with objects, once for each version of one.
type warner struct {
	sent map[string]bool
	log  logf
}

// send makes the events, by keys of object, version and message, that were not made the last time.
func (w *warner) send(ctx context.Context, events map[string]func(context.Context) error) {
	sent := map[string]bool{}
	for key, send := range events {
		if sent[key] = true; w.sent[key] {
			continue
		}
		sendEvent(ctx, w.log, send)
	}
	w.sent = sent
}

// sendEvent sends an event, beside everything else.
func sendEvent(ctx context.Context, log logf, send func(context.Context) error) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		if err := send(ctx); err != nil && ctx.Err() == nil {
			log("%v", err)
		}
	}()
}

// editNAT changes table nat as edit says, in one transaction, and tells how many rules it wrote. edit gets nil where there is no such
// table.
func editNAT(ctx context.Context, applier serviceproxy.Tables, edit func(*iptables.Table) iptables.Edit) (int, error) {
	dump, err := applier.Save(ctx, iptables.NAT)
	if err != nil {
		return 0, err
	}
	tables, err := iptables.Parse(dump)
	if err != nil {
		return 0, fmt.Errorf("read table nat: %w", err)
	}
	var nat *iptables.Table
	for i := range tables {
		if tables[i].Name == iptables.NAT {
			nat = &tables[i]
		}
	}
	e := edit(nat)
	if e.IsZero() {
		return 0, nil
	}
	return e.Rules(), applier.Restore(ctx, iptables.AppendRestore(nil, []iptables.Edit{e}))
}
