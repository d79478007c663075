// Package local sends and sees packets in network namespaces of this machine, for package proof.
package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/probe"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/witness"
)

// Place returns the place of a host whose namespace is on this machine.
func Place(ns *netns.Namespace) proof.Place { return place{ns} }

type place struct{ ns *netns.Namespace }

func (l place) Prepare(_ context.Context, s proof.SendRequest) (proof.Sender, error) {
	var p *probe.Probe
	var err error
	if s.Link != "" {
		p, err = probe.PrepareFrame(l.ns, s.Link, s.Packet)
	} else {
		p, err = probe.Prepare(l.ns, s.Packet)
	}
	if err != nil {
		return nil, err
	}
	p.Payload = s.Payload
	return p, nil
}

func (l place) RuleText(ctx context.Context, r proof.RuleRef) (string, error) {
	if r.Handle == 0 && r.Number > 0 {
		handles, err := ruleset.RuleHandles(l.ns, r.Family, r.Table, r.Chain)
		if err != nil || len(handles) < r.Number {
			return "", err
		}
		r.Handle = handles[r.Number-1]
	}
	if r.Handle == 0 {
		return "", nil // a policy
	}
	return ruleset.RuleText(ctx, l.ns, r.Family, r.Table, r.Chain, r.Handle)
}

func (l place) Watch(ctx context.Context, what proof.WatchRequest, activity chan<- struct{}) (proof.Watcher, error) {
	w := &watcher{ns: l.ns, what: what, activity: activity}
	var err error
	if w.capture, err = probe.OpenCapture(l.ns, what.Captured); err != nil {
		return nil, err
	}
	if len(what.Traced) > 0 {
		if w.trace, err = probe.OpenTrace(l.ns, what.Traced, what.About); err != nil {
			return nil, errors.Join(err, w.capture.Close())
		}
	}
	ctx, w.stop = context.WithCancel(ctx)
	if w.trace != nil {
		w.reading.Go(func() { w.readTrace(ctx) })
	}
	w.reading.Go(func() { w.readCapture(ctx) })
	return w, nil
}

// watcher reads what one namespace shows.
type watcher struct {
	ns       *netns.Namespace
	what     proof.WatchRequest
	trace    *probe.Trace // nil where nothing is traced
	capture  *probe.Capture
	activity chan<- struct{}
	stop     context.CancelFunc
	reading  sync.WaitGroup

	mu      sync.Mutex
	seen    proof.Host
	lost    int // packets that the capture had no room for
	err     error
	packets int       // that were traced
	last    time.Time // that something was seen
	listed  time.Time // that the connections were
}

// mostSeen bounds what is kept of trace and capture each: of one packet there are some hundreds of events. Where mostTraced packets were
// traced of those that look like the one that is sent, the kernel may have left that out (kernel.OpenTrace).
const (
	mostSeen   = 50_000
	mostTraced = 500
)

var errTooMany = errors.New("too many packets of others look like the one that is sent: it cannot be told from them")

func (w *watcher) Close() error {
	w.stop()
	w.reading.Wait()
	var err error
	if w.trace != nil {
		err = w.trace.Close()
	}
	return errors.Join(err, w.capture.Close())
}

func (w *watcher) Pending() bool {
	return w.trace != nil && w.trace.Pending() || w.capture.Pending()
}

func (w *watcher) readTrace(ctx context.Context) {
	for {
		e, err := w.trace.Read(ctx)
		if !w.note(ctx, err, func() {
			w.seen.Trace = append(w.seen.Trace, e)
			if e.Kind == witness.TraceEntered {
				w.packets++
			}
		}) {
			return
		}
	}
}

func (w *watcher) readCapture(ctx context.Context) {
	for {
		p, err := w.capture.Read(ctx)
		if !w.note(ctx, err, func() { w.seen.Packets = append(w.seen.Packets, p) }) {
			return
		}
	}
}

// note keeps what was read, or the error that ends the reading.
func (w *watcher) note(ctx context.Context, err error, keep func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			w.err = errors.Join(w.err, err)
		}
		return false
	}
	keep()
	w.last = time.Now()
	if len(w.seen.Trace) > mostSeen || len(w.seen.Packets) > mostSeen || len(w.what.Captured) > 0 && w.packets >= mostTraced {
		w.err = errors.Join(w.err, errTooMany)
		return false
	}
	select {
	case w.activity <- struct{}{}:
	default:
	}
	return true
}

// Now asks for what is asked for at the end, too: connections, the handles of the chains that were met, and whether all that was captured
// was read.
func (w *watcher) Now(context.Context) (proof.Host, error) {
	if err := w.listFlows(); err != nil {
		return proof.Host{}, err
	}
	lost, err := w.capture.Lost()
	if err != nil {
		return proof.Host{}, err
	}
	w.mu.Lock()
	events := slices.Clone(w.seen.Trace)
	w.mu.Unlock()
	handles, err := w.handles(events)
	if err != nil {
		return proof.Host{}, err
	}
	absent := map[proof.ChainID]bool{}
	for _, id := range w.what.Chains {
		has, err := ruleset.HasChain(w.ns, id.Family, id.Table, id.Chain)
		if err != nil {
			return proof.Host{}, err
		}
		absent[id] = !has
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Handles, w.seen.Absent = handles, absent
	if w.lost += lost; w.lost > 0 {
		err = fmt.Errorf("the kernel dropped %d captured packets: they came faster than they were read", w.lost)
	}
	return w.seen, errors.Join(w.err, err)
}

// confirmed is how long after a packet was seen the kernel has its connection.
const confirmed = 50 * time.Millisecond

// listFlows lists the connections, of which a node may have hundreds of thousands, unless nothing came since they were listed.
func (w *watcher) listFlows() error {
	w.mu.Lock()
	fresh := w.listed.Sub(w.last) > confirmed
	w.mu.Unlock()
	if fresh {
		return nil
	}
	begin := time.Now()
	flows, err := w.ns.Flows()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Flows, w.listed = w.what.Connections(flows), begin
	return nil
}

func (w *watcher) handles(events []witness.TraceEvent) (map[proof.ChainID][]uint64, error) {
	handles := map[proof.ChainID][]uint64{}
	for _, e := range events {
		id := proof.ChainID{Family: e.Family, Table: e.Table, Chain: e.Chain}
		if _, ok := handles[id]; ok || e.Kind != witness.TraceRule {
			continue
		}
		var err error
		if handles[id], err = ruleset.RuleHandles(w.ns, e.Family, e.Table, e.Chain); err != nil {
			return nil, err
		}
	}
	return handles, nil
}
