package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Campaign is many worlds, of seeds in a row.
type Campaign struct {
	Seed, Worlds uint64
	Parallel     int
	// Each is told of every world, one at a time; may be nil.
	Each func(seed uint64, w *World, r Result, err error)
}

// Summary is what a campaign came to.
type Summary struct {
	Campaign
	Account
	Done    int            // worlds that ran
	Refused map[string]int // worlds that the kernel refused to make, by what of them
	Failed  []uint64       // seeds of worlds with a disagreement
	Took    time.Duration
	errs    []error
}

// Run runs the worlds; its error is what kept worlds from running, apart from those that cannot be made.
func (c Campaign) Run(ctx context.Context, dir string) (Summary, error) {
	s := Summary{Campaign: c, Account: newAccount(), Refused: map[string]int{}}
	begin := time.Now()
	seeds := make(chan uint64)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range max(c.Parallel, 1) {
		wg.Go(func() {
			for seed := range seeds {
				w := Generate(seed)
				r, err := Run(ctx, dir, w)
				mu.Lock()
				s.count(seed, w, r, err)
				mu.Unlock()
			}
		})
	}
	for i := range c.Worlds {
		if ctx.Err() != nil {
			break
		}
		seeds <- c.Seed + i
	}
	close(seeds)
	wg.Wait()
	s.Took = time.Since(begin)
	slices.Sort(s.Failed)
	return s, errors.Join(append(s.errs, ctx.Err())...)
}

func (s *Summary) count(seed uint64, w *World, r Result, err error) {
	if s.Each != nil {
		s.Each(seed, w, r, err)
	}
	s.add(&r.Account)
	var refused *worldError
	switch {
	case errors.As(err, &refused):
		s.Refused[refused.what]++
		return
	case err != nil:
		s.errs = append(s.errs, fmt.Errorf("seed %d: %w", seed, err))
		return
	}
	s.Done++
	if len(r.Failures) > 0 {
		s.Failed = append(s.Failed, seed)
	}
}

// String returns the summary in a few lines.
func (s Summary) String() string {
	text := fmt.Sprintf("seeds %d to %d: %d worlds in %s, %.0f packets a minute; %s", s.Seed, s.Seed+s.Worlds-1, s.Done,
		s.Took.Round(time.Second), float64(s.Compared())/s.Took.Minutes(), s.Account.String())
	if len(s.Refused) > 0 {
		text += "\nworlds that the kernel refused, by what of them: " + counts(s.Refused)
	}
	if len(s.Failed) > 0 {
		text += fmt.Sprintf("\nseeds that disagree: %v; to repeat the first: make verify N=1 SEED=%d ODDS=0", s.Failed, s.Failed[0])
	}
	return text
}
