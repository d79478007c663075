package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/base/pause"
)

// TestFor: it waits for as long as it is told, and no longer than its context lasts.
func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
		defer cancel()
		if !pause.For(ctx, time.Hour) || time.Since(begin) != time.Hour {
			t.Errorf("the first ended after %v", time.Since(begin))
		}
		if pause.For(ctx, time.Hour) || time.Since(begin) != 90*time.Minute {
			t.Errorf("the second ended after %v", time.Since(begin))
		}
		if pause.For(ctx, 0) {
			t.Error("it has no end of its own any more")
		}
	})
}
