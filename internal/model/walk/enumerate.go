package walk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/big"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// Walk takes the packet of a request through the hosts of src, once for every way that choices open. It returns an error for a request
// that makes no sense, or when a host's state cannot be had; what happens to a packet is never an error.
func Walk(src snapshot.Source, req Request) (*Result, error) {
	return WalkContext(context.Background(), src, req)
}

// WalkContext does what Walk does until ctx ends. It then returns the context's error.
func WalkContext(ctx context.Context, src snapshot.Source, req Request) (*Result, error) {
	if err := req.check(src); err != nil {
		return nil, err
	}
	limit := req.MaxOutcomes
	if limit == 0 {
		limit = DefaultMaxOutcomes
	}
	w := &walker{ctx: ctx, src: src, req: req, hosts: map[string]*snapshot.Host{}}
	result := &Result{Request: req}
	var err error
	if result.Outcomes, result.More, err = w.enumerate(limit); err != nil {
		return nil, err
	}
	if err := w.walkOtherOrder(result, limit); err != nil {
		return nil, err
	}
	for name := range w.hosts {
		if lines := w.hosts[name].Account.MayChange(req.Packet.Destination.Is6()); len(lines) > 0 {
			for i := range result.Outcomes {
				result.Outcomes[i].Unread = lines
			}
		}
	}
	result.Assumed = w.assumed
	return result, nil
}

// enumerate runs once for every way that choices open, at most limit times; more says that there are others.
func (w *walker) enumerate(limit int) (outcomes []Outcome, more bool, err error) {
	for prefix, open := w.req.Pin, true; open; {
		if len(outcomes) == limit || w.steps > maxSteps {
			return outcomes, true, nil
		}
		if err := w.ctx.Err(); err != nil {
			return nil, false, err
		}
		r := newRun(w, prefix)
		outcome, err := r.walk()
		if err != nil {
			return nil, false, err
		}
		outcomes = append(outcomes, outcome)
		prefix, open = NextPin(r.choices, len(w.req.Pin))
	}
	return outcomes, false, nil
}

func (req *Request) check(src snapshot.Source) error {
	switch {
	case !req.Packet.Destination.IsValid():
		return errors.New("walk: the packet has no destination address")
	case req.Packet.Source.IsValid() && req.Packet.Source.Is4() != req.Packet.Destination.Is4():
		return fmt.Errorf("walk: source %s and destination %s are of different families", req.Packet.Source, req.Packet.Destination)
	case req.Forwarded && !req.Packet.Source.IsValid():
		return errors.New("walk: a packet that comes from outside needs a source address")
	}
	if _, err := src.Host(req.Host); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("walk: no host %q", req.Host)
	}
	return nil
}

// walker is what all runs of one walk share.
type walker struct {
	ctx     context.Context // checked before each run
	src     snapshot.Source
	req     Request
	hosts   map[string]*snapshot.Host
	assumed []Assumption
	known   *places // by the cluster's objects; nil until first used
	ties    []assumedOrder
	turned  tie // where the chains are called in the other order; none in the zero tie
	steps   int // of all outcomes so far, with those of copies
}

func (w *walker) host(name string) (*snapshot.Host, error) {
	if h, ok := w.hosts[name]; ok {
		return h, nil
	}
	h, err := w.src.Host(name)
	if err != nil {
		return nil, fmt.Errorf("walk: state of %s: %w", name, err)
	}
	w.hosts[name] = h
	return h, nil
}

func (w *walker) assume(a Assumption) {
	for _, known := range w.assumed {
		if known == a {
			return
		}
	}
	w.assumed = append(w.assumed, a)
}

// NextPin gives the answers with which the next outcome differs from the one that made these choices: the last choice that has an answer
// left gets it, those after it are open again. The first pinned ones stay. It tells false after the last outcome.
func NextPin(choices []Decision, pinned int) ([]int, bool) {
	for last := len(choices) - 1; last >= pinned; last-- {
		c := &choices[last]
		next := nextOption(c.Options, c.Answer+1)
		if next < 0 {
			continue
		}
		prefix := make([]int, last+1)
		for i := range last {
			prefix[i] = choices[i].Answer
		}
		prefix[last] = next
		return prefix, true
	}
	return nil, false
}

// nextOption returns the first possible answer from index from on, or -1: an option without weight among ones that have it never happens.
func nextOption(options []netfilter.Option, from int) int {
	weighted := total(options) > 0
	for i := from; i < len(options); i++ {
		if !weighted || options[i].Weight > 0 {
			return i
		}
	}
	return -1
}

func total(options []netfilter.Option) (sum uint64) {
	for _, o := range options {
		sum += o.Weight
	}
	return sum
}

// probability multiplies the weights of the answers; nil where one has none.
func probability(choices []Decision) *big.Rat {
	if len(choices) == 0 {
		return big.NewRat(1, 1)
	}
	weight, sum := big.NewInt(1), big.NewInt(1)
	var factor big.Int
	for _, c := range choices {
		t := total(c.Options)
		if t == 0 {
			return nil
		}
		weight.Mul(weight, factor.SetUint64(c.Options[c.Answer].Weight))
		sum.Mul(sum, factor.SetUint64(t))
	}
	return new(big.Rat).SetFrac(weight, sum)
}
