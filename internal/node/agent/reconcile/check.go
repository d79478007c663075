package reconcile

import "time"

// noticeQuiet is how long after a notice of a deleted rule the check comes: who flushes tables does it in several steps.
const noticeQuiet = 100 * time.Millisecond

// Check says when to compare all rules with the kernel's: every period, and soon after the kernel's notice of a deleted rule.
type Check struct {
	period time.Duration
	next   time.Time // by the period
	soon   time.Time // after a notice; zero: there was none
	pace   Pacer     // of those after notices. A check of thousands of services takes longer than a change, which does not wait for its rest.
}

// NewCheck returns a check whose first period begins now.
func NewCheck(period time.Duration, pace Pacer) *Check {
	pace.began = true
	return &Check{period: period, next: time.Now().Add(period), pace: pace}
}

// Notice asks for a check, at a pace at which another program that fights for the same rules cannot make the agent spin.
func (c *Check) Notice() {
	if now := time.Now(); c.soon.IsZero() {
		c.soon = now.Add(max(noticeQuiet, c.pace.Delay(now)))
	}
}

// Until returns how long it is until the next check.
func (c *Check) Until(now time.Time) time.Duration {
	if c.soon.IsZero() || c.next.Before(c.soon) {
		return max(0, c.next.Sub(now))
	}
	return max(0, c.soon.Sub(now))
}

// Run runs a check, and notes when the next ones are due.
func (c *Check) Run(check func()) {
	start := time.Now()
	asked := !c.soon.IsZero() && !c.soon.After(start)
	check()
	end := time.Now()
	if asked {
		c.soon = time.Time{}
		c.pace.After(start, end, Changed)
	}
	if !c.next.After(start) {
		c.next = end.Add(untilLook(c.period, end.Sub(start)))
	}
}
