package reconcile

import (
	"time"

	"packetwalk.dev/internal/node/agent/options"
)

// The agent rests after each sync for a multiple of its duration. So following changes takes a bounded share of the machine, however fast
// they come. The share is a twentieth where no client waits long for it, because many agents may share a machine that is busy starting
// pods. It is never more than a sixth for each family.
const (
	leastRest = 5
	mostRest  = 20
)

// longRest is how much longer than leastRest times its duration a long sync may be rested from.
const longRest = 5 * time.Second

// rests are how long the agent of a backend rests.
type rests struct {
	least time.Duration // on average, from syncs that change rules
	short time.Duration // at most from a sync that is not long, beyond what it has to
	long  time.Duration // from here on a sync is long: the machine is overloaded, or a Service has very many endpoints
}

// restsOf a backend: with nftables changes are to be in the kernel in some 10 ms, also while 1,000 come each second. With iptables and
// 10,000 services a sync of one takes 0.1 to 0.2 s where nothing else runs.
func restsOf(backend string) rests {
	if backend == options.BackendNFTables {
		return rests{short: 20 * time.Millisecond, long: 50 * time.Millisecond}
	}
	return rests{long: 250 * time.Millisecond}
}

// from returns how long to rest from a sync.
func (r rests) from(took time.Duration) time.Duration {
	most := r.short
	if took >= r.long {
		most = leastRest*took + longRest
	}
	return max(r.least, leastRest*took, min(mostRest*took, most))
}

// burst is how much rest the agent may put off after quiet and take later. A Service, its endpoints and their readiness come within a
// second of each other, and a user waits for the last of them.
const burst = 5 * time.Second

// lookFactor is how many times its duration passes between two looks at all rules: those of 10,000 services take seconds to read.
const lookFactor = 20

// untilLook returns how long it is until the next look, after one that took so long.
func untilLook(period, took time.Duration) time.Duration { return max(period, lookFactor*took) }

// Pacer decides when the next sync begins. After quiet, and after the first one that succeeds, it is as soon as it is asked for: with
// 100,000 services the first takes seconds, in which others change.
type Pacer struct {
	min     time.Duration // from one sync's end to the next
	rests   rests
	began   bool // with a sync that succeeded
	backoff Backoff
	asked   bool      // for a sync, since the last one
	next    time.Time // before then none begins
	retry   time.Time // when the last one, which failed, is tried again without being asked for; zero: never
	rested  time.Time // when all rests so far would be over, had each followed its sync
}

// NewPacer returns the pace of a backend whose syncs are to be a period apart. Any period but the default is kept between any two syncs, as
// by kube-proxy (k8s.io/kubernetes pkg/proxy/runner). With iptables the default is kept on average, so that a user who waits for the last of
// a few changes does not wait a second for each.
func NewPacer(backend string, period, most time.Duration) Pacer {
	p := Pacer{min: period, rests: restsOf(backend), backoff: Backoff{Max: most}}
	if backend == options.BackendIPTables && period == options.DefaultMinSyncPeriod {
		p.min, p.rests.least = 0, period
	}
	return p
}

// Outcome says how a sync ended.
type Outcome int

// The outcomes of a sync.
const (
	Failed    Outcome = iota
	Unchanged         // the kernel already had the rules
	Changed
)

// Request asks for a sync.
func (p *Pacer) Request() { p.asked = true }

// After notes a sync from start to end. A failed one is tried again when something has changed, which may be what was wrong; else by the
// back-off. One that changed no rules does not delay the next one: most changes of a Service's status change none.
func (p *Pacer) After(start, end time.Time, outcome Outcome) {
	p.asked, p.retry, p.next = false, time.Time{}, end.Add(p.min)
	ok := outcome != Failed
	if ok && !p.began {
		p.began = true
		return
	}
	took, rests := end.Sub(start), p.rests
	if outcome == Unchanged {
		rests.least = 0
	}
	rest := max(p.min, rests.from(took))
	p.rested = Later(p.rested, start).Add(took + rest)
	p.next = Later(p.next, Later(end.Add(took), p.rested.Add(-burst)))
	if p.backoff.After(ok); ok {
		return
	}
	p.retry = Later(end.Add(max(rest, p.backoff.Wait)), p.next)
}

// UntilSync returns the time until the next sync starts.
func (p *Pacer) UntilSync(now time.Time) time.Duration {
	switch {
	case p.asked:
		return p.Delay(now)
	case p.retry.IsZero():
		return Forever
	}
	return max(0, p.retry.Sub(now))
}

// Delay returns how long a sync that is due now has to wait.
func (p *Pacer) Delay(now time.Time) time.Duration { return max(0, p.next.Sub(now)) }
