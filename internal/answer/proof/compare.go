package proof

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// Compare lays the outcomes of a walk beside what the kernel did and reports on the one that agrees with it longest.
func Compare(result *walk.Result, o *Observation) Report {
	id := identify(o, &result.Request)
	reports := make([]Report, len(result.Outcomes))
	var best *Report
	for i := range result.Outcomes {
		r := &reports[i]
		*r = compareOutcome(&result.Outcomes[i], o, id, senderOf(&result.Request))
		r.Outcome = i
		if best == nil || r.isCloser(*best) {
			best = r
		}
	}
	if best == nil {
		return Report{Answer: o.Answer}
	}
	best.Answer, best.Candidates = o.Answer, candidates(reports, best)
	for _, i := range best.Candidates {
		best.Shown = slices.DeleteFunc(best.Shown, func(host string) bool { return !slices.Contains(reports[i].Shown, host) })
	}
	return *best
}

// candidates returns the indexes of the outcomes that the kernel may have taken, as far as that was seen: those that nothing seen differs
// from, and that explain as much of it as the best one. What follows an unknown end may be anything. Where all differ, they are those that
// differ where the best one does.
func candidates(reports []Report, best *Report) (all []int) {
	most := 0
	for i := range reports {
		if reports[i].First == nil {
			most = max(most, reports[i].seen())
		}
	}
	for i := range reports {
		r := &reports[i]
		if r.First == nil && (r.Undecided || r.seen() == most) || best.First != nil && !best.isCloser(*r) {
			all = append(all, i)
		}
	}
	return all
}

// seen returns how many agreeing steps were seen to happen, and not only not to.
func (r *Report) seen() int { return r.Agreed - r.silent }

// senderOf returns the host whose socket sent the packet; "" where none did.
func senderOf(request *walk.Request) string {
	if request.Forwarded {
		return ""
	}
	return request.Host
}

// isCloser reports whether the kernel took this outcome rather than the other. If neither agrees to the end, the one that differs later is
// closer.
func (r Report) isCloser(other Report) bool {
	switch {
	case r.First == nil || other.First == nil:
		return r.First == nil && (other.First != nil || r.Agreed > other.Agreed)
	case r.First.position != other.First.position:
		return r.First.position > other.First.position
	}
	return r.Agreed > other.Agreed
}

func compareOutcome(outcome *walk.Outcome, o *Observation, id *identity, sender string) Report {
	of := *id
	of.expectCarriers(*outcome)
	of.refusal = len(outcome.Back) > 0 && outcome.Back[0].Packet.About != nil
	c := &comparison{observed: o, outcome: outcome, id: &of, sender: sender, unseen: map[string]bool{}, endedCopies: map[direction]bool{}}
	c.Undecided = outcome.End.Kind == walk.Undecided || outcome.BackEnd != nil && outcome.BackEnd.Kind == walk.Undecided
	if outcome.End.Kind == walk.Rejected {
		c.refused = outcome.End.Host
	}
	c.compareSteps(outcome.There, there, 0)
	if outcome.Back != nil {
		if c.hasReply(outcome) {
			c.compareSteps(outcome.Back, back, len(withCopies(outcome.There, 0)))
		} else {
			c.Unanswered = true
		}
	}
	c.flows(outcome)
	c.answer(outcome)
	c.strays(outcome)
	for host := range c.unseen {
		c.Unseen = append(c.Unseen, host)
	}
	slices.Sort(c.Unseen)
	if c.First == nil && c.NotTraced == 0 {
		c.Shown = c.shown()
	}
	return c.Report
}

// comparison is a Report in the making.
type comparison struct {
	Report
	observed *Observation
	outcome  *walk.Outcome
	id       *identity
	sender   string
	unseen   map[string]bool
	refused  string // the host that answers the packet with an error, if one does
	// refusedCopies: that host's bridge had flooded the packet. Each copy is answered, as far as the limits of ICMP errors allow.
	refusedCopies bool
	// endedCopies: in the trace of a host whose bridge had flooded the packet a rule ended a copy, perhaps with an error.
	endedCopies map[direction]bool
}

// fact counts a step that was compared.
func (c *comparison) fact(d *Difference) {
	c.Steps++
	if d == nil {
		c.Agreed++
		return
	}
	if c.First == nil || d.position < c.First.position {
		c.First = d
	}
	if !d.more && (c.firm == nil || d.position < c.firm.position) {
		c.firm = d
	}
}

// indexedStep is a predicted step with its place among all.
type indexedStep struct {
	*walk.Step
	position int
	before   *packet.Packet // the packet before the step; nil for the first
}

// compareSteps compares the steps of one direction, host by host.
func (c *comparison) compareSteps(steps []walk.Step, d direction, offset int) {
	again := c.sentAgain(steps, d)
	byHost := map[string][]indexedStep{}
	var order []string
	for _, s := range withCopies(steps, offset) {
		if byHost[s.Host] == nil {
			order = append(order, s.Host)
		}
		byHost[s.Host] = append(byHost[s.Host], s)
	}
	for _, name := range order {
		h := c.observed.Hosts[name]
		if h == nil {
			c.unseen[name] = true
			continue
		}
		c.rules(name, h, byHost[name], d, again)
		c.interfaces(name, h, byHost[name], d)
	}
}

// withCopies returns the steps from a position on. Those of copies come behind the step at which they were made: the kernel takes a copy
// through its rules before the packet itself goes on.
func withCopies(steps []walk.Step, position int) (all []indexedStep) {
	for i := range steps {
		s := indexedStep{Step: &steps[i], position: position + len(all)}
		if i > 0 && steps[i-1].Host == s.Host {
			s.before = &steps[i-1].Packet
		}
		if all = append(all, s); s.Copied == nil {
			continue
		}
		copied := withCopies(s.Copied.Steps, position+len(all))
		if len(copied) > 0 {
			copied[0].before = &s.Packet
		}
		all = append(all, copied...)
	}
	return all
}

// answersAt tells of packets at a host that have the tuple of an answer which is predicted there: an answering datagram may be the same as
// the one that it answers.
func answersAt(result *walk.Result) func(host string) func(packet.Tuple) bool {
	return func(host string) func(packet.Tuple) bool {
		var steps []indexedStep
		for i := range result.Outcomes {
			steps = append(steps, placedAt(result.Outcomes[i].Back, host)...)
		}
		return expects(steps)
	}
}

func placedAt(steps []walk.Step, host string) []indexedStep {
	return slices.DeleteFunc(withCopies(steps, 0), func(s indexedStep) bool { return s.Host != host })
}

// answers calls answersAt for the outcome that is compared.
func (c *comparison) answers(host string) func(packet.Tuple) bool {
	return expects(placedAt(c.outcome.Back, host))
}

// expects reports whether one of the steps has the tuple. What carries other packets is told by these.
func expects(steps []indexedStep) func(packet.Tuple) bool {
	return func(t packet.Tuple) bool {
		return slices.ContainsFunc(steps, func(s indexedStep) bool { return s.Packet.Tunnel == nil && sameTuple(&s.Packet.Tuple, &t) })
	}
}

// interfaces compares the packet at the interfaces of one host. Copies at other interfaces, and repeats, are passed over.
func (c *comparison) interfaces(name string, h *Host, steps []indexedStep, d direction) {
	expected := c.answers(name)
	var seen []witness.CapturedPacket
	for _, p := range h.Packets {
		if c.id.of(&p.Packet, p.Transport, expected) == d {
			seen = append(seen, p)
		}
	}
	var rule *RuleRef
	var ruleText string
	for _, s := range steps {
		if s.Visit != nil && s.Visit.Rule != nil && len(s.Changes) > 0 {
			rule, ruleText = refOf(s.Visit), " after "+predictedRule(s)
		}
		link, out := place(s)
		if link == "" {
			continue
		}
		i := slices.IndexFunc(seen, func(p witness.CapturedPacket) bool {
			return p.Link == link && p.Out == out && packetDiffers(s, &p.Packet) == ""
		})
		if i >= 0 {
			seen = seen[i+1:]
			c.fact(nil)
			continue
		}
		c.fact(&Difference{Host: name, Back: d == back, Predicted: at(link, out) + packetText(&s.Packet) + ruleText,
			Observed: nearest(seen, s, link, out), position: s.position, rule: rule})
		return
	}
}

// place returns the interface of a step where the packet can be captured, "" for other steps.
func place(s indexedStep) (link string, out bool) {
	switch s.Stage {
	case walk.Received:
		return s.Packet.In, false
	case walk.Transmit:
		return s.Packet.Out, true
	}
	return "", false
}

func at(link string, out bool) string {
	if out {
		return "out of " + link + ": "
	}
	return "in by " + link + ": "
}

// nearest describes the packet that was seen at the interface instead of the predicted one.
func nearest(seen []witness.CapturedPacket, s indexedStep, link string, out bool) string {
	for _, p := range seen {
		if p.Link == link && p.Out == out {
			return at(link, out) + packetText(&p.Packet) + packetDiffers(s, &p.Packet)
		}
	}
	if len(seen) > 0 {
		return "not there; " + at(seen[0].Link, seen[0].Out) + packetText(&seen[0].Packet)
	}
	return at(link, out) + "the packet was not seen there"
}

func packetText(p *packet.Packet) string {
	if p.About != nil {
		return fmt.Sprintf("%s type %d code %d about %s", p.Tuple, p.Type, p.Code, p.About)
	}
	return fmt.Sprintf("%s, TTL %d", p.Tuple, p.TTL)
}

// packetDiffers tells in words what is different about a packet at an interface, "" where nothing is.
func packetDiffers(s indexedStep, p *packet.Packet) string {
	want := &s.Packet
	switch {
	case !sameTuple(&want.Tuple, &p.Tuple):
		return fmt.Sprintf(" (predicted %s)", want.Tuple)
	case want.About != nil && (p.About == nil || !sameTuple(want.About, p.About)):
		return fmt.Sprintf(" (predicted about %s)", want.About)
	case want.TTL != 0 && want.TTL != p.TTL && !want.SomeTTL:
		return fmt.Sprintf(" (predicted TTL %d)", want.TTL)
	case want.TOS != p.TOS && want.TOS != 0:
		return fmt.Sprintf(" (TOS %#x, predicted %#x)", p.TOS, want.TOS)
	case differ(want.Frame.Source, p.Frame.Source):
		return fmt.Sprintf(" (from station %s, predicted %s)", p.Frame.Source, want.Frame.Source)
	case differ(want.Frame.Destination, p.Frame.Destination):
		return fmt.Sprintf(" (to station %s, predicted %s)", p.Frame.Destination, want.Frame.Destination)
	}
	return ""
}

func differ(want, got packet.MAC) bool { return !want.IsZero() && !got.IsZero() && want != got }

// sameTuple reports whether a real packet's tuple is one that was predicted.
func sameTuple(want, got *packet.Tuple) bool {
	if want.Protocol != got.Protocol || !sameAddress(want.Source, got.Source) || want.Destination != got.Destination {
		return false
	}
	if want.Protocol == packet.ICMP || want.Protocol == packet.ICMPv6 {
		return want.Type == got.Type && want.Code == got.Code && samePort(want.SourcePort, got.SourcePort)
	}
	return samePort(want.SourcePort, got.SourcePort) && samePort(want.DestinationPort, got.DestinationPort)
}

// sameAddress treats an address that was not chosen as the unspecified one, which the kernel sends then.
func sameAddress(want, got netip.Addr) bool {
	return want == got || !want.IsValid() && got.IsUnspecified()
}

func samePort(want, got packet.Port) bool {
	low, high := want.Span()
	return low <= got.Number && got.Number <= high
}
