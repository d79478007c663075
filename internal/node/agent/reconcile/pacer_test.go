package reconcile

import (
	"testing"
	"time"

	"packetwalk.dev/internal/node/agent/options"
)

func TestPacerNeverUsesMoreThanItsShare(t *testing.T) {
	for _, c := range []struct {
		backend string
		min     time.Duration
		took    time.Duration
		atOnce  int           // syncs of the first burst
		between time.Duration // from one start to the next after that
	}{
		{options.BackendIPTables, time.Second, 10 * time.Millisecond, 6, 1010 * time.Millisecond},
		{options.BackendIPTables, time.Second, 50 * time.Millisecond, 6, 1050 * time.Millisecond},
		{options.BackendIPTables, time.Second, 100 * time.Millisecond, 6, 1100 * time.Millisecond},
		{options.BackendIPTables, time.Second, 400 * time.Millisecond, 1, 7400 * time.Millisecond},
		{options.BackendIPTables, time.Second, 2 * time.Second, 1, 17 * time.Second},
		{options.BackendNFTables, 0, 2 * time.Second, 1, 17 * time.Second},
		{options.BackendNFTables, 0, 400 * time.Millisecond, 1, 7400 * time.Millisecond},
		{options.BackendNFTables, 0, 50 * time.Millisecond, 6, 1050 * time.Millisecond},
		{options.BackendNFTables, 0, 40 * time.Millisecond, 32, 240 * time.Millisecond},
	} {
		p := NewPacer(c.backend, c.min, 30*time.Second)
		now := time.Unix(0, 0)
		if p.After(now, now.Add(c.took), Changed); p.Delay(now.Add(c.took)) != 0 {
			t.Errorf("%v: the first sync is rested from", c.took)
		}
		now = now.Add(c.took)
		for round := range 2 { // what a burst ran ahead is rested after quiet, and another one may come
			if d := p.Delay(now); d != 0 {
				t.Errorf("%v, round %d: after quiet: wait %v", c.took, round, d)
			}
			for i := range 40 {
				start := now
				p.After(start, start.Add(c.took), Changed)
				now = start.Add(c.took)
				d := p.Delay(now)
				switch {
				case i+1 < c.atOnce && d != c.took:
					t.Errorf("%v, round %d: after sync %d of a burst: wait %v, want %v", c.took, round, i+1, d, c.took)
				case i+1 > c.atOnce && c.took+d != c.between:
					t.Errorf("%v, round %d: after sync %d: the next begins %v after this one, want %v", c.took, round, i+1, c.took+d, c.between)
				}
				now = now.Add(d)
			}
			now = now.Add(burst)
		}
	}
}

// TestPacerIsNoLag: with nftables, many changes a second delay each other only imperceptibly.
func TestPacerIsNoLag(t *testing.T) {
	p := NewPacer(options.BackendNFTables, 0, 30*time.Second)
	for now := time.Unix(0, 0); now.Before(time.Unix(60, 0)); {
		end := now.Add(5 * time.Millisecond)
		p.After(now, end, Changed)
		if now = end.Add(p.Delay(end)); now.Sub(end) > 30*time.Millisecond {
			t.Fatalf("at %v: %v from one sync to the next", end, now.Sub(end))
		}
	}
}

// TestPacerKeepsThePeriod: a configured minimum time between syncs holds between any two, also after the first.
func TestPacerKeepsThePeriod(t *testing.T) {
	for backend, period := range map[string]time.Duration{options.BackendIPTables: 3 * time.Second, options.BackendNFTables: time.Second} {
		p := NewPacer(backend, period, 30*time.Second)
		for now, i := time.Unix(0, 0), 0; i < 10; i++ {
			end := now.Add(5 * time.Millisecond)
			p.After(now, end, Changed)
			if now = end.Add(p.Delay(end)); now.Sub(end) < period {
				t.Errorf("%s: %v after sync %d, want %v", backend, now.Sub(end), i+1, period)
			}
		}
	}
}

func TestPacerTriesAgainLaterAndLater(t *testing.T) {
	now := time.Unix(0, 0)
	p := Pacer{min: time.Second, backoff: Backoff{Max: 30 * time.Second}, began: true}
	for i, c := range []struct {
		took    time.Duration
		outcome Outcome
		want    time.Duration
	}{
		{0, Failed, time.Second},
		{0, Failed, 2 * time.Second},
		{0, Failed, 4 * time.Second},
		{10 * time.Second, Failed, 55 * time.Second},
		{0, Failed, 16 * time.Second},
		{0, Failed, 30 * time.Second},
		{0, Changed, Forever},
		{0, Failed, time.Second},
	} {
		p.After(now, now.Add(c.took), c.outcome)
		now = now.Add(c.took)
		if got := p.UntilSync(now); got != c.want {
			t.Errorf("sync %d: wait %v, want %v", i, got, c.want)
		}
		if c.outcome == Failed {
			now = now.Add(p.UntilSync(now))
		}
	}
}

// TestPacerUnchanged: syncs that change no rule, as those of a new Service's status, do not delay the one that does.
func TestPacerUnchanged(t *testing.T) {
	p := NewPacer(options.BackendIPTables, time.Second, 30*time.Second)
	now := time.Unix(0, 0)
	for range 20 {
		end := now.Add(time.Millisecond)
		p.After(now, end, Unchanged)
		if d := p.Delay(end); d > 20*time.Millisecond {
			t.Fatalf("at %v: wait %v", now, d)
		}
		now = now.Add(100 * time.Millisecond)
	}
}
