package proof

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// observedRule is an event of the trace, with the packet where a base chain began.
type observedRule struct {
	witness.TraceEvent
	packet *packet.Packet // nil in all events of a base chain but the first
}

// ruleEvents returns the rules and policies that packets of one direction met in a host.
func (c *comparison) ruleEvents(name string, h *Host, d direction) []observedRule {
	expected := c.answers(name)
	var events []observedRule
	for _, t := range witness.GroupTrace(h.Trace) {
		if c.id.of(&t.Packet, t.Transport, expected) != d {
			continue
		}
		first := true
		for _, e := range t.Events {
			if e.Kind != witness.TraceRule && e.Kind != witness.TracePolicy {
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

// matcher lays the rules that are predicted for one direction in one host beside those in the host's trace.
type matcher struct {
	*comparison
	name string
	host *Host
	back bool
	// pastHooks: the packet did not pass the hooks where tracing begins.
	pastHooks bool
	events    []observedRule // not compared yet
	passed    []observedRule // what other copies of a flooded packet met
	flooded   bool           // the trace holds other copies, too
	nat       bool           // the base chain that the step is in translates
	last      int            // position of the last step that agreed
	changed   *indexedStep   // the last step whose rule changed the packet
	first     *observedRule  // the first of events
	dropped   bool           // the last event that agreed dropped the packet
	again     bool           // the packet was sent more than once
}

// rules compares the rules of one host in order. A packet that was sent again may have met more of them.
func (c *comparison) rules(name string, h *Host, steps []indexedStep, d direction, again bool) {
	m := &matcher{comparison: c, name: name, host: h, back: d == back, events: c.ruleEvents(name, h, d), last: steps[0].position, again: again}
	if len(m.events) > 0 {
		m.first = &m.events[0]
	}
	m.flooded = m.back && c.refusedCopies
	floods := m.flooded
	defer func() {
		if floods && slices.ContainsFunc(slices.Concat(m.passed, m.events), func(e observedRule) bool { return e.Verdict == "drop" }) {
			c.endedCopies[d] = true
		}
	}()
	for _, s := range steps {
		if s.Bridge != nil && len(s.Bridge.Ports) > 1 {
			floods, m.flooded = true, m.flooded || !s.Bridge.Walked
		}
		switch {
		case open(s.Visit) && len(m.events) > 0 && applied(h, s.Visit, &m.events[0]):
			m.events = m.events[1:] // it did apply
			c.fact(nil)
		case m.passesUnread(s):
		case !m.shown(s):
		case !m.agree(s):
			return
		}
	}
	c.refusedCopies = c.refusedCopies || !m.back && floods && c.refused == name
	switch {
	case len(m.events) == 0 || m.flooded || c.Undecided:
	case m.ofOtherCarrier():
		c.Uncertain = append(c.Uncertain, fmt.Sprintf("on %s, of a packet of VXLAN that looks like the probe's: %s", name, observedText(h, &m.events[0])))
	case m.ofRepeat():
		c.Repeated += len(m.events)
	default:
		e := &m.events[0]
		c.fact(&Difference{Host: name, Back: m.back, Predicted: "no further rule", Observed: observedText(h, e), position: m.last, more: true,
			event: &e.TraceEvent})
	}
}

// shown reports whether the trace is to hold a step's visit. It begins behind the hook ingress; a reset that br_netfilter's host sends has
// its interface from the beginning, and passes none of the hooks where tracing begins.
func (m *matcher) shown(s indexedStep) bool {
	v := s.Visit
	if s.Stage == walk.Sent {
		m.pastHooks = s.Packet.Out != ""
	}
	if m.pastHooks && traced(v) {
		m.NotTraced++
		return false
	}
	if v != nil && (v.Chain.Table.Dialect == netfilter.IPTablesLegacy || s.Hook == netfilter.Ingress) && v.Verdict.Kind != netfilter.Break {
		m.NotTraced++
		return false
	}
	if !traced(v) {
		return false
	}
	// an empty chain that lets everything pass is as good as none
	return v.Rule != nil || v.Verdict.Kind != netfilter.Accept || !m.host.Absent[chainID(v.Chain)]
}

// agree compares one step with what comes next in the trace.
func (m *matcher) agree(s indexedStep) bool {
	if base := s.Visit.Chain.Base; base != nil {
		m.nat = base.Type == "nat"
	}
	if m.flooded && m.ofCopy(s) {
		m.fact(nil)
		return true
	}
	d := m.difference(s)
	m.fact(d)
	if d != nil {
		return false
	}
	m.dropped = m.events[0].Verdict == "drop"
	m.events, m.last = m.events[1:], s.position
	if len(s.Changes) > 0 {
		m.changed = &s
	}
	return true
}

// ofCopy passes over what happens to the other copies of a flooded packet, which is in the trace, too, and reports whether the step is
// theirs: the copies are of one connection, and nat chains are asked for the first of them, whichever that is and whatever its mark.
func (m *matcher) ofCopy(s indexedStep) bool {
	if i := slices.IndexFunc(m.events, func(e observedRule) bool { return meets(m.host, s, &e) }); i > 0 {
		m.passed, m.events = append(m.passed, m.events[:i]...), m.events[i:]
	}
	return m.nat && (len(m.events) == 0 || !meets(m.host, s, &m.events[0])) &&
		slices.ContainsFunc(m.passed, func(e observedRule) bool { return isOf(m.host, s, &e) })
}

// difference returns what parts a step from what comes next in the trace; nil where nothing does.
func (m *matcher) difference(s indexedStep) *Difference {
	d := &Difference{Host: m.name, Back: m.back, Predicted: predictedRule(s), position: s.position}
	if len(m.events) == 0 {
		d.Observed = "the packet did not get there"
		return d
	}
	e := &m.events[0]
	if agree, how := sameEvent(m.host, s, e); !agree {
		d.Observed, d.event = observedText(m.host, e)+how, &e.TraceEvent
		return d
	}
	why := packetAtChain(s, e)
	if why == "" {
		return nil
	}
	d.Predicted, d.Observed = "at "+d.Predicted, "the same rule"+why
	if m.changed != nil { // of a packet that met the rule, but not as predicted, the rule that last changed it comes first to mind
		d.Predicted += ", after " + predictedRule(*m.changed)
		d.rule = refOf(m.changed.Visit)
	}
	return d
}

// isOf reports whether a step and an event are of the same rule with the same verdict and packet, whatever its mark.
func isOf(h *Host, s indexedStep, e *observedRule) bool {
	agree, how := sameEvent(h, s, e)
	return (agree || how != "") && packetAtChain(s, e) == ""
}

// meets reports whether an event is that of a step.
func meets(h *Host, s indexedStep, e *observedRule) bool {
	agree, _ := sameEvent(h, s, e)
	return agree && packetAtChain(s, e) == ""
}

// traced reports whether the kernel reports a visit. Ends of chains that were jumped to are left out on both sides.
func traced(v *netfilter.Visit) bool {
	return v != nil && v.Chain.Table.Dialect != netfilter.IPTablesLegacy && !witness.IsTraceTable(v.Chain.Table.Name) &&
		v.Verdict.Kind != netfilter.Break && (v.Rule != nil || v.Chain.Base != nil)
}

// open reports whether a visit is of a rule for which it is unknown whether it would apply.
func open(v *netfilter.Visit) bool {
	return v != nil && v.Rule != nil && v.Verdict.Detail == netfilter.OpenRule
}

// passesUnread reports whether a step is of a rule that could not be read, and the kernel's next event is behind the rule. So the rule did
// not apply, which the prediction left open.
func (m *matcher) passesUnread(s indexedStep) bool {
	v := s.Visit
	if v == nil || v.Rule == nil || v.Verdict.Kind != netfilter.Undecided || len(m.events) == 0 {
		return false
	}
	if !slices.ContainsFunc(v.Rule.Statements, func(s netfilter.Statement) bool { _, ok := s.(*netfilter.UnreadEffect); return ok }) {
		return false
	}
	e := &m.events[0]
	if chainID(v.Chain) != (ChainID{e.Family, e.Table, e.Chain}) {
		return true
	}
	return (e.Kind == witness.TracePolicy || ruleNumber(m.host, e) > v.Rule.Number) && packetAtChain(s, e) == ""
}

func applied(h *Host, v *netfilter.Visit, e *observedRule) bool {
	return chainID(v.Chain) == ChainID{e.Family, e.Table, e.Chain} && e.Kind == witness.TraceRule && e.Verdict == "continue" &&
		sameRule(h, v, e)
}

// verdicts are the kernel's words for predicted verdicts: a rejection is a drop with an answer, what is stolen may be given to a queue.
var verdicts = map[netfilter.VerdictKind][]string{
	netfilter.Continue: {"continue"}, netfilter.Accept: {"accept"}, netfilter.Drop: {"drop"}, netfilter.Reject: {"drop", "stolen"},
	netfilter.Return: {"return"}, netfilter.Jump: {"jump"}, netfilter.Goto: {"goto"}, netfilter.Stolen: {"stolen", "queue", "drop"},
}

// sameEvent reports whether a step and an event agree, and where the rules are the same what else is different: " (…)".
func sameEvent(h *Host, s indexedStep, e *observedRule) (agree bool, how string) {
	v := s.Visit
	if id := chainID(v.Chain); id.Family != e.Family || id.Table != e.Table || id.Chain != e.Chain {
		return false, ""
	}
	if (v.Rule == nil) != (e.Kind == witness.TracePolicy) || v.Rule != nil && !sameRule(h, v, e) {
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
func packetAtChain(s indexedStep, e *observedRule) string {
	p := e.packet
	if p == nil || s.before == nil || isError(p) {
		return "" // the trace holds too little of what it quotes
	}
	if !sameTuple(&s.before.Tuple, &p.Tuple) {
		return fmt.Sprintf(" (packet %s, predicted %s)", p.Tuple, s.before.Tuple)
	}
	// the kernel shows it as the first rule that applied left it
	if want := s.before.TTL; want != 0 && !s.before.SomeTTL && want != p.TTL && s.Packet.TTL != p.TTL {
		return fmt.Sprintf(" (TTL %d, predicted %d)", p.TTL, want)
	}
	return ""
}

func sameRule(h *Host, v *netfilter.Visit, e *observedRule) bool {
	if v.Rule.Handle != 0 {
		return v.Rule.Handle == e.Handle
	}
	return v.Rule.Number == ruleNumber(h, e)
}

// ruleNumber returns the place of the event's rule in its chain, from 1, or 0 if it is unknown.
func ruleNumber(h *Host, e *observedRule) int {
	return slices.Index(h.Handles[ChainID{e.Family, e.Table, e.Chain}], e.Handle) + 1
}

func chainID(c *netfilter.Chain) ChainID {
	return ChainID{c.Table.Family.String(), c.Table.Name, c.Name}
}

func refOf(v *netfilter.Visit) *RuleRef {
	if v == nil || v.Rule == nil {
		return nil
	}
	return &RuleRef{chainID(v.Chain), v.Rule.Handle, v.Rule.Number}
}

func predictedRule(s indexedStep) string {
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
	switch n := ruleNumber(h, e); {
	case e.Kind == witness.TracePolicy:
		return fmt.Sprintf("%s policy: %s", where, verdict)
	case n == 0:
		return fmt.Sprintf("%s handle %d: %s", where, e.Handle, verdict)
	default:
		return fmt.Sprintf("%s %d (handle %d): %s", where, n, e.Handle, verdict)
	}
}
