package takeover

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/report"
)

// TestWait checks that the agent waits until other processes have been gone for a while. It does not wait if there never was another
// process, and it waits while that is unknown.
func TestWait(t *testing.T) {
	unknown := errors.New("no /proc")
	for name, c := range map[string]struct {
		looks []any // one a second: who is there, or an error
		took  time.Duration
		told  int
	}{
		"nobody":       {[]any{""}, 0, 0},
		"one":          {[]any{"a", "a", ""}, time.Second + Quiet, 1},
		"one, another": {[]any{"a", "b", ""}, time.Second + Quiet, 2},
		"again":        {[]any{"a", "", "", "", "a", ""}, 4*time.Second + Quiet, 1},
		"not known":    {[]any{unknown, ""}, Quiet, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logger, sink := report.Logger{Logger: slog.New(slog.DiscardHandler)}, &countedEvents{}
				events := &report.Events{Logger: logger, Sink: sink}
				w := NewWaiter("node0", logger, report.NewFaults(logger, 0), events, (&metrics.Registry{}).Add("gauge", "waiting", "", "").Of())
				began, looks := time.Now(), 0
				ended := w.Wait(t.Context(), Quiet, func(context.Context) ([]string, error) {
					one := c.looks[min(looks, len(c.looks)-1)]
					looks++
					if err, failed := one.(error); failed {
						return nil, err
					}
					return strings.Fields(one.(string)), nil
				})
				synctest.Wait()
				if took := time.Since(began); !ended || took != c.took || int(sink.n.Load()) != c.told || w.Waits() {
					t.Errorf("%v after %v, told %d times; want %v, %d", ended, took, sink.n.Load(), c.took, c.told)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if w.Wait(ctx, 0, func(context.Context) ([]string, error) { return []string{"a"}, nil }) {
					t.Error("it goes on though its context has ended")
				}
			})
		})
	}
}

type countedEvents struct {
	n atomic.Int32
}

func (e *countedEvents) Event(context.Context, corev1.Event) error { e.n.Add(1); return nil }

// TestObserve checks that a service proxy counts as running until it has been gone for a while, and that an error changes nothing.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var found []string
		var fails error
		o := Others{Look: func(context.Context) ([]string, error) { return found, fails }, Quiet: Quiet}
		for i, step := range []struct {
			after   time.Duration
			found   []string
			fails   error
			change  Change
			running int
		}{
			{},
			{found: []string{"a"}, change: Started, running: 1},
			{found: []string{"a"}, running: 1},
			{found: []string{"a", "b"}, change: Started, running: 2},
			{fails: errors.New("no /proc"), running: 2},
			{running: 2},
			{after: Quiet - time.Second, running: 2},
			{found: []string{"b"}, change: Started, running: 1}, // it was restarted in time
			{running: 1},
			{after: Quiet, change: Ended},
			{after: Quiet},
		} {
			time.Sleep(step.after)
			found, fails = step.found, step.fails
			_, change, err := o.Observe(t.Context())
			if change != step.change || len(o.Running()) != step.running || !errors.Is(err, step.fails) {
				t.Errorf("step %d: change %d, running %v, %v", i, change, o.Running(), err)
			}
		}
	})
}
