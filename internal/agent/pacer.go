package agent

import "time"

// restFactor is how many times a sync's own duration the agent rests after it: it uses at most a sixth of a CPU for following changes,
// however fast they come and however many rules there are.
const restFactor = 5

// pacer decides when the next sync may begin. After quiet it is at once.
type pacer struct {
	min  time.Duration
	max  time.Duration // of a failed sync's wait
	next time.Time
	wait time.Duration // after the failure before
}

// after notes a sync from start to end and whether it succeeded. A failed one is tried again after a second, then two, four, … up to max.
func (p *pacer) after(start, end time.Time, ok bool) {
	rest := max(p.min, restFactor*end.Sub(start))
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
