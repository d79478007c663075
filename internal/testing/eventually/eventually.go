// Package eventually waits in tests.
package eventually

import (
	"testing"
	"time"
)

// Pauses between checks grow to maxPause. A check that takes longer is given a pause as long as itself, up to maxSlowPause: checks that start
// programs, one after the other, would keep a processor busy that what they wait for needs.
const (
	maxPause     = 100 * time.Millisecond
	maxSlowPause = 500 * time.Millisecond
)

// Succeeds calls check until it returns nil, with pauses of 1 ms to 500 ms. After limit it fails the test with check's last error.
func Succeeds(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(max(pause, min(time.Since(began), maxSlowPause)))
	}
}
