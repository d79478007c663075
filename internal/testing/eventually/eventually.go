// Package eventually waits in tests.
package eventually

import (
	"testing"
	"time"
)

// maxPause is the longest pause between two checks.
const maxPause = 100 * time.Millisecond

// Succeeds calls check until it returns nil, with pauses of 1 ms to 100 ms. After limit it fails the test with check's last error.
func Succeeds(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(pause)
	}
}
