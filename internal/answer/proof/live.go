package proof

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
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
// kernel agree. A packet that goes round without end in one of the outcomes is not sent. The source should be fresh: what changed since it
// was read is a difference. The request must be one that can be sent: made by its host, with tcp, udp or an ICMP echo.
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
		p.TCPFlags, p.Length = packet.SYN, 0 // the walk knows its options by the sender's settings
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
