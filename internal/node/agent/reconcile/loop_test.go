package reconcile

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestTaskContext: what a task leaves running, such as the report of an event, goes on after the task, and ends with the loop.
func TestTaskContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		stop, tell := context.WithCancel(t.Context())
		started := make(chan context.Context, 1)
		r := Loop{Stop: stop, Start: func(work context.Context) { started <- work }}
		ended := make(chan struct{})
		go func() { r.Run(ctx); close(ended) }()
		work := <-started
		time.Sleep(time.Minute)
		if err := work.Err(); err != nil {
			t.Errorf("a minute after the task: %v", err)
		}
		tell()
		time.Sleep(stopGrace)
		synctest.Wait()
		if work.Err() == nil {
			t.Errorf("%v after it was told to stop, a task that runs goes on", stopGrace)
		}
		cancel()
		<-ended
	})
}
