// Package pause owns waiting that ends with a context.
package pause

import (
	"context"
	"time"
)

// For waits for d; false when ctx has ended.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
