package agent

import (
	"context"
	"time"

	"packetwalk.dev/internal/base/pause"
)

// trigger names the cause of a look at the ip-masq-agent's rules.
type trigger string

const (
	byWatch    trigger = "watch"    // the API has changed
	byInterval trigger = "interval" // the period is over
	byRepair   trigger = "repair"   // rules were changed
)

const (
	masqGap   = 100 * time.Millisecond // least time between two looks at the kernel, however fast changes come
	masqRetry = time.Second            // after a failure; doubled up to the period
)

// repair asks for a comparison with the kernel's rules; several make one.
func (m *masqAgent) repair() {
	select {
	case m.repairs <- struct{}{}:
	default:
	}
}

// run keeps the rules until the context ends, and leaves them in place. It runs beside the service proxy's loop: neither waits for the
// other.
func (m *masqAgent) run(ctx context.Context) {
	watches := make(chan struct{})
	go func() { defer close(watches); m.source.Run(ctx) }()
	defer func() { <-watches }()
	work, cancel := finishing(ctx)
	defer cancel()
	due := time.NewTimer(m.wait())
	defer due.Stop()
	for {
		var by trigger
		select {
		case <-ctx.Done():
			return
		case <-m.source.Changed():
			by = byWatch
		case <-due.C:
			by = byInterval
		case <-m.repairs:
			by = byRepair
		}
		m.read(work, by)
		m.failed++
		if m.apply(work) == nil {
			m.failed = 0
		}
		due.Reset(m.wait())
		if !pause.For(ctx, masqGap) {
			return
		}
	}
}

// wait returns the longest time until the next look.
func (m *masqAgent) wait() time.Duration {
	if m.failed > 0 {
		return min(m.period(), masqRetry<<min(m.failed-1, 10))
	}
	return m.period()
}

// send sends the events, by keys of object, version and message, that were not sent the last time.
func (m *masqAgent) send(ctx context.Context, events map[string]func(context.Context) error) {
	sent := map[string]bool{}
	for key, send := range events {
		if sent[key] = true; !m.sent[key] {
			sendEvent(ctx, m.state.warn, send)
		}
	}
	m.sent = sent
}
