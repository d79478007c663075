package proof

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// Subject is what [Live] compares with the kernel: states that packets walk through, and the places of their hosts.
type Subject interface {
	// Source returns the states as they were read last.
	Source() snapshot.Source
	// Walk predicts the way of a packet through them. Where hosts are read on demand, it first reads those that the packet comes to.
	Walk(ctx context.Context, request walk.Request) (*walk.Result, error)
	// Place returns the place of a host, as [Places] does.
	Place(host string) (Place, error)
	// Read reads hosts on demand and returns those of them that can be watched.
	Read(ctx context.Context, hosts []string) []string
	// Refresh reads the states anew and says what differs at some hosts, such as "node/a: iptables rules". The states that Source returns
	// are the new ones if something differs, and else the old ones.
	Refresh(ctx context.Context, hosts []string) (changes []string, err error)
}

// maxSends is how often a packet is sent while the states change from which its way is predicted.
const maxSends = 3

// Live predicts what becomes of a request's packet, sends it as [Once] does, and reports how far prediction and kernel agree. Where they
// part, and the states have changed in the meantime at a host that the packet came to, it does so again, up to three times. receivers are
// hosts that may get the packet whatever the walk says: their captures show where it arrived. announce gets each prediction, and the
// receivers that are watched, before its packet is sent; it may be nil.
func Live(
	ctx context.Context, subject Subject, request walk.Request, receivers []string, announce func(*walk.Result, []string),
) (*walk.Result, Report, error) {
	var changed []string
	for try := 1; ; try++ {
		result, report, err := once(ctx, subject, request, receivers, false, announce)
		report.Changed = changed
		if err != nil || report.First == nil || try == maxSends {
			return result, report, err
		}
		changes, err := subject.Refresh(ctx, result.Hosts())
		if err != nil || len(changes) == 0 {
			return result, report, err
		}
		changed = append(changed, strings.Join(changes, ", "))
	}
}

// Once predicts what becomes of a request's packet, really sends it from the namespace of request.Host, and reports how far prediction and
// kernel agree. A packet that goes round without end in one of the outcomes is not sent. The source should be fresh: what changed since it
// was read is a difference. The request must be one that can be sent: made by its host, with tcp, udp or an ICMP echo; the error is
// kernel.ErrUnsendable where no socket can send it. With everywhere it can also be a packet that comes in by a wire of the source, which
// its far end sends then, of SCTP too.
//
// With everywhere all hosts of the source are watched for every packet of the probe: what arrives where nothing is predicted to is a
// difference then. It is for hosts that are otherwise quiet.
//
// When it returns, with or without an error, also that of an ended ctx, nothing is left in the places but the connection itself.
func Once(
	ctx context.Context, source snapshot.Source, places Places, request walk.Request, everywhere bool,
) (*walk.Result, Report, error) {
	return once(ctx, staticSubject{source, places}, request, nil, everywhere, nil)
}

// staticSubject is a subject whose states are read once.
type staticSubject struct {
	source snapshot.Source
	places Places
}

func (f staticSubject) Source() snapshot.Source          { return f.source }
func (f staticSubject) Place(host string) (Place, error) { return f.places(host) }
func (f staticSubject) Read(_ context.Context, hosts []string) []string {
	return readable(f.source, hosts)
}
func (f staticSubject) Refresh(context.Context, []string) ([]string, error) { return nil, nil }

func (f staticSubject) Walk(_ context.Context, request walk.Request) (*walk.Result, error) {
	return walk.Walk(f.source, request)
}

// once does what Once does, for any subject; it calls announce, which may be nil, before it sends.
func once(
	ctx context.Context, subject Subject, request walk.Request, receivers []string, everywhere bool, announce func(*walk.Result, []string),
) (*walk.Result, Report, error) {
	begin := time.Now()
	if request.Forwarded && !everywhere {
		return nil, Report{}, errors.New("only packets that the host makes itself can be sent: start the walk at their sender")
	}
	probe, payload, result, err := predict(ctx, subject, &request)
	if err != nil {
		return nil, Report{}, err
	}
	probe = &onceCloser{Sender: probe}
	defer probe.Close()
	source, expected := subject.Source(), *result
	if result.More {
		if expected.Outcomes, err = sample(source, result); err != nil {
			return nil, Report{}, err
		}
	}
	expected.Outcomes = slices.Concat(expected.Outcomes, result.Otherwise)
	if end := findLoop(&expected); end != nil {
		forgetOpen(result)
		return result, Report{NotSent: end.Why, Took: time.Since(begin)}, nil
	}
	receivers = watchable(ctx, subject, result, receivers)
	if announce != nil {
		announce(result, receivers)
	}
	a := &attempt{
		source: source, receivers: receivers, probe: probe, payload: payload, predicted: result, tuple: probe.Tuple(),
		sent: make(chan sentPacket, 1), activity: make(chan struct{}, 1),
	}
	report, err := a.run(ctx, subject.Place, &expected, everywhere)
	forgetOpen(result)
	if report.First != nil {
		report.First.showRule(ctx, subject.Place)
	}
	report.Took = time.Since(begin)
	return result, report, err
}

// onceCloser is a sender that can be closed again.
type onceCloser struct {
	Sender
	once sync.Once
	err  error
}

func (c *onceCloser) Close() error {
	c.once.Do(func() { c.err = c.Sender.Close() })
	return c.err
}

// portTries is how many ports the kernel is asked for until one is not in use on the way. A machine has 28,000 by default.
const portTries = 8

// predict prepares the probe of a request, and walks its packet, which then has what it will be sent with. A port that the kernel chose is
// given back where a host on the way remembers a connection that had it: the server may, too, and what it has of that no snapshot tells.
//
// It reads the sender before it makes the probe's socket. That is bound but not connected, so it would be listed as one that takes any
// datagram, and still be listed when it is closed.
func predict(ctx context.Context, subject Subject, request *walk.Request) (probe Sender, payload []byte, result *walk.Result, err error) {
	subject.Read(ctx, []string{request.Host})
	asked := request.Packet
	for try := 1; ; try++ {
		request.Packet, payload = asked, payloadFor(&asked)
		if probe, err = prepare(ctx, subject, request, payload); err != nil {
			return nil, nil, nil, err
		}
		request.Packet.Tuple = probe.Tuple()
		complete(&request.Packet, len(payload), request.Forwarded)
		request.OpenRules = true
		if result, err = subject.Walk(ctx, *request); err != nil {
			return nil, nil, nil, errors.Join(err, probe.Close())
		}
		if asked.SourcePort != (packet.Port{}) || request.Forwarded || try == portTries || !remembered(result) {
			return probe, payload, result, nil
		}
		if err := probe.Close(); err != nil {
			return nil, nil, nil, err
		}
	}
}

// remembered reports whether one of the hosts that the packet comes to has a connection already to which it belongs.
func remembered(result *walk.Result) bool {
	for i := range result.Outcomes {
		met := map[string]bool{}
		for _, s := range result.Outcomes[i].There {
			if s.Stage != walk.Tracked || met[s.Host] {
				continue
			}
			met[s.Host] = true
			if f := s.Flow(); f != nil && f.Status&packet.Confirmed != 0 && f.Status&packet.Template == 0 {
				return true
			}
		}
	}
	return false
}

// prepare makes the probe of a request: of the host's own, or one that the far end of the wire by which it arrives sends as a frame.
func prepare(ctx context.Context, subject Subject, request *walk.Request, payload []byte) (Sender, error) {
	source := subject.Source()
	from, p := request.Host, &request.Packet
	var wire snapshot.Peer
	if request.Forwarded {
		here, err := source.Host(request.Host)
		if err != nil {
			return nil, err
		}
		wire, _ = here.Peer(request.Arrives)
		far, err := source.Host(wire.Host)
		if err != nil {
			return nil, fmt.Errorf("the far end of %s of %s: %w", request.Arrives, request.Host, err)
		}
		link, peer := here.FIB.Link(request.Arrives), far.FIB.Link(wire.PeerLink)
		if link == nil || peer == nil {
			return nil, fmt.Errorf("%w: nothing is known of the wire at %s of %s", witness.ErrUnsendable, request.Arrives, request.Host)
		}
		if bridge := here.FIB.Link(link.Master); bridge != nil {
			link = bridge
		}
		from, p.Frame.Source, p.Frame.Destination = wire.Host, peer.MAC, link.MAC
		if p.TTL == 0 {
			p.TTL = 64
		}
	}
	place, err := subject.Place(from)
	if err != nil {
		return nil, fmt.Errorf("send from %s: %w", from, err)
	}
	return place.Prepare(ctx, SendRequest{Link: wire.PeerLink, Packet: *p, Payload: payload})
}

// findLoop finds an outcome in which the packet, the answer or a copy goes round without end. Sent, it would take all that the machines
// can do.
func findLoop(result *walk.Result) *walk.End {
	looped := func(e *walk.End) bool { return e != nil && e.Kind == walk.Looped }
	for i := range result.Outcomes {
		o := &result.Outcomes[i]
		for _, e := range [...]*walk.End{&o.End, o.BackEnd} {
			if looped(e) {
				return e
			}
		}
		for s := range o.Steps() {
			if s.Copied != nil && looped(&s.Copied.End) {
				return &s.Copied.End
			}
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

// payloadFor returns what makes a datagram be answered: a query for the root's name servers on the DNS port (RFC 1035), whose first two
// bytes, the identifier, are random; else random bytes.
func payloadFor(p *packet.Packet) []byte {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	if p.Protocol != packet.UDP || p.DestinationPort.Number != 53 {
		return random
	}
	return append(random[:2], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1)
}

// complete gives a request's packet what it will have when it is sent with a payload of so many bytes.
func complete(p *packet.Packet, payload int, forwarded bool) {
	const queryHeader = 8 // of UDP, and of an ICMP echo
	header := 20
	if p.IsIPv6() {
		header = 40
	}
	switch p.Length = header + queryHeader + payload; {
	case p.Protocol == packet.SCTP:
		p.Length = header + 32 // with an INIT chunk
	case p.Protocol == packet.TCP && forwarded:
		p.TCPFlags, p.Length = cmp.Or(p.TCPFlags, packet.SYN), header+20
	case p.Protocol == packet.TCP:
		p.TCPFlags, p.Length = packet.SYN, 0 // the walk knows its options by the sender's settings
	}
	p.HasOwner, p.AssumedGroup = !forwarded, false // root's, as who sends is, unless the request says whose
}

// showRule adds the text of the rule that the kernel has now: that of the event, or of the place of the rule that made the difference.
func (d *Difference) showRule(ctx context.Context, places Places) {
	ref := d.rule
	if d.event != nil {
		ref = &RuleRef{ChainID: ChainID{d.event.Family, d.event.Table, d.event.Chain}, Handle: d.event.Handle}
	}
	place, err := places(d.Host)
	if ref == nil || err != nil {
		return
	}
	text, err := place.RuleText(ctx, *ref)
	switch {
	case err != nil || text == "":
		return
	case d.event == nil:
		text = fmt.Sprintf("%s %s %s %d is now: %s", ref.Family, ref.Table, ref.Chain, ref.Number, text)
	}
	d.Observed += ": " + text
}
