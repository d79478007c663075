package proof

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/packet"
	"packetwalk.dev/internal/snapshot"
	"packetwalk.dev/internal/walk"
)

// Namespaces gives the network namespace of a host. An error that is fs.ErrNotExist says that it cannot be had here: what happens in it
// is then not compared.
type Namespaces func(host string) (*kernel.Namespace, error)

// How long to wait: for an answer, for one where none is predicted, and, after it, for what is still on its way. The kernel has written an
// event before the packet goes on, so after an answer there is only the reading to wait for.
const (
	answerTimeout  = 500 * time.Millisecond
	silenceTimeout = 200 * time.Millisecond
	quiet          = 15 * time.Millisecond
)

// Live predicts what becomes of a request's packet, really sends it from the namespace of request.Host, and reports how far prediction and
// kernel agree. A packet that goes round without end in one of the
// outcomes is not sent. The source should be fresh: what changed since it was read is a difference. The request must be one that can be sent: made
// by its host, with tcp, udp or an ICMP echo.
//
// When it returns, with or without an error, also that of an ended ctx, nothing is left in the namespaces but the connection itself.
func Live(ctx context.Context, source snapshot.Source, namespaces Namespaces, request walk.Request) (*walk.Result, Report, error) {
	begin := time.Now()
	if request.Forwarded {
		return nil, Report{}, errors.New("only packets that the host makes itself can be sent: start the walk at their sender")
	}
	sender, err := namespaces(request.Host)
	if err != nil {
		return nil, Report{}, fmt.Errorf("send from %s: %w", request.Host, err)
	}
	probe, err := kernel.PrepareProbe(sender, request.Packet)
	if err != nil {
		return nil, Report{}, err
	}
	defer probe.Close()
	probe.Payload = payload(&request.Packet, probe.Payload)
	complete(&request.Packet, probe)
	request.OpenRules = true
	result, err := walk.Walk(source, request)
	if err != nil {
		return nil, Report{}, err
	}
	expected := *result
	if result.More {
		if expected.Outcomes, err = sample(source, result); err != nil {
			return nil, Report{}, err
		}
	}
	if end := endless(&expected); end != nil {
		forgetOpen(result)
		return result, Report{NotSent: end.Why, Took: time.Since(begin)}, nil
	}
	o, err := observe(ctx, namespaces, probe, &expected)
	if err != nil {
		return result, Report{}, err
	}
	report := Compare(result, o)
	if result.More && report.First != nil {
		if report, err = search(source, result, o, report); err != nil {
			return result, report, err
		}
	}
	if why, err := endedLater(source, result, &report); err != nil {
		return result, report, err
	} else if why != "" {
		report.Ends, report.First = "on "+report.First.Host+" "+why, nil
		report.Agreed++
	}
	forgetOpen(result)
	if report.First != nil {
		report.First.showRule(namespaces)
	}
	report.Took = time.Since(begin)
	return result, report, nil
}

// endless finds an outcome in which the packet, the answer or a copy goes round without end. Sent, it would take all that the machines can do.
func endless(result *walk.Result) *walk.End {
	for i := range result.Outcomes {
		o := &result.Outcomes[i]
		ends := []*walk.End{&o.End, o.BackEnd}
		for _, s := range slices.Concat(o.There, o.Back) {
			if s.Copied != nil {
				ends = append(ends, &s.Copied.End)
			}
		}
		if j := slices.IndexFunc(ends, func(e *walk.End) bool { return e != nil && e.Kind == walk.Looped }); j >= 0 {
			return ends[j]
		}
	}
	return nil
}

// forgetOpen takes away what only the comparison needed: rules that may have applied and did nothing to the packet.
func forgetOpen(result *walk.Result) {
	drop := func(s walk.Step) bool { return open(s.Visit) }
	for i := range result.Outcomes {
		o := &result.Outcomes[i]
		o.There, o.Back = slices.DeleteFunc(o.There, drop), slices.DeleteFunc(o.Back, drop)
	}
	result.Request.OpenRules = false
}

// payload is what makes a datagram be answered: a query for the root's name servers on the DNS port (RFC 1035), whose first two bytes, the
// identifier, are random.
func payload(p *packet.Packet, random []byte) []byte {
	if p.Protocol != packet.UDP || p.DestinationPort.Number != 53 {
		return random
	}
	return append(slices.Clone(random[:2]), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1)
}

// complete gives a request's packet what it will have when it is sent.
func complete(p *packet.Packet, probe *kernel.Probe) {
	p.Tuple = probe.Tuple()
	const queryHeader = 8 // of UDP, and of an ICMP echo
	header := 20
	if p.IsIPv6() {
		header = 40
	}
	p.Length = header + queryHeader + len(probe.Payload)
	if p.Protocol == packet.TCP {
		p.TCPFlags, p.Length = packet.SYN, 0 // its options depend on settings of the sender
	}
}

// observe sends the probe and collects what is seen of it in every host of the prediction.
func observe(ctx context.Context, namespaces Namespaces, probe *kernel.Probe, result *walk.Result) (*Observed, error) {
	watchers, err := watch(namespaces, tuples(result), policies(result))
	defer func() { closeAll(watchers) }()
	if err != nil {
		return nil, err
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	activity := make(chan struct{}, 1)
	for _, w := range watchers {
		wg.Go(func() { w.readTrace(reading, activity) })
		wg.Go(func() { w.readCapture(reading, activity) })
	}
	answer, err := probe.Send(ctx, timeout(result))
	if err != nil {
		return nil, err
	}
	settle(ctx, activity, watchers)
	flows := inParallel(watchers, (*watcher).finish)
	stop()
	wg.Wait()
	o := &Observed{Hosts: map[string]*Host{}, Answer: answer, Payload: probe.Payload}
	errs := []error{ctx.Err(), flows}
	for _, w := range watchers {
		o.Hosts[w.name] = &w.seen
		errs = append(errs, w.err)
	}
	return o, errors.Join(errs...)
}

// timeout is how long the sender waits.
func timeout(result *walk.Result) time.Duration {
	for i := range result.Outcomes {
		if b := result.Outcomes[i].BackEnd; b != nil && b.Kind == walk.Delivered {
			return answerTimeout
		}
	}
	return silenceTimeout
}

// settle returns when nothing has been read for a while.
func settle(ctx context.Context, activity <-chan struct{}, watchers []*watcher) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			if !slices.ContainsFunc(watchers, (*watcher).pending) {
				return
			}
			timer.Reset(quiet)
		case <-activity:
			timer.Reset(quiet)
		}
	}
}

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
			t = packet.Tuple{Protocol: t.Protocol, Destination: t.Destination, SourcePort: t.SourcePort, DestinationPort: t.DestinationPort, Type: t.Type}
		}
		if seen[s.Host] == nil {
			seen[s.Host] = map[packet.Tuple]bool{}
		}
		if !seen[s.Host][t] {
			seen[s.Host][t] = true
			all[s.Host] = append(all[s.Host], t)
		}
	}
	for i := range result.Outcomes {
		for _, steps := range [][]walk.Step{result.Outcomes[i].There, result.Outcomes[i].Back} {
			for j := range steps {
				switch steps[j].Stage {
				case walk.Sent, walk.Received, walk.Transmit:
					add(&steps[j])
				}
			}
		}
	}
	return all
}

// policies lists, for each host, the base chains whose policy decides something.
func policies(result *walk.Result) map[string]map[ChainID]bool {
	all := map[string]map[ChainID]bool{}
	add := func(s *walk.Step) {
		if v := s.Visit; v == nil || v.Rule != nil || v.Chain.Base == nil {
			return
		}
		if all[s.Host] == nil {
			all[s.Host] = map[ChainID]bool{}
		}
		all[s.Host][chainID(s.Visit.Chain)] = true
	}
	for i := range result.Outcomes {
		for j := range result.Outcomes[i].There {
			add(&result.Outcomes[i].There[j])
		}
		for j := range result.Outcomes[i].Back {
			add(&result.Outcomes[i].Back[j])
		}
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
	err  error
}

// watch opens traces and captures in every host that can be had. The watchers are for closeAll also after an error.
func watch(namespaces Namespaces, tuples map[string][]packet.Tuple, chains map[string]map[ChainID]bool) ([]*watcher, error) {
	var watchers []*watcher
	for host := range tuples {
		ns, err := namespaces(host)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return watchers, fmt.Errorf("watch %s: %w", host, err)
		}
		watchers = append(watchers, &watcher{name: host, ns: ns, chains: chains[host]})
	}
	return watchers, inParallel(watchers, func(w *watcher) (err error) {
		if w.capture, err = kernel.OpenCapture(w.ns, tuples[w.name]); err != nil {
			return err
		}
		w.trace, err = kernel.OpenTrace(w.ns, tuples[w.name])
		return err
	})
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
func (w *watcher) pending() bool { return w.trace.Pending() || w.capture.Pending() }

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

// finish asks for what is asked for once: connections, the handles of the chains that were met, and whether all that was captured was read.
func (w *watcher) finish() error {
	flows, err := w.ns.Flows()
	if err != nil {
		return err
	}
	lost, err := w.capture.Lost()
	if err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("%s: the kernel dropped %d captured packets: they came faster than they were read", w.name, lost)
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
	return nil
}

// showRule adds the text of the rule that the kernel has now: that of the event, or of the place of the rule that made the difference.
func (d *Difference) showRule(namespaces Namespaces) {
	ref := d.rule
	if d.event != nil {
		ref = &ruleRef{family: d.event.Family, table: d.event.Table, chain: d.event.Chain, handle: d.event.Handle}
	}
	ns, err := namespaces(d.Host)
	if ref == nil || err != nil {
		return
	}
	handle := ref.handle
	if handle == 0 && ref.number > 0 {
		handles, err := ns.RuleHandles(ref.family, ref.table, ref.chain)
		if err != nil || len(handles) < ref.number {
			return
		}
		handle = handles[ref.number-1]
	}
	if handle == 0 {
		return // a policy
	}
	text, err := ns.RuleText(ref.family, ref.table, ref.chain, handle)
	switch {
	case err != nil || text == "":
		return
	case d.event == nil:
		text = fmt.Sprintf("%s %s %s %d is now: %s", ref.family, ref.table, ref.chain, ref.number, text)
	}
	d.Observed += ": " + text
}
