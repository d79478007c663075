package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"packetwalk.dev/internal/node/service"
)

// TestCleanUp: rules go at the end only where the DaemonSet has been deleted, for certain, and this agent has written them.
func TestCleanUp(t *testing.T) {
	for name, c := range map[string]struct {
		gone, written bool
		err           error
		removed       bool
	}{
		"deleted":     {gone: true, written: true, removed: true},
		"replaced":    {written: true},
		"not known":   {gone: true, written: true, err: errors.New("no rights")},
		"it waited":   {gone: true},
		"interrupted": {err: context.DeadlineExceeded, written: true},
	} {
		o := Defaults()
		o.ServiceProxy = false
		a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p := &familyProxy{programsOf: programsOf{family: service.IPv4}}
		if c.written {
			p.triggered = map[service.Key]time.Time{}
		}
		a.proxies = []*familyProxy{p}
		removed := false
		err = a.cleanUp(func(ctx context.Context) (bool, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Errorf("%s: it waits for ever", name)
			}
			return c.gone, c.err
		}, func(context.Context) error { removed = true; return nil })
		if err != nil || removed != c.removed {
			t.Errorf("%s: removed %v, %v", name, removed, err)
		}
	}
}
