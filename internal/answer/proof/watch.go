package proof

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// tuples lists, for each host, what the packets of every outcome look like when they come in, are sent or leave. The sender's own are
// listed without their source: whether the kernel chooses the predicted one is to be seen.
func tuples(result *walk.Result) map[string][]packet.Tuple {
	all := map[string][]packet.Tuple{}
	seen := map[string]map[packet.Tuple]bool{}
	add := func(s *walk.Step) {
		t := s.Packet.Tuple
		if s.Packet.About != nil {
			t = *s.Packet.About // errors are watched with what they are about
		}
		if s.Stage == walk.Sent && s.Host == result.Request.Host && t.SourcePort == result.Request.Packet.SourcePort {
			t.Source, t.Code = netip.Addr{}, 0
		}
		if seen[s.Host] == nil {
			seen[s.Host] = map[packet.Tuple]bool{}
		}
		if !seen[s.Host][t] {
			seen[s.Host][t] = true
			all[s.Host] = append(all[s.Host], t)
		}
	}
	for s := range result.Steps() {
		switch s.Stage {
		case walk.Sent, walk.Received, walk.Transmit, walk.Encapsulated:
			add(s)
		}
	}
	return all
}

// policies lists, for each host, the base chains whose policy decides something.
func policies(result *walk.Result) map[string]map[ChainID]bool {
	all := map[string]map[ChainID]bool{}
	for s := range result.Steps() {
		if v := s.Visit; v == nil || v.Rule != nil || v.Chain.Base == nil {
			continue
		}
		if all[s.Host] == nil {
			all[s.Host] = map[ChainID]bool{}
		}
		all[s.Host][chainID(s.Visit.Chain)] = true
	}
	return all
}

// watcher reads what one namespace shows.
type watcher struct {
	name    string
	ns      *kernel.Namespace
	trace   *kernel.Trace
	capture *kernel.Capture
	chains  map[ChainID]bool // of the prediction, whose policies decide

	mu   sync.Mutex
	seen Host
	lost int // packets that the capture had no room for
	err  error
}

// watch opens traces and captures in every host of the prediction that can be had. With others it traces everything of the protocol and
// captures all packets, and in those hosts, too: what the kernel did may be nothing that is predicted. Where more may happen than was
// enumerated, so are errors about whatever packet. The watchers are for closeAll also after an error.
func watch(
	namespaces Namespaces, tuples map[string][]packet.Tuple, chains map[string]map[ChainID]bool, others []string, more bool,
) ([]*watcher, error) {
	var watchers []*watcher
	for _, host := range union(tuples, others) {
		ns, err := namespaces(host)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return watchers, fmt.Errorf("watch %s: %w", host, err)
		}
		watchers = append(watchers, &watcher{name: host, ns: ns, chains: chains[host]})
	}
	kinds := alike(tuples)
	return watchers, inParallel(watchers, func(w *watcher) (err error) {
		predicted := tuples[w.name]
		captured, traced, about := predicted, predicted, predicted
		if len(others) > 0 {
			captured, traced = nil, kinds
		}
		if more {
			about = append(slices.Clone(predicted), kinds...)
		}
		if w.capture, err = kernel.OpenCapture(w.ns, captured); err != nil || len(traced) == 0 {
			return err
		}
		w.trace, err = kernel.OpenTrace(w.ns, traced, about)
		return err
	})
}

// alike are tuples that all packets have which are of the protocol, or the ICMP type, of one of those predicted or of its answer.
func alike(tuples map[string][]packet.Tuple) (kinds []packet.Tuple) {
	seen := map[packet.Tuple]bool{}
	for _, list := range tuples {
		for _, t := range list {
			for _, t := range [...]packet.Tuple{t, t.Reply()} {
				kind := packet.Tuple{Protocol: t.Protocol, Type: t.Type, Source: netip.IPv4Unspecified()}
				if t.Source.Is6() || t.Destination.Is6() {
					kind.Source = netip.IPv6Unspecified()
				}
				if !seen[kind] {
					seen[kind] = true
					kinds = append(kinds, kind)
				}
			}
		}
	}
	return kinds
}

// union is the hosts of both, each once, sorted.
func union(tuples map[string][]packet.Tuple, others []string) []string {
	hosts := slices.AppendSeq(slices.Clone(others), maps.Keys(tuples))
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func closeAll(watchers []*watcher) {
	_ = inParallel(watchers, func(w *watcher) error {
		if w.trace != nil {
			_ = w.trace.Close()
		}
		if w.capture != nil {
			_ = w.capture.Close()
		}
		return nil
	})
}

func inParallel(watchers []*watcher, do func(*watcher) error) error {
	errs := make([]error, len(watchers))
	var wg sync.WaitGroup
	for i, w := range watchers {
		wg.Go(func() { errs[i] = do(w) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pending tells whether something was seen that is not read yet: a busy machine does not get to it at once.
func (w *watcher) pending() bool { return w.trace != nil && w.trace.Pending() || w.capture.Pending() }

func (w *watcher) readTrace(ctx context.Context, activity chan<- struct{}) {
	for {
		e, err := w.trace.Read(ctx)
		if !w.note(ctx, err, activity, func() { w.seen.Trace = append(w.seen.Trace, e) }) {
			return
		}
	}
}

func (w *watcher) readCapture(ctx context.Context, activity chan<- struct{}) {
	for {
		p, err := w.capture.Read(ctx)
		if !w.note(ctx, err, activity, func() { w.seen.Packets = append(w.seen.Packets, p) }) {
			return
		}
	}
}

// note keeps what was read, or the error that ends the reading.
func (w *watcher) note(ctx context.Context, err error, activity chan<- struct{}, keep func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			w.err = errors.Join(w.err, fmt.Errorf("%s: %w", w.name, err))
		}
		return false
	}
	keep()
	select {
	case activity <- struct{}{}:
	default:
	}
	return true
}

// finish asks for what is asked for at the end: connections, the handles of the chains that were met, and whether all that was captured
// was read.
func (w *watcher) finish() error {
	flows, err := w.ns.Flows()
	if err != nil {
		return err
	}
	lost, err := w.capture.Lost()
	if err != nil {
		return err
	}
	w.mu.Lock()
	events := slices.Clone(w.seen.Trace)
	w.mu.Unlock()
	handles := map[ChainID][]uint64{}
	for _, e := range events {
		id := ChainID{e.Family, e.Table, e.Chain}
		if _, ok := handles[id]; ok || e.Kind != kernel.TraceRule {
			continue
		}
		if handles[id], err = w.ns.RuleHandles(e.Family, e.Table, e.Chain); err != nil {
			return err
		}
	}
	absent := map[ChainID]bool{}
	for id := range w.chains {
		has, err := w.ns.HasChain(id.Family, id.Table, id.Chain)
		if err != nil {
			return err
		}
		absent[id] = !has
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Flows, w.seen.Handles, w.seen.Absent = flows, handles, absent
	w.lost += lost
	return nil
}
