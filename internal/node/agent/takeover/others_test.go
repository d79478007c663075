package takeover

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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
