package proof

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/probe"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/packet"
)

// Local is the place of a host whose namespace is on this machine.
func Local(ns *netns.Namespace) Place { return local{ns} }

type local struct{ ns *netns.Namespace }

func (l local) Prepare(_ context.Context, s Sending) (Sender, error) {
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

func (l local) RuleText(ctx context.Context, r RuleRef) (string, error) {
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

func (l local) Watch(ctx context.Context, what Watching, activity chan<- struct{}) (Watcher, error) {
	w := &localWatcher{ns: l.ns, what: what, activity: activity}
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

// localWatcher reads what one namespace shows.
type localWatcher struct {
	ns       *netns.Namespace
	what     Watching
	trace    *probe.Trace // nil where nothing is traced
	capture  *probe.Capture
	activity chan<- struct{}
	stop     context.CancelFunc
	reading  sync.WaitGroup

	mu      sync.Mutex
	seen    Host
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

func (w *localWatcher) Close() error {
	w.stop()
	w.reading.Wait()
	var err error
	if w.trace != nil {
		err = w.trace.Close()
	}
	return errors.Join(err, w.capture.Close())
}

func (w *localWatcher) Pending() bool {
	return w.trace != nil && w.trace.Pending() || w.capture.Pending()
}

func (w *localWatcher) readTrace(ctx context.Context) {
	for {
		e, err := w.trace.Read(ctx)
		if !w.note(ctx, err, func() {
			w.seen.Trace = append(w.seen.Trace, e)
			if e.Kind == probe.TraceEntered {
				w.packets++
			}
		}) {
			return
		}
	}
}

func (w *localWatcher) readCapture(ctx context.Context) {
	for {
		p, err := w.capture.Read(ctx)
		if !w.note(ctx, err, func() { w.seen.Packets = append(w.seen.Packets, p) }) {
			return
		}
	}
}

// note keeps what was read, or the error that ends the reading.
func (w *localWatcher) note(ctx context.Context, err error, keep func()) bool {
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
func (w *localWatcher) Now(context.Context) (Host, error) {
	if err := w.listFlows(); err != nil {
		return Host{}, err
	}
	lost, err := w.capture.Lost()
	if err != nil {
		return Host{}, err
	}
	w.mu.Lock()
	events := slices.Clone(w.seen.Trace)
	w.mu.Unlock()
	handles, err := w.handles(events)
	if err != nil {
		return Host{}, err
	}
	absent := map[ChainID]bool{}
	for _, id := range w.what.Chains {
		has, err := ruleset.HasChain(w.ns, id.Family, id.Table, id.Chain)
		if err != nil {
			return Host{}, err
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
func (w *localWatcher) listFlows() error {
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
	w.seen.Flows, w.listed = w.what.flows(flows), begin
	return nil
}

func (w *localWatcher) handles(events []probe.TraceEvent) (map[ChainID][]uint64, error) {
	handles := map[ChainID][]uint64{}
	for _, e := range events {
		id := ChainID{e.Family, e.Table, e.Chain}
		if _, ok := handles[id]; ok || e.Kind != probe.TraceRule {
			continue
		}
		var err error
		if handles[id], err = ruleset.RuleHandles(w.ns, e.Family, e.Table, e.Chain); err != nil {
			return nil, err
		}
	}
	return handles, nil
}

// flows are the connections that matter: those that one of the tuples may have begun or answered.
func (w Watching) flows(all []netns.Flow) []netns.Flow {
	if len(w.Flows) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(f netns.Flow) bool {
		return !slices.ContainsFunc(w.Flows, func(t packet.Tuple) bool {
			return matters(t, f.Protocol, f.Source, f.Destination) || matters(t, f.Protocol, f.ReplySource, f.ReplyDestination)
		})
	})
}

// matters tells whether a tuple may be that of a connection's direction. Addresses tell where there are no ports.
func matters(t packet.Tuple, protocol uint8, source, destination netip.AddrPort) bool {
	address := func(want, a netip.Addr) bool { return !want.IsValid() || want == a }
	port := func(want packet.Port, n uint16) bool {
		low, high := want.Span()
		return want == packet.Port{} || low <= n && n <= high
	}
	if uint8(t.Protocol) != protocol || !address(t.Source, source.Addr()) || !address(t.Destination, destination.Addr()) {
		return false
	}
	return !t.Protocol.HasPorts() || port(t.SourcePort, source.Port()) && port(t.DestinationPort, destination.Port())
}
