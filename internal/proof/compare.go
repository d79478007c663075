package proof

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/netfilter"
	"packetwalk.dev/internal/packet"
	"packetwalk.dev/internal/walk"
)

// Compare lays the outcomes of a walk beside what the kernel did and reports on the one that agrees with it longest.
func Compare(result *walk.Result, o *Observed) Report {
	id := identify(o, result.Request.Host)
	var best Report
	for i := range result.Outcomes {
		r := compareOutcome(&result.Outcomes[i], o, id, result.Request.Host)
		r.Outcome = i
		if i == 0 || r.better(best) {
			best = r
		}
	}
	best.Answer = o.Answer
	return best
}

// better tells whether the kernel took this outcome rather than the other: where neither agrees to the end, the one that parts later.
func (r Report) better(other Report) bool {
	switch {
	case r.First == nil || other.First == nil:
		return r.First == nil && (other.First != nil || r.Agreed > other.Agreed)
	case r.First.position != other.First.position:
		return r.First.position > other.First.position
	}
	return r.Agreed > other.Agreed
}

func compareOutcome(outcome *walk.Outcome, o *Observed, id *identity, sender string) Report {
	of := *id
	of.refusal = len(outcome.Back) > 0 && outcome.Back[0].Packet.About != nil
	c := &comparison{observed: o, id: &of, sender: sender, unseen: map[string]bool{}}
	c.Undecided = outcome.End.Kind == walk.Undecided || outcome.BackEnd != nil && outcome.BackEnd.Kind == walk.Undecided
	if outcome.End.Kind == walk.Rejected {
		c.refused = outcome.End.Host
	}
	c.way(outcome.There, there, 0)
	c.Source = c.sourceAt(outcome.End.Host)
	if outcome.Back != nil {
		if c.answered(outcome) {
			c.way(outcome.Back, back, len(outcome.There))
		} else {
			c.Unanswered = true
		}
	}
	c.flows(outcome)
	c.answer(outcome)
	for host := range c.unseen {
		c.Unseen = append(c.Unseen, host)
	}
	slices.Sort(c.Unseen)
	return c.Report
}

// comparison is a Report in the making.
type comparison struct {
	Report
	observed *Observed
	id       *identity
	sender   string
	unseen   map[string]bool
	refused  string // the host that answers the packet with an error, if one does
	// refusedCopies: that host's bridge had flooded the packet. Each copy is answered, as far as the limits of ICMP errors allow.
	refusedCopies bool
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

// placed is a predicted step with its place among all.
type placed struct {
	*walk.Step
	position int
	before   *packet.Packet // the packet before the step; nil for the first
}

// way compares the steps of one direction, host by host.
func (c *comparison) way(steps []walk.Step, d direction, offset int) {
	steps = withCopies(steps)
	byHost := map[string][]placed{}
	var order []string
	for i := range steps {
		s := placed{Step: &steps[i], position: offset + i}
		if i > 0 && steps[i-1].Host == s.Host {
			s.before = &steps[i-1].Packet
		}
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
		c.rules(name, h, byHost[name], d)
		c.interfaces(name, h, byHost[name], d)
	}
}

// withCopies puts the steps of copies after those at which they were made: the kernel takes a copy through its rules before the packet itself goes on.
func withCopies(steps []walk.Step) []walk.Step {
	if !slices.ContainsFunc(steps, func(s walk.Step) bool { return s.Copied != nil }) {
		return steps
	}
	var all []walk.Step
	for _, s := range steps {
		if all = append(all, s); s.Copied != nil {
			all = append(all, s.Copied.Steps...)
		}
	}
	return all
}

// expects tells whether one of the steps has the tuple.
func expects(steps []placed) func(packet.Tuple) bool {
	return func(t packet.Tuple) bool {
		return slices.ContainsFunc(steps, func(s placed) bool { return sameTuple(&s.Packet.Tuple, &t) })
	}
}

// observedRule is an event of the trace, with the packet where a base chain began.
type observedRule struct {
	kernel.TraceEvent
	packet *packet.Packet // nil in all events of a base chain but the first
}

// ruleEvents are the rules and policies that packets of one direction met in a host.
func (c *comparison) ruleEvents(h *Host, steps []placed, d direction) []observedRule {
	expected := func(packet.Tuple) bool { return false }
	if d == back {
		expected = expects(steps)
	}
	var events []observedRule
	for _, t := range kernel.GroupTrace(h.Trace) {
		if c.id.of(&t.Packet, t.Transport, expected) != d {
			continue
		}
		first := true
		for _, e := range t.Events {
			if e.Kind != kernel.TraceRule && e.Kind != kernel.TracePolicy {
				continue
			}
			o := observedRule{TraceEvent: e}
			if first {
				o.packet, first = &t.Packet, false
			}
			events = append(events, o)
		}
	}
	return events
}

// rules compares the rules of one host in order.
func (c *comparison) rules(name string, h *Host, steps []placed, d direction) {
	events := c.ruleEvents(h, steps, d)
	flooded, last := d == back && c.refusedCopies, steps[0].position
	nat := false              // the base chain that the step is in translates
	var passed []observedRule // what other copies met
	var changed *placed       // the last step whose rule changed the packet
	for i := range steps {
		s := steps[i]
		flooded = flooded || s.Bridge != nil && len(s.Bridge.Ports) > 1
		if open(s.Visit) && len(events) > 0 && applied(h, s.Visit, &events[0]) {
			events = events[1:] // it did apply
			c.fact(nil)
			continue
		}
		if !traced(s.Visit) {
			if s.Visit != nil && s.Visit.Chain.Table.Dialect == netfilter.IPTablesLegacy && s.Visit.Verdict.Kind != netfilter.Break {
				c.NotTraced++
			}
			continue
		}
		if s.Visit.Rule == nil && s.Visit.Verdict.Kind == netfilter.Accept && h.Absent[chainID(s.Visit.Chain)] {
			continue // an empty chain that lets everything pass is as good as none
		}
		if base := s.Visit.Chain.Base; base != nil {
			nat = base.Type == "nat"
		}
		if flooded { // what happens to the other copies is in the trace, too
			rest := skipTo(h, s, events)
			passed, events = append(passed, events[:len(events)-len(rest)]...), rest
		}
		if flooded && nat && !meets(h, s, events) && slices.ContainsFunc(passed, func(e observedRule) bool { return isOf(h, s, &e) }) {
			c.fact(nil) // the copies are of one connection: nat chains are asked for the first of them, whichever that is and whatever its mark
			continue
		}
		if len(events) == 0 {
			c.fact(c.missing(name, s, d))
			return
		}
		if agree, how := sameEvent(h, s, &events[0]); !agree {
			c.fact(&Difference{Host: name, Back: d == back, Predicted: predictedRule(s), Observed: observedText(h, &events[0]) + how,
				position: s.position, event: &events[0].TraceEvent})
			return
		}
		if why := packetAtChain(s, &events[0]); why != "" {
			c.fact(changedElsewhere(s, changed, why, name, d))
			return
		}
		c.fact(nil)
		events, last = events[1:], s.position
		if len(s.Changes) > 0 {
			changed = &steps[i]
		}
	}
	c.refusedCopies = c.refusedCopies || d == there && flooded && c.refused == name
	if len(events) > 0 && !flooded && !c.Undecided {
		c.fact(&Difference{Host: name, Back: d == back, Predicted: "no further rule", Observed: observedText(h, &events[0]),
			position: last, more: true, event: &events[0].TraceEvent})
	}
}

// changedElsewhere is a packet that met the predicted rule, but not as predicted: the rule that last changed it comes first to mind.
func changedElsewhere(s placed, changed *placed, why, host string, d direction) *Difference {
	difference := &Difference{Host: host, Back: d == back, Predicted: "at " + predictedRule(s), Observed: "the same rule" + why, position: s.position}
	if changed != nil {
		difference.Predicted += ", after " + predictedRule(*changed)
		difference.rule = refOf(changed.Visit)
	}
	return difference
}

func (c *comparison) missing(name string, s placed, d direction) *Difference {
	return &Difference{Host: name, Back: d == back, Predicted: predictedRule(s), Observed: "the packet did not get there",
		position: s.position}
}

func skipTo(h *Host, s placed, events []observedRule) []observedRule {
	for i := range events {
		if meets(h, s, events[i:]) {
			return events[i:]
		}
	}
	return events
}

// isOf tells whether a step and an event are of the same rule with the same verdict and packet, whatever its mark.
func isOf(h *Host, s placed, e *observedRule) bool {
	agree, how := sameEvent(h, s, e)
	return (agree || how != "") && packetAtChain(s, e) == ""
}

// meets tells whether the first of the events is that of a step.
func meets(h *Host, s placed, events []observedRule) bool {
	if len(events) == 0 {
		return false
	}
	agree, _ := sameEvent(h, s, &events[0])
	return agree && packetAtChain(s, &events[0]) == ""
}

// traced tells whether the kernel reports a visit. Ends of chains that were jumped to are left out on both sides.
func traced(v *netfilter.Visit) bool {
	return v != nil && v.Chain.Table.Dialect != netfilter.IPTablesLegacy && !kernel.IsTraceTable(v.Chain.Table.Name) &&
		v.Verdict.Kind != netfilter.Break && (v.Rule != nil || v.Chain.Base != nil)
}

// open tells of rules of which nobody could tell whether they would apply.
func open(v *netfilter.Visit) bool {
	return v != nil && v.Rule != nil && v.Verdict.Detail == netfilter.OpenRule
}

func applied(h *Host, v *netfilter.Visit, e *observedRule) bool {
	return chainID(v.Chain) == ChainID{e.Family, e.Table, e.Chain} && e.Kind == kernel.TraceRule && e.Verdict == "continue" && sameRule(h, v, e)
}

// verdicts are the kernel's words for predicted verdicts: a rejection is a drop with an answer, what is stolen may be given to a queue.
var verdicts = map[netfilter.VerdictKind][]string{
	netfilter.Continue: {"continue"}, netfilter.Accept: {"accept"}, netfilter.Drop: {"drop"}, netfilter.Reject: {"drop", "stolen"},
	netfilter.Return: {"return"}, netfilter.Jump: {"jump"}, netfilter.Goto: {"goto"}, netfilter.Stolen: {"stolen", "queue", "drop"},
}

// sameEvent tells whether a step and an event agree, and where the rules are the same what else is different: " (…)".
func sameEvent(h *Host, s placed, e *observedRule) (agree bool, how string) {
	v := s.Visit
	if id := chainID(v.Chain); id.Family != e.Family || id.Table != e.Table || id.Chain != e.Chain {
		return false, ""
	}
	if (v.Rule == nil) != (e.Kind == kernel.TracePolicy) || v.Rule != nil && !sameRule(h, v, e) {
		return false, ""
	}
	if known := verdicts[v.Verdict.Kind]; known != nil && !slices.Contains(known, e.Verdict) {
		return false, ""
	}
	if v.Verdict.Chain != nil && e.Target != "" && v.Verdict.Chain.Name != e.Target {
		return false, ""
	}
	if s.Packet.Mark != e.Mark && e.Verdict != "stolen" {
		return false, fmt.Sprintf(" (mark %#x, predicted %#x)", e.Mark, s.Packet.Mark)
	}
	return true, ""
}

// packetAtChain compares the packet at the beginning of a base chain. A rule that translates does so when the chain has ended, so the tuple
// is that before the step; everything else a rule changes at once.
func packetAtChain(s placed, e *observedRule) string {
	p := e.packet
	if p == nil || s.before == nil || isError(p) {
		return "" // the trace holds too little of what it quotes
	}
	if !sameTuple(&s.before.Tuple, &p.Tuple) {
		return fmt.Sprintf(" (packet %s, predicted %s)", p.Tuple, s.before.Tuple)
	}
	if want := s.before.TTL; want != 0 && want != p.TTL && s.Packet.TTL != p.TTL { // the kernel shows it as the first rule that applied left it
		return fmt.Sprintf(" (TTL %d, predicted %d)", p.TTL, want)
	}
	return ""
}

func sameRule(h *Host, v *netfilter.Visit, e *observedRule) bool {
	if v.Rule.Handle != 0 {
		return v.Rule.Handle == e.Handle
	}
	return v.Rule.Number == number(h, e)
}

// number is the place of the event's rule in its chain, from 1; 0 where it is not known.
func number(h *Host, e *observedRule) int {
	return slices.Index(h.Handles[ChainID{e.Family, e.Table, e.Chain}], e.Handle) + 1
}

func chainID(c *netfilter.Chain) ChainID {
	return ChainID{c.Table.Family.String(), c.Table.Name, c.Name}
}

func refOf(v *netfilter.Visit) *ruleRef {
	if v == nil || v.Rule == nil {
		return nil
	}
	id := chainID(v.Chain)
	return &ruleRef{id.Family, id.Table, id.Chain, v.Rule.Number, v.Rule.Handle}
}

func predictedRule(s placed) string {
	v := s.Visit
	text := fmt.Sprintf("%s %s: %s", v.Chain.Table.Family, v.Chain.Ref(v.Rule), verdictText(v.Verdict))
	if v.Rule != nil && v.Rule.Text != "" {
		text += ": " + v.Rule.Text
	}
	return text
}

func verdictText(v netfilter.Verdict) string {
	if v.Chain != nil {
		return v.Kind.String() + " " + v.Chain.Name
	}
	return v.Kind.String()
}

func observedText(h *Host, e *observedRule) string {
	where := fmt.Sprintf("%s %s %s", e.Family, e.Table, e.Chain)
	verdict := e.Verdict
	if e.Target != "" {
		verdict += " " + e.Target
	}
	switch n := number(h, e); {
	case e.Kind == kernel.TracePolicy:
		return fmt.Sprintf("%s policy: %s", where, verdict)
	case n == 0:
		return fmt.Sprintf("%s handle %d: %s", where, e.Handle, verdict)
	default:
		return fmt.Sprintf("%s %d (handle %d): %s", where, n, e.Handle, verdict)
	}
}

// interfaces compares the packet at the interfaces of one host. Copies at other interfaces, and repeats, are passed over.
func (c *comparison) interfaces(name string, h *Host, steps []placed, d direction) {
	expected := func(packet.Tuple) bool { return false }
	if d == back {
		expected = expects(steps)
	}
	var seen []kernel.Captured
	for _, p := range h.Packets {
		if c.id.of(&p.Packet, p.Transport, expected) == d {
			seen = append(seen, p)
		}
	}
	var rule *ruleRef
	var ruleText string
	for _, s := range steps {
		if s.Visit != nil && s.Visit.Rule != nil && len(s.Changes) > 0 {
			rule, ruleText = refOf(s.Visit), " after "+predictedRule(s)
		}
		link, out := place(s)
		if link == "" {
			continue
		}
		i := slices.IndexFunc(seen, func(p kernel.Captured) bool {
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

// place is the interface of a step where the packet can be captured, "" for other steps.
func place(s placed) (link string, out bool) {
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
func nearest(seen []kernel.Captured, s placed, link string, out bool) string {
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
func packetDiffers(s placed, p *packet.Packet) string {
	want := &s.Packet
	switch {
	case !sameTuple(&want.Tuple, &p.Tuple):
		return fmt.Sprintf(" (predicted %s)", want.Tuple)
	case want.About != nil && (p.About == nil || !sameTuple(want.About, p.About)):
		return fmt.Sprintf(" (predicted about %s)", want.About)
	case want.TTL != 0 && want.TTL != p.TTL:
		return fmt.Sprintf(" (predicted TTL %d)", want.TTL)
	case want.TOS != p.TOS && want.TOS != 0:
		return fmt.Sprintf(" (TOS %#x, predicted %#x)", p.TOS, want.TOS)
	case differ(want.EtherSource, p.EtherSource):
		return fmt.Sprintf(" (from station %s, predicted %s)", p.EtherSource, want.EtherSource)
	case differ(want.EtherDestination, p.EtherDestination):
		return fmt.Sprintf(" (to station %s, predicted %s)", p.EtherDestination, want.EtherDestination)
	}
	return ""
}

func differ(want, got packet.MAC) bool { return !want.IsZero() && !got.IsZero() && want != got }

// sameTuple tells whether a real packet's tuple is one that was predicted.
func sameTuple(want, got *packet.Tuple) bool {
	if want.Protocol != got.Protocol || !sameAddress(want.Source, got.Source) || want.Destination != got.Destination {
		return false
	}
	if want.Protocol == packet.ICMP || want.Protocol == packet.ICMPv6 {
		return want.Type == got.Type && want.Code == got.Code && samePort(want.SourcePort, got.SourcePort)
	}
	return samePort(want.SourcePort, got.SourcePort) && samePort(want.DestinationPort, got.DestinationPort)
}

// sameAddress takes an address that nobody chose for the unspecified one, which the kernel sends then.
func sameAddress(want, got netip.Addr) bool {
	return want == got || !want.IsValid() && got.IsUnspecified()
}

func samePort(want, got packet.Port) bool {
	low, high := want.Span()
	return low <= got.Number && got.Number <= high
}
