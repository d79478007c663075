package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/model/walk"
)

// Campaign is many worlds, of seeds in a row.
type Campaign struct {
	Seed, Worlds uint64
	Parallel     int
	// Each is told of every world, one at a time; nil for nobody.
	Each func(seed uint64, w *World, r Result, err error)
}

// Summary is what a campaign came to.
type Summary struct {
	Campaign
	Done, Unmade   int // worlds that ran, and that the kernel refused to make
	Packets, Steps int
	Unknown        int
	TooMany        int      // packets that were not compared
	Endless        int      // packets that were not sent, and are not among Packets
	Passing        []uint64 // seeds of worlds with a failure that did not come again
	Failed         []uint64 // seeds of worlds with a disagreement
	Failures       int      // packets
	Ends           map[walk.EndKind]int
	Took           time.Duration
	errs           []error
}

// Run runs the worlds; its error is what kept worlds from running, apart from those that cannot be made.
func (c Campaign) Run(ctx context.Context, dir string) (Summary, error) {
	s := Summary{Campaign: c, Ends: map[walk.EndKind]int{}}
	begin := time.Now()
	seeds := make(chan uint64)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range max(c.Parallel, 1) {
		wg.Go(func() {
			for seed := range seeds {
				w := Generate(seed)
				r, err := RunTwice(ctx, dir, w)
				mu.Lock()
				s.add(seed, w, r, err)
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
	slices.Sort(s.Passing)
	return s, errors.Join(append(s.errs, ctx.Err())...)
}

func (s *Summary) add(seed uint64, w *World, r Result, err error) {
	if s.Each != nil {
		s.Each(seed, w, r, err)
	}
	switch {
	case errors.Is(err, errWorld):
		s.Unmade++
		return
	case err != nil:
		s.errs = append(s.errs, fmt.Errorf("seed %d: %w", seed, err))
		return
	}
	s.Done++
	s.Packets += r.Packets
	s.Steps += r.Steps
	s.Unknown += r.Unknown
	s.TooMany += r.TooMany
	s.Endless += r.Endless
	s.Failures += len(r.Failures)
	if len(r.Passing) > 0 {
		s.Passing = append(s.Passing, seed)
	}
	for k, n := range r.Ends {
		s.Ends[k] += n
	}
	if len(r.Failures) > 0 {
		s.Failed = append(s.Failed, seed)
	}
}

// String is the summary in a few lines.
func (s Summary) String() string {
	var ends []string
	for _, k := range slices.Sorted(maps.Keys(s.Ends)) {
		ends = append(ends, fmt.Sprintf("%s %d", k, s.Ends[k]))
	}
	text := fmt.Sprintf("seeds %d to %d: %d worlds, %d packets, %d steps compared, %d packets disagree; %.1f worlds and %.1f packets a second\n"+
		"packets: %s; in reach of unsupported rules %d; too many outcomes to compare %d; not sent, as they could go round for ever %d; worlds that cannot be made %d", s.Seed, s.Seed+s.Worlds-1, s.Done, s.Packets, s.Steps, s.Failures,
		float64(s.Done)/s.Took.Seconds(), float64(s.Packets)/s.Took.Seconds(), strings.Join(ends, ", "), s.Unknown, s.TooMany, s.Endless, s.Unmade)
	if len(s.Passing) > 0 {
		text += fmt.Sprintf("\nseeds that disagreed once, and not again: %v", s.Passing)
	}
	if len(s.Failed) > 0 {
		text += fmt.Sprintf("\nseeds that disagree: %v", s.Failed)
	}
	return text
}
