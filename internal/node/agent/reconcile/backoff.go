package reconcile

import "time"

// Backoff says how long to wait after each of several failures in a row: a second, then two, four, … up to Max.
type Backoff struct {
	Max  time.Duration
	Wait time.Duration // after the last try; 0: it succeeded
}

// After notes the outcome of a try.
func (b *Backoff) After(ok bool) {
	if ok {
		b.Wait = 0
		return
	}
	b.Wait = min(max(2*b.Wait, time.Second), b.Max)
}
