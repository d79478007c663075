package proof

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// How long to wait. What is predicted is waited for as long as the patience lasts; what is not, until nothing has been seen for a while.
// The kernel has written an event before the packet goes on.
const (
	patience      = 5 * time.Second        // and rounds
	rounds        = 20                     // of comparing: where the machine is busy they take longer
	answerTimeout = 500 * time.Millisecond // for a program that need not answer; verify's do
	quiet         = 15 * time.Millisecond
	silence       = 40 * time.Millisecond
	unheard       = 200 * time.Millisecond // after a neighbour request without an answer: the kernel asks again
	slowest       = 250 * time.Millisecond // between two comparisons
)

// attempt is one packet that is sent and watched.
type attempt struct {
	source    snapshot.Source
	probe     Sender
	payload   []byte
	predicted *walk.Result
	tuple     packet.Tuple
	receivers []string // hosts that may get it, whatever is predicted
	watchers  []*watcher
	activity  chan struct{}
	sent      chan sentPacket
	end       func() // takes socket, traces and captures away, once
	chance    bool   // an outcome may have a port that the kernel chooses by chance
	everyone  bool   // all hosts are watched
}

// sentPacket is what the probe returned.
type sentPacket struct {
	result witness.Result
	err    error
}

// run sends the probe and compares what is seen of it, until all agrees or the patience ends.
func (a *attempt) run(ctx context.Context, places Places, expected *walk.Result, everywhere bool) (report Report, err error) {
	a.chance = byChance(expected) || expected.More
	var others []string
	if everywhere {
		others, a.everyone = a.source.Names(), true
		if a.chance {
			a.readAll()
		}
	}
	watching, stop := context.WithCancel(ctx)
	waiting, enough := context.WithCancel(ctx)
	var sending sync.WaitGroup
	a.end = sync.OnceFunc(func() {
		enough()
		sending.Wait()
		_ = a.probe.Close() // before the rules that keep it from repeating its SYN
		closeAll(a.watchers)
		stop()
	})
	defer a.end()
	a.watchers, err = a.watch(watching, places, expected, others)
	if err != nil {
		return Report{}, err
	}
	sending.Go(func() {
		r, err := a.probe.Send(ctx, waiting)
		a.sent <- sentPacket{r, err}
	})
	return a.compareUntilDone(ctx, waiting, enough)
}

// readAll reads the hosts that the prediction did not come to. With what the kernel chose, it may: then their state is that of before the
// packet, and without the tables of the traces. What cannot be read is an error where it is asked for.
func (a *attempt) readAll() {
	for _, name := range a.source.Names() {
		_, _ = a.source.Host(name)
	}
}

// compareUntilDone compares what was seen with the prediction, repeatedly until both agree or waiting ends.
func (a *attempt) compareUntilDone(ctx, waiting context.Context, enough context.CancelFunc) (Report, error) {
	begin := time.Now()
	var answer *witness.Result
	for wait, round := quiet, 0; ; round++ {
		a.settle(ctx, wait)
		if round >= rounds && time.Since(begin) > patience {
			enough()
		}
		over := isOver(waiting)
		if answer == nil {
			got, err := a.learnt(over)
			if err != nil {
				return Report{}, err
			}
			answer = got
		}
		before := time.Now()
		report, still, err := a.compare(ctx, answer, over)
		took := time.Since(before)
		round += int(took / quiet) // of thousands of outcomes comparing takes long itself
		if err = errors.Join(err, ctx.Err()); err != nil {
			return report, err
		}
		switch {
		case answer != nil && (over || report.First == nil && !report.Unanswered): // the sender may have the answer before it was read here
			return report, nil
		case answer != nil || report.First != nil || report.Unanswered && (a.everyone || time.Since(begin) < answerTimeout):
			wait = max(min(2*wait, slowest), 2*took) // for what is predicted
		case wait < still:
			wait = still
		default:
			enough() // of silence: what the sender has learnt until now is the answer
			wait = 0
		}
	}
}

func isOver(ctx context.Context) bool { return ctx.Err() != nil }

// learnt returns what the sender has learnt: nil where it still waits.
func (a *attempt) learnt(over bool) (*witness.Result, error) {
	if over {
		s := <-a.sent // at once: its patience has ended, too
		return &s.result, s.err
	}
	select {
	case s := <-a.sent:
		return &s.result, s.err
	default:
		return nil, nil
	}
}

// compare lays what has been seen until now beside the prediction, and says how long nothing is to come before that is taken for all.
// Without an answer the sender has timed out until now.
func (a *attempt) compare(ctx context.Context, answer *witness.Result, over bool) (report Report, still time.Duration, err error) {
	if answer == nil {
		answer = &witness.Result{Tuple: a.tuple, Answer: witness.TimedOut}
	}
	o, err := a.observed(ctx, answer)
	if err != nil {
		return Report{}, 0, err
	}
	if over {
		a.end() // what follows may take long, and hosts are read in it
	}
	result, report, err := inOrder(a.source, a.predicted, o)
	if err != nil {
		return Report{}, 0, err
	}
	if result != a.predicted {
		*a.predicted, result = *result, a.predicted
		a.chance = a.chance || byChance(result)
	}
	// With the ports known no more agrees than without, but for those of tunnels, by which connections may be known already.
	if a.chance && (over || report.First == nil || tunnelled(result)) {
		unpinned := report
		if result, err = pinned(a.source, a.predicted, o); err != nil {
			return report, 0, err
		}
		if result, report, err = inOrder(a.source, result, o); err != nil { // with its port, the order may matter
			return report, 0, err
		}
		defer func() {
			if !result.More {
				report.Outcome, report.Candidates = unpinned.Outcome, unpinned.Candidates
			}
		}()
	}
	if result.More && report.First != nil && over {
		if report, err = search(a.source, result, o, report); err != nil {
			return report, 0, err
		}
	}
	why, always, err := endedLater(a.source, result, &report)
	switch {
	case why == "":
	case always:
		report.Ends, report.First = "on "+report.First.Host+" "+why, nil
		report.Agreed++
	default:
		report.Uncertain = append(report.Uncertain, fmt.Sprintf("on %s, by chance: %s: %s", report.First.Host, report.First.Predicted, why))
		report.First = nil
		report.Steps--
	}
	if report.Pinned = result; result.More {
		*a.predicted = *result
	}
	report.Way = &result.Outcomes[report.Outcome]
	still = silence
	switch way := report.Way; {
	case report.Undecided:
		still = answerTimeout
	case unresolved(&way.End) || way.BackEnd != nil && unresolved(way.BackEnd):
		still = unheard
	}
	a.findReceiver(&report, o)
	return report, still, err
}

// inOrder compares with a prediction, and where they part, or the order of chains that are tied is assumed, with the one in the order that
// the trace shows. That one is the prediction then, unless the first agrees longer. Where not all outcomes are enumerated, neither may have
// the kernel's, and the trace alone decides.
func inOrder(source snapshot.Source, predicted *walk.Result, o *Observation) (*walk.Result, Report, error) {
	report := Compare(predicted, o)
	if report.First == nil && !assumesOrder(predicted) {
		return predicted, report, nil
	}
	result, err := ordered(source, predicted, o)
	if err != nil || result == predicted {
		return predicted, report, err
	}
	seen := Compare(result, o)
	if report.isCloser(seen) && !result.More {
		return predicted, report, nil
	}
	return result, seen, nil
}

// observed returns what has been seen until now.
func (a *attempt) observed(ctx context.Context, answer *witness.Result) (*Observation, error) {
	o := &Observation{Hosts: map[string]*Host{}, Answer: *answer, Payload: a.payload, Everywhere: a.everyone}
	var mu sync.Mutex
	err := inParallel(a.watchers, func(w *watcher) error {
		host, err := w.Now(ctx)
		if w.optional && err != nil {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		o.Hosts[w.name] = &host
		return err
	})
	return o, err
}

// busy is how long a place is waited for at most on which others' packets are seen, too.
const busy = 500 * time.Millisecond

// settle returns when nothing has been read for a while.
func (a *attempt) settle(ctx context.Context, while time.Duration) {
	timer := time.NewTimer(while)
	defer timer.Stop()
	ctx, cancel := context.WithTimeout(ctx, max(4*while, busy))
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			if !slices.ContainsFunc(a.watchers, func(w *watcher) bool { return w.Pending() }) {
				return
			}
			timer.Reset(quiet)
		case <-a.activity:
			timer.Reset(while)
		}
	}
}
