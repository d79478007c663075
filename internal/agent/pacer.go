package agent

import "time"

// The agent rests after each sync for some times its duration, so that following changes takes a bounded share of the machine however fast
// they come: with short syncs a twentieth, for many agents may share a machine that is busy starting pods; never more than a sixth.
const (
	restFactor      = 5
	shortRestFactor = 20
	shortRest       = 5 * time.Second // as long as shortRestFactor may make a rest
)

// pacer decides when the next sync may begin. After quiet it is at once.
type pacer struct {
	min  time.Duration
	max  time.Duration // of a failed sync's wait
	next time.Time
	wait time.Duration // after the failure before
}

// after notes a sync from start to end and whether it succeeded. A failed one is tried again after a second, then two, four, … up to max.
func (p *pacer) after(start, end time.Time, ok bool) {
	took := end.Sub(start)
	rest := max(p.min, restFactor*took, min(shortRestFactor*took, shortRest))
	if ok {
		p.wait = 0
	} else {
		p.wait = min(max(2*p.wait, time.Second), p.max)
		rest = max(rest, p.wait)
	}
	p.next = end.Add(rest)
}

// delay is how long a sync that is due now has to wait.
func (p *pacer) delay(now time.Time) time.Duration { return max(0, p.next.Sub(now)) }
