package netns_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/kernel/netns"
)

// TestKill: processes that end one after the other are waited for. Those of which none ends are an error.
func TestKill(t *testing.T) {
	const noProcess = 1 << 23 // above the kernel's PID_MAX_LIMIT
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		remaining := func(all int) func() ([]int, error) {
			return func() ([]int, error) {
				pids := make([]int, max(all-int(time.Since(begin)/(6*time.Second)), 0))
				for i := range pids {
					pids[i] = noProcess + i
				}
				return pids, nil
			}
		}
		if err := netns.Kill(t.Context(), remaining(10)); err != nil || time.Since(begin) < time.Minute {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		begin = time.Now()
		stuck := func() ([]int, error) { return []int{noProcess}, nil }
		if err := netns.Kill(t.Context(), stuck); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 11*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}
