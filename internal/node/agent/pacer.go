package agent

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// The agent rests after each sync for some times its duration, so that following changes takes a bounded share of the machine however fast
// they come: with short syncs a twentieth, for many agents may share a machine that is busy starting pods; never more than a sixth.
const (
	restFactor      = 5
	shortRestFactor = 20
)

// shortRest is as long as shortRestFactor may make a rest. With nftables changes are to be in the kernel in some 10 ms, also while 1,000
// come each second.
func shortRest(backend string) time.Duration {
	if backend == BackendNFTables {
		return 25 * time.Millisecond
	}
	return 5 * time.Second
}

// burst is how much rest may be put off after quiet, and is rested later: a Service, its endpoints and their becoming ready come within a
// second of each other, and somebody waits for the last of them.
const burst = 5 * time.Second

// mostRest is how long a rest may become because the machine's processors are busy.
const mostRest = 30 * time.Second

// lookFactor is how many times its duration passes between two looks at all rules: those of 10,000 services take seconds to read.
const lookFactor = 20

// untilLook is how long it is until the next look, after one that took so long.
func untilLook(period, took time.Duration) time.Duration { return max(period, lookFactor*took) }

// pacer decides when the next sync may begin. After quiet, and after the first one that succeeds, it is at once: with 100,000 services the
// first takes seconds, in which others change.
type pacer struct {
	min    time.Duration
	short  time.Duration
	began  bool          // with a sync that succeeded
	max    time.Duration // of a failed sync's wait
	next   time.Time
	rested time.Time     // when all rests so far would be over, had each followed its sync
	wait   time.Duration // after the failure before
	ahead  int           // how many syncs one after the other have used up what may be put off
}

// after notes a sync from start to end, how much of that time the processors worked for it, and whether it succeeded. A failed one is tried
// again after a second, then two, four, … up to max.
//
// Where syncs follow each other without quiet and wait for processors, many agents may share the machine. Each rests twice as long as
// before, up to the square of how much longer its syncs take than their work: then they are what the machine can do.
func (p *pacer) after(start, end time.Time, worked time.Duration, ok bool) {
	if ok && !p.began {
		p.began = true
		return
	}
	took := end.Sub(start)
	rest := max(p.min, restFactor*took, min(shortRestFactor*took, p.short))
	if start.After(p.rested) {
		p.ahead = 0
	}
	p.rested = later(p.rested, start).Add(took + rest)
	if p.rested.After(end.Add(burst)) {
		p.ahead++
		p.rested = p.rested.Add(max(0, min(time.Duration(p.stretch(took, worked)*float64(rest)), mostRest)-rest))
	}
	if ok {
		p.wait = 0
		p.next = later(end.Add(took), p.rested.Add(-burst))
		return
	}
	p.wait = min(max(2*p.wait, time.Second), p.max)
	p.next = later(end.Add(max(rest, p.wait)), p.rested.Add(-burst))
}

// stretch is how many times longer than usual to rest from a sync.
func (p *pacer) stretch(took, worked time.Duration) float64 {
	const least = 2 * time.Millisecond // of less, most is chance
	waited := float64(took) / float64(max(worked, least))
	return max(1, min(waited*waited, math.Exp2(float64(p.ahead-1))))
}

// processorTime is how long processors have worked for this process and for those of its children that have ended.
func processorTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil {
			sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	return sum
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// delay is how long a sync that is due now has to wait.
func (p *pacer) delay(now time.Time) time.Duration { return max(0, p.next.Sub(now)) }
