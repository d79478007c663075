package kubelet

import "time"

// Back-off as upstream's kubelet has it: the first restart is at once, then 10 s doubling to 5 min, forgotten after twice the maximum
// without a failure (pkg/kubelet/kubelet.go: MaxContainerBackOff, containerBackOffPeriod; client-go/util/flowcontrol: Backoff).
const (
	backoffInitial = 10 * time.Second
	backoffMax     = 5 * time.Minute
)

// A backoff is the memory of one thing that failed again and again. The zero value has seen no failure.
type backoff struct {
	Delay time.Duration `json:"delay,omitempty"`
	At    time.Time     `json:"at,omitzero"` // when Delay was last raised
}

// until tells when what failed at failed may be tried again; a time that is not after now means at once.
func (b *backoff) until(failed, now time.Time) time.Time {
	if b.Delay == 0 || b.expired(now) {
		return now
	}
	return failed.Add(b.Delay)
}

// next raises the delay: to be called when the thing is tried again.
func (b *backoff) next(now time.Time) {
	switch {
	case b.Delay == 0 || b.expired(now):
		b.Delay = backoffInitial
	default:
		b.Delay = min(2*b.Delay, backoffMax)
	}
	b.At = now
}

func (b *backoff) expired(now time.Time) bool { return now.Sub(b.At) > 2*backoffMax }

// A retry is a simple exponential delay: for set-up steps (sandbox, volumes), which no user's process takes part in.
type retry struct {
	Delay time.Duration
	At    time.Time // do not try before
}

func (r *retry) failed(now time.Time, first, limit time.Duration) {
	r.Delay = min(max(2*r.Delay, first), limit)
	r.At = now.Add(r.Delay)
}

func (r *retry) succeeded() { *r = retry{} }
