package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// renderer writes the steps of one way as lines, and keeps what later ones refer to.
type renderer struct {
	*reasoner
	explanation *explanation
	choices     []walk.Decision // not yet met
	reply       bool            // the way is the reply's
	tracked     bool            // conntrack has seen the packet
	host        string
	// that the packet got on this machine; a rule may take one away before the one that it was for
	marks   []marking
	cleared []clearedMark                        // marks of this machine that a rule took away
	last    *walk.Step                           // the rule before, on this machine
	bridge  *walk.BridgeStep                     // the last decision of a bridge on this machine
	visits  map[*netfilter.Rule]*netfilter.Visit // on this machine
	steps   map[*netfilter.Rule]int              // of the visits
	at      int                                  // the number of the step
}

// hops tells the steps of the request's way, or of the reply's, machine by machine.
func (t *renderer) hops(steps []walk.Step, reply bool) []hop {
	var hops []hop
	t.host, t.reply = "", reply
	for i := range steps {
		st := &steps[i]
		if st.Host != t.host || len(hops) == 0 {
			hops = append(hops, hop{host: st.Host})
			t.host, t.marks, t.cleared, t.last, t.bridge = st.Host, nil, nil, nil, nil
			t.visits, t.steps = map[*netfilter.Rule]*netfilter.Visit{}, map[*netfilter.Rule]int{}
		}
		t.at = i
		b := &hops[len(hops)-1]
		b.lines = append(b.lines, t.step(st)...)
	}
	for i := range hops { // taking a mark away matters where a rule asked for it afterwards
		hops[i].lines = slices.DeleteFunc(hops[i].lines, func(l line) bool {
			return l.clears != nil && !slices.ContainsFunc(t.explanation.exemptions, func(k exemption) bool { return k.cleared == l.clears })
		})
		for j := range hops[i].lines {
			hops[i].lines[j].clears = nil
		}
	}
	return hops
}

func (t *renderer) step(st *walk.Step) []line {
	switch st.Stage {
	case walk.Received:
		return []line{{label: "in", text: linkAndPort(st.Packet.In, st.Packet.BridgeIn), shape: "in"}}
	case walk.Bridged:
		t.bridge = st.Bridge
	case walk.Copy:
		return t.copied(st)
	case walk.Encapsulated, walk.Decapsulated:
		return []line{{label: "tunnel", text: tunnelText(st), shape: "tunnel " + string(st.Stage)}}
	case walk.Transmit:
		return []line{{label: "out", text: t.leavesBy(&st.Packet), shape: "out"}}
	case walk.Ruled:
		return t.ruled(st)
	case walk.Translated:
		return t.translated(st)
	case walk.Routed:
		return t.routed(st)
	case walk.Tracked:
		if f := st.Packet.Track.Flow; f != nil && f.Status&packet.Confirmed != 0 && !t.reply && t.explanation.connection == nil && !t.tracked {
			t.explanation.connection = st
		}
		t.tracked = true
		if s := st.Packet.Track.State; s == packet.Invalid {
			return []line{{label: "flow", text: cmp.Or(st.Why, "conntrack calls the packet INVALID"), shape: "flow invalid"}}
		}
	case walk.Checked:
		if len(st.Changes) > 0 && st.Changes[0].Field != "ttl" {
			return []line{{label: "check", text: changed(st.Changes) + paren(st.Why), shape: "check"}}
		}
	}
	return nil
}

// tunnelText returns "into VXLAN 1 of flannel.1, to 10.1.0.5", or "out of VXLAN 1 of flannel.1".
func tunnelText(st *walk.Step) string {
	if st.Stage == walk.Decapsulated {
		return "out of " + st.Tunnel.String()
	}
	return "into " + st.Tunnel.String() + ", to " + st.Packet.DestinationEnd()
}

// copied tells of a copy of the packet in one line: where it came from and how it ended. One that no rule looked at and that the host
// passes over tells nothing.
func (t *renderer) copied(st *walk.Step) []line {
	c := st.Copied
	l := line{label: "copy", text: fmt.Sprintf("%s: %s", st.Why, cmp.Or(c.End.Why, string(c.End.Kind))), shape: "copy"}
	looked := c.End.Kind != walk.Dropped
	for i := range c.Steps {
		v := c.Steps[i].Visit
		looked = looked || v != nil && v.Rule != nil
		if v != nil && v.Verdict.Kind == netfilter.Drop {
			l.owner = t.why(st.Host, v, &c.Steps[i].Packet)
		}
	}
	if !looked {
		return nil
	}
	return []line{l}
}

// linkAndPort returns an interface with its bridge port.
func linkAndPort(link, port string) string {
	if link == "" && port == "" {
		return "an unknown interface"
	}
	if port == "" || port == link {
		return link
	}
	return link + ", port " + port
}

// leavesBy returns the interface that a packet leaves by, with the bridge that chose it.
func (t *renderer) leavesBy(p *packet.Packet) string {
	if b := t.bridge; b != nil && b.Bridge != p.Out && slices.Contains(b.Ports, p.Out) {
		return p.Out + ", port of " + b.Bridge
	}
	return linkAndPort(p.Out, p.BridgeOut)
}

// balances reports whether a jump to a chain is a decision worth telling: of load balancing, or about the way.
func (s *signatures) balances(c *netfilter.Chain) bool {
	switch s.role(c) {
	case attribution.Balances, attribution.BalancesLocal, attribution.LoadBalancer, attribution.Endpoint, attribution.Outbound:
		return true
	}
	return false
}

// ruled tells of a rule if it mattered.
func (t *renderer) ruled(st *walk.Step) []line {
	v := st.Visit
	choice := t.choice(v)
	why := t.why(st.Host, v, &st.Packet)
	caller := t.last
	t.last = st
	// the source that the destination sees, of which what carries the packet has none
	couldKeep := st.Hook == netfilter.Postrouting && natChain(v.Chain) && !t.reply && st.Packet.Tunnel == nil
	if v.Rule != nil {
		t.visits[v.Rule], t.steps[v.Rule] = v, t.at
	} else if couldKeep {
		p := natScan{renderer: t, host: st.Host, packet: &st.Packet, at: -1}
		p.through(v.Chain)
		p.noteStep(t.at)
		t.explanation.exemptions = append(t.explanation.exemptions, p.exemptions...)
	}
	lines := t.changes(st, caller, why, choice)
	ref, shape := reference(v), "rule "+t.shapeOf(v)
	switch k := v.Verdict.Kind; {
	case verdictLabels[k] != "":
		if !t.reply {
			t.explanation.allowing = t.allowing(st)
		}
		return append(lines, t.stopped(v, why, choice))
	case len(lines) > 0:
		return lines
	case (k == netfilter.Jump || k == netfilter.Goto) && t.balances(v.Verdict.Chain):
		if t.role(v.Verdict.Chain) == attribution.BalancesLocal && !t.reply {
			t.explanation.local = &exemption{text: ref + " → " + v.Verdict.Chain.Name + paren(why), at: atStep(t.at)}
		}
		return []line{{label: "rule", text: ref + " → " + v.Verdict.Chain.Name + choice, owner: why, shape: shape}}
	case k == netfilter.Break && choice == "":
		return nil
	case k == netfilter.Return && t.role(v.Chain) == attribution.Policy:
		return []line{{label: "nsg", text: why + "  by " + ref + choice, shape: shape}}
	case choice != "":
		return []line{{label: "choice", text: ref + ": " + ruleWithoutComments(v.Rule) + choice, owner: why, shape: shape}}
	case couldKeep && v.Rule != nil && (k == netfilter.Return || k == netfilter.Accept):
		t.explanation.exemptions = append(t.explanation.exemptions, exemption{
			host: st.Host, ref: ref, text: keeps(v) + paren(why), at: atStep(t.at),
		})
	}
	return nil
}

// verdictLabels are the labels of the verdicts that end a packet's way.
var verdictLabels = map[netfilter.VerdictKind]string{
	netfilter.Drop: "drop", netfilter.Reject: "reject", netfilter.Stolen: "taken", netfilter.Undecided: "unknown",
}

// stopped tells of the rule, or the policy, that ended the packet's way.
func (t *renderer) stopped(v *netfilter.Visit, why, choice string) line {
	stop := &refusal{ref: reference(v), does: doesOrPolicy(v), why: why}
	if v.Verdict.Kind == netfilter.Undecided {
		stop.unknown = v.Verdict.Detail
	}
	if !t.reply {
		t.explanation.stopped = stop
	}
	text := stop.ref + ": " + stop.does
	if v.Verdict.Detail != "" && !strings.Contains(text, v.Verdict.Detail) {
		text += ": " + v.Verdict.Detail
	}
	return line{label: verdictLabels[v.Verdict.Kind], text: text + choice, owner: why, shape: "rule " + t.shapeOf(v), bad: true}
}

// keeps returns a rule that leaves the packet its source.
func keeps(v *netfilter.Visit) string {
	if sourceNAT.MatchString(v.Rule.Text) {
		return reference(v) + ": " + targetOf(v) + " gives it the address that it has" // a masquerade of the machine's own packet
	}
	return reference(v) + ": " + ruleWithoutComments(v.Rule)
}

// changes tells what a rule changed.
func (t *renderer) changes(st, caller *walk.Step, why, choice string) []line {
	var lines []line
	v := st.Visit
	ref := reference(v)
	for _, c := range changesOf(st) {
		l := line{text: fmt.Sprintf("%s → %s  by %s", c.From, c.To, ref), owner: why, shape: c.Field + " " + t.shapeOf(v)}
		switch c.Field {
		case "source", "destination":
			tr := translation{host: st.Host, ref: ref, does: targetOf(v), why: why, field: c.Field, from: c.From, to: c.To}
			tr.mark = t.markFor(v)
			t.note(&tr, st)
			l.label, l.text = natLabel(c.Field), l.text+": "+tr.does+choice
		case "mark", "connmark":
			l.label = map[string]string{"mark": "mark", "connmark": "ctmark"}[c.Field]
			set := t.marked(c, v, caller, why)
			if set == nil {
				if l.clears = t.clear(c, ref); l.clears != nil {
					lines = append(lines, l)
				}
				continue
			}
			l.text, l.owner = fmt.Sprintf("%s → %s  by %s%s", c.From, c.To, set.ref, choice), set.why
			l.shape = c.Field + " " + v.Chain.Name
		case "tracked":
			l.label, l.text = "notrack", "by "+ref+choice
		default:
			l.label, l.text = "change", c.Field+" "+l.text+choice
		}
		lines = append(lines, l)
	}
	return lines
}

// marked notes who set the mark: for the chains that only mark, the rule that jumped there. nil where bits were only taken away.
func (t *renderer) marked(c packet.Change, v *netfilter.Visit, caller *walk.Step, why string) *marking {
	from, _ := strconv.ParseUint(c.From, 0, 32)
	to, _ := strconv.ParseUint(c.To, 0, 32)
	if to&^from == 0 {
		return nil
	}
	m := marking{field: c.Field, bits: uint32(to &^ from), ref: reference(v), why: why, at: atStep(t.at)}
	if r := t.role(v.Chain); (r == attribution.MasqueradeMark || r == attribution.DropMark) && caller != nil && caller.Visit.Verdict.Chain == v.Chain {
		m.ref, m.why = reference(caller.Visit), t.why(caller.Host, caller.Visit, &caller.Packet)
	}
	t.marks = append(t.marks, m)
	if !t.reply && t.role(v.Chain) == attribution.DropMark {
		t.explanation.toDrop = &m
	}
	return &m
}

// clearedMark holds the bits of a mark that a rule took away, and that another rule had set.
type clearedMark struct {
	field string
	bits  uint32
	text  *string // what it did, in words
}

// clear notes that a rule took bits of a mark away. It returns nil if no rule of this machine had set them.
func (t *renderer) clear(c packet.Change, ref string) *string {
	from, _ := strconv.ParseUint(c.From, 0, 32)
	to, _ := strconv.ParseUint(c.To, 0, 32)
	gone := uint32(from &^ to)
	for _, m := range slices.Backward(t.marks) {
		if m.field == c.Field && m.bits&gone != 0 {
			text := fmt.Sprintf("%s cleared the %s %#x that %s had set", ref, c.Field, gone, m.ref)
			t.cleared = append(t.cleared, clearedMark{c.Field, gone, &text})
			return &text
		}
	}
	return nil
}

// markFor returns the last marking of bits that decided that a rule applies; nil where none did.
func (t *renderer) markFor(v *netfilter.Visit) *marking {
	for _, m := range slices.Backward(t.marks) {
		if m.bits&asks(v, m.field) != 0 {
			return &m
		}
	}
	return nil
}

// note keeps what the sentence at the end tells of a translation of the request: that of its source, and whether a program of the machine
// takes it in place of its destination. That of a packet that carries it is none.
func (t *renderer) note(tr *translation, st *walk.Step) {
	switch {
	case t.reply || st.Packet.Tunnel != nil:
	case tr.field == "source":
		tr.at = atStep(t.at)
		t.explanation.sources = append(t.explanation.sources, *tr)
	default:
		t.explanation.redirected = strings.HasPrefix(strings.ToLower(tr.does), "redirect")
	}
}

func natLabel(field string) string {
	if field == "source" {
		return "snat"
	}
	return "dnat"
}

// translated tells of a change by a binding: one that a rule of this walk has just asked for, or one of an earlier packet.
func (t *renderer) translated(st *walk.Step) []line {
	var lines []line
	for _, c := range st.Changes {
		if c.Field != "source" && c.Field != "destination" {
			continue
		}
		tr := translation{host: st.Host, does: "the connection's NAT mapping", why: st.Why, field: c.Field, from: c.From, to: c.To}
		if t.last != nil && natChain(t.last.Visit.Chain) && t.last.Hook == st.Hook && t.last.Visit.Verdict.Kind == netfilter.Accept && !t.reply {
			v := t.last.Visit
			if slices.Contains(changesOf(t.last), c) {
				continue // of a flooded frame's first copy, which the rule's line tells
			}
			tr.ref, tr.does, tr.why = reference(v), targetOf(v), t.why(st.Host, v, &st.Packet)
			tr.mark = t.markFor(v)
		}
		t.note(&tr, st)
		l := line{label: natLabel(c.Field), text: c.From + " → " + c.To + "  by " + tr.does, shape: "binding " + c.Field}
		if tr.ref != "" {
			l.text, l.owner = c.From+" → "+c.To+"  by "+tr.ref+": "+tr.does, tr.why
		}
		lines = append(lines, l)
	}
	return lines
}

// choice tells which way a rule's choices went, "" where it made none.
func (t *renderer) choice(v *netfilter.Visit) string {
	var text string
	for range v.Choices {
		i := 0
		for i < len(t.choices) && (t.choices[i].Rule != v.Rule || t.choices[i].Host != t.host) {
			i++
		}
		if i == len(t.choices) {
			return text
		}
		c := t.choices[i]
		t.choices = append(append([]walk.Decision(nil), t.choices[:i]...), t.choices[i+1:]...)
		if v.Verdict.Kind == netfilter.Break && (c.Kind == netfilter.Random || c.Kind == netfilter.Hash || c.Kind == netfilter.Counter) {
			continue // the rule that took the packet instead is told
		}
		text += "  " + chosen(&c)
		if number := c.Options[c.Answer].Label; c.Kind == netfilter.Random {
			t.drawn[v.Rule] = number
		}
	}
	return text
}

// chosen returns a choice's answer in words.
func chosen(c *walk.Decision) string {
	if c.Answer < 0 || c.Answer >= len(c.Options) {
		return ""
	}
	label := c.Options[c.Answer].Label
	odds := weight(c)
	if odds == nil {
		if c.Kind == netfilter.Unknown {
			return fmt.Sprintf("[unknown: %s; assumed here: %s]", c.What, label)
		}
		return fmt.Sprintf("[depends on what came before: %s; assumed here: %s]", strings.TrimPrefix(c.What, "by what came before: "), label)
	}
	how := map[netfilter.ChoiceKind]string{netfilter.Random: "at random", netfilter.Hash: "by a hash of the flow",
		netfilter.Counter: "in turn"}[c.Kind]
	return fmt.Sprintf("[%s of the flows, %s]", share(odds), how)
}

func (t *renderer) routed(st *walk.Step) []line {
	text := routeText(st.Route)
	if st.Route != nil && st.Route.Unknown != "" {
		text += "  [unknown: " + st.Route.Unknown + "]"
	}
	for i, c := range t.choices {
		if c.Rule == nil && c.Host == t.host {
			text += "  " + chosen(&c)
			t.choices = append(append([]walk.Decision(nil), t.choices[:i]...), t.choices[i+1:]...)
			break
		}
	}
	return []line{{label: "route", text: text, shape: "route"}}
}

func changed(changes []packet.Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.Field+" "+c.From+" → "+c.To)
	}
	return strings.Join(all, ", ")
}

// conclude adds how the request's way ended to its last block.
func (t *renderer) conclude() {
	s, end := t.explanation, &t.explanation.outcome.End
	if len(s.there) == 0 {
		s.there = []hop{{host: end.Host}}
	}
	b := &s.there[len(s.there)-1]
	l := line{label: "end", shape: "end " + string(end.Kind)}
	switch end.Kind {
	case walk.Delivered:
		l.text = "delivered to " + end.Packet.DestinationEnd() + listening(end)
		if l.owner = t.owners.name(end.Packet.Destination, end.Packet.Protocol, end.Packet.DestinationPort); l.owner == hostName(end.Host) {
			l.owner = ""
		}
		l.bad = end.Refused
	case walk.Left:
		l.text = strings.TrimSpace("leaves the captured network " + end.Why)
		if end.Forwarder != "" {
			l.text = "leaves through " + end.Forwarder
		}
	default:
		if s.stopped != nil && end.Why == "" {
			return
		}
		l.text, l.bad = string(end.Kind)+": "+cmp.Or(end.Why, "no reason given"), true
		if s.stopped != nil {
			return
		}
	}
	b.lines = append(b.lines, l)
}

func listening(end *walk.End) string {
	switch {
	case end.Refused && end.Why != "":
		return ""
	case end.Refused:
		return ": nothing listens there, the sender is refused"
	case end.Listener != "":
		return ": " + end.Listener + " takes it"
	}
	return ""
}
