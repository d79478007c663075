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
