package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/status"
)

// A part is a piece of a lab that starts, changes, tells and stops by itself. A lab is a list of them.
type part interface {
	// Start brings the part up, or takes over what an earlier lab process left of it, and returns when those after it can rely on it.
	// What it keeps running goes on until ctx ends.
	Start(ctx context.Context) error
	// Change brings the part from what one cluster.yaml says to what another says.
	Change(ctx context.Context, c change) error
	// Report adds to a status how the part is. It is not called before Start has succeeded.
	Report(s *status.Status)
	// Stop waits for what Start keeps running, whose context has ended. What the part has made stays, for the next lab process.
	Stop()
}

// A change leads from one cluster to another; say hears what is done.
type change struct {
	from, to *cluster.Cluster
	say      func(Step)
	deadline deadline
}

// still is what a part embeds that has nothing to change, tell or wait for.
type still struct{}

func (still) Change(context.Context, change) error { return nil }
func (still) Report(*status.Status)                {}
func (still) Stop()                                {}

// startOnly is a part that is nothing but its start.
type startOnly struct {
	still
	start func(context.Context) error
}

func (p startOnly) Start(ctx context.Context) error { return p.start(ctx) }

// placed is a part in its place in the list.
type placed struct {
	name string // what is waited for, in words
	part
	after []string // parts before it in the list that must be up first; the others start beside it

	up  chan struct{} // closes when Start has succeeded
	end context.CancelFunc
}

// parts are all of a lab: the order of the list is the order of start and of changes, and the reverse that of stop.
type parts []*placed

// place puts a part at the end of the list.
func (ps *parts) place(name string, p part, after ...string) {
	*ps = append(*ps, &placed{name: name, part: p, after: after, up: make(chan struct{})})
}

// start starts all parts, each as soon as those it needs are up. The first that fails ends them all, in the reverse order, and so does what
// comes from broken. The error names it. At the deadline the error names every part that is still starting, and what it waits for.
func (ps parts) start(ctx context.Context, d deadline, broken <-chan error) error {
	bounded, cancel := d.bound(ctx)
	defer cancel()
	starting, fail := context.WithCancelCause(bounded)
	defer fail(nil)
	waiting := make([]error, len(ps)) // those that are starting at the deadline
	go func() {
		select {
		case err := <-broken:
			fail(err)
		case <-starting.Done():
		}
	}()
	var all sync.WaitGroup
	for i, p := range ps {
		life, end := context.WithCancel(ctx)
		p.end = end
		all.Go(func() {
			if !ps.await(starting, p.after) {
				return
			}
			err := startBefore(starting, end, func() error { return p.Start(life) })
			var late *lateError
			switch {
			case err == nil:
				close(p.up)
			case errors.As(err, &late):
				waiting[i] = late.waitingFor(p.name)
			default:
				fail(fmt.Errorf("%s: %w", p.name, err))
			}
		})
	}
	all.Wait()
	err := context.Cause(starting)
	if err == nil {
		return nil
	}
	ps.stop()
	return errors.Join(append([]error{err}, waiting...)...)
}

// await waits for parts to be up; false when ctx ended first.
func (ps parts) await(ctx context.Context, names []string) bool {
	for _, p := range ps {
		if !slices.Contains(names, p.name) {
			continue
		}
		select {
		case <-p.up:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// change takes the parts to another cluster, one after the other. The first that fails ends it, unless the others can go on without it.
func (ps parts) change(ctx context.Context, c change) error {
	var rest error
	for _, p := range ps {
		if err := p.Change(ctx, c); errors.As(err, new(unfinished)) {
			rest = err
		} else if err != nil {
			return err
		}
	}
	return rest
}

// unfinished is the error of a part that is well where it stopped on its way: the lab becomes what it reached.
type unfinished struct{ error }

func (u unfinished) Unwrap() error { return u.error }

// report asks the parts that are up, and says for which a lab waits that starts.
func (ps parts) report(s *status.Status) {
	var missing []string
	for _, p := range ps {
		select {
		case <-p.up:
			p.Report(s)
		default:
			missing = append(missing, p.name)
		}
	}
	if len(missing) > 0 {
		s.Problems = append(s.Problems, "the lab starts, and waits for: "+strings.Join(missing, ", "))
	}
}

// stop ends what this process does for the parts, the last first. Those that are not up have nothing to wait for.
func (ps parts) stop() {
	for _, p := range slices.Backward(ps) {
		p.end()
		select {
		case <-p.up:
			p.Stop()
		default:
		}
	}
}
