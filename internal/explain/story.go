package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/fib"
	"packetwalk.dev/internal/netfilter"
	"packetwalk.dev/internal/packet"
	"packetwalk.dev/internal/walk"
)

// story is one outcome as it is told: what mattered on each machine, and why the destination sees the address that it sees.
type story struct {
	number  int // from 1, in the order of the walk's outcomes
	outcome *walk.Outcome
	there   []block
	back    []block
	sources []translation // of the request's source address, in order
	kept    []string      // rules that decided against translating it
	local   string        // the rule that led to the node's own endpoints alone, past the mark for masquerade
	stopped *refusal      // by which rule the request's way ended
}

// block is a machine on the way.
type block struct {
	host  string
	lines []line
}

// line is one thing that happened there.
type line struct {
	label, text string
	owner       string // whose rule or address it is
	// shape is equal for lines that differ only in which endpoint or node it was.
	shape string
	bad   bool // the packet ended, or nobody can tell
}

// translation is a rule's, or a binding's, change of an address.
type translation struct {
	host     string
	ref      string // "nat KUBE-POSTROUTING 3"; "" for a binding
	does     string // "MASQUERADE"
	why      string
	field    string // "source" or "destination"
	from, to string
	mark     *marking // that made the rule apply
}

// marking is who marked the packet.
type marking struct {
	bits     uint32
	ref, why string
}

// refusal is the rule that ended a packet's way.
type refusal struct{ ref, does, why string }

// words is the refusal with its reason.
func (r *refusal) words() string { return r.ref + ": " + r.does + paren(r.why) }

// paren is " (s)", or nothing.
func paren(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func stories(r *walk.Result, o *Owners) []*story {
	all := make([]*story, len(r.Outcomes))
	for i := range r.Outcomes {
		all[i] = tell(&r.Outcomes[i], i+1, o)
	}
	return all
}

// teller goes through the steps of one way and keeps what later ones refer to.
type teller struct {
	*reasoner
	story   *story
	choices []walk.Chosen // not yet met
	host    string
	mark    *marking                             // that the packet carries on this machine
	last    *walk.Step                           // the rule before, on this machine
	bridge  *walk.BridgeStep                     // the last decision of a bridge on this machine
	visits  map[*netfilter.Rule]*netfilter.Visit // on this machine
}

func tell(out *walk.Outcome, number int, o *Owners) *story {
	s := &story{number: number, outcome: out}
	t := &teller{reasoner: newReasoner(o), story: s, choices: out.Choices}
	s.there = rounds(t.blocks(out.There, false))
	t.conclude()
	s.back = rounds(t.blocks(out.Back, true))
	return s
}

// rounds leaves out what a packet that goes in a circle goes through again and again.
func rounds(blocks []block) []block {
	const longest = 8
	for i := range blocks {
		for size := 1; size <= longest; size++ {
			n := 0
			for j := i + size; j+size <= len(blocks) && sameBlocks(blocks[i:i+size], blocks[j:j+size]); j += size {
				n++
			}
			if n < 2 {
				continue
			}
			again := line{label: "again", text: fmt.Sprintf("the last %d machines, %d more times", size, n), shape: "again", bad: true}
			last := block{blocks[i+size-1].host, append(slices.Clone(blocks[i+size-1].lines), again)}
			rest := rounds(blocks[i+size*(n+1):])
			return append(append(slices.Clone(blocks[:i+size-1]), last), rest...)
		}
	}
	return blocks
}

func sameBlocks(a, b []block) bool {
	return slices.EqualFunc(a, b, func(x, y block) bool { return x.host == y.host && slices.Equal(x.lines, y.lines) })
}

func (t *teller) blocks(steps []walk.Step, reply bool) []block {
	var blocks []block
	t.host = ""
	for i := range steps {
		st := &steps[i]
		if st.Host != t.host || len(blocks) == 0 {
			blocks = append(blocks, block{host: st.Host})
			t.host, t.mark, t.last, t.bridge = st.Host, nil, nil, nil
			t.visits = map[*netfilter.Rule]*netfilter.Visit{}
		}
		b := &blocks[len(blocks)-1]
		b.lines = append(b.lines, t.step(st, reply)...)
	}
	return blocks
}

func (t *teller) step(st *walk.Step, reply bool) []line {
	switch st.Stage {
	case walk.Received:
		return []line{{label: "in", text: outside(st.Packet.In, st.Packet.BridgeIn), shape: "in"}}
	case walk.Bridged:
		t.bridge = st.Bridge
	case walk.Copy:
		return t.copied(st)
	case walk.Transmit:
		return []line{{label: "out", text: t.outside(&st.Packet), shape: "out"}}
	case walk.Ruled:
		return t.ruled(st, reply)
	case walk.Translated:
		return t.translated(st, reply)
	case walk.Routed:
		return t.routed(st)
	case walk.Tracked:
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

// copied tells of a copy of the packet in one line: where it came from and how it ended. One that no rule looked at and that the host passes over tells nothing.
func (t *teller) copied(st *walk.Step) []line {
	c := st.Copied
	l := line{label: "copy", text: fmt.Sprintf("%s: %s", st.Why, cmp.Or(c.End.Why, string(c.End.Kind))), shape: "copy"}
	looked := c.End.Kind != walk.Dropped
	for i := range c.Steps {
		v := c.Steps[i].Visit
		looked = looked || v != nil && v.Rule != nil
		if v != nil && v.Verdict.Kind == netfilter.Drop {
			l.owner = t.why(v, &c.Steps[i].Packet)
		}
	}
	if !looked {
		return nil
	}
	return []line{l}
}

// outside is an interface with its bridge port.
func outside(link, port string) string {
	if link == "" && port == "" {
		return "an interface that is not known"
	}
	if port == "" || port == link {
		return link
	}
	return link + ", port " + port
}

// outside is the interface that a packet leaves by, with the bridge that chose it.
func (t *teller) outside(p *packet.Packet) string {
	if b := t.bridge; b != nil && b.Bridge != p.Out && slices.Contains(b.Ports, p.Out) {
		return p.Out + ", port of " + b.Bridge
	}
	return outside(p.Out, p.BridgeOut)
}

// target tells whether a jump to the chain is a decision worth telling: for a service, an endpoint, a rule of the load balancer.
func target(c *netfilter.Chain) bool {
	switch r, _ := chainRole(c); r {
	case clusterRole, localRole, externalRole, endpointRole:
		return true
	}
	return c != nil && c.Table != nil && c.Table.Name == "azure" && !strings.HasPrefix(c.Name, "nsg")
}

// ruled tells of a rule if it mattered.
func (t *teller) ruled(st *walk.Step, reply bool) []line {
	v := st.Visit
	t.see(v)
	choice := t.choice(v)
	why := t.why(v, &st.Packet)
	caller := t.last
	t.last = st
	if v.Rule != nil {
		t.visits[v.Rule] = v
	} else if st.Hook == netfilter.Postrouting && natChain(v.Chain) && !reply {
		t.story.kept = append(t.story.kept, t.passed(v.Chain, &st.Packet)...)
	}
	lines := t.changes(st, changesOf(st), caller, why, choice, reply)
	ref := reference(v)
	shape := "rule " + shapeOf(v)
	switch k := v.Verdict.Kind; {
	case k == netfilter.Drop || k == netfilter.Reject || k == netfilter.Stolen || k == netfilter.Undecided:
		stop := &refusal{ref, doesOr(v), why}
		if !reply {
			t.story.stopped = stop
		}
		label := map[netfilter.VerdictKind]string{
			netfilter.Drop: "drop", netfilter.Reject: "reject", netfilter.Stolen: "taken", netfilter.Undecided: "unknown",
		}[k]
		text := stop.ref + ": " + stop.does
		if v.Verdict.Detail != "" && !strings.Contains(text, v.Verdict.Detail) {
			text += ": " + v.Verdict.Detail
		}
		return append(lines, line{label: label, text: text + choice, owner: why, shape: shape, bad: true})
	case len(lines) > 0:
		return lines
	case (k == netfilter.Jump || k == netfilter.Goto) && target(v.Verdict.Chain):
		if r, _ := chainRole(v.Verdict.Chain); r == localRole && !reply {
			t.story.local = ref + " → " + v.Verdict.Chain.Name + paren(why)
		}
		return []line{{label: "rule", text: ref + " → " + v.Verdict.Chain.Name + choice, owner: why, shape: shape}}
	case k == netfilter.Break && choice == "":
		return nil
	case k == netfilter.Return && securityGroup(v.Chain) != "":
		return []line{{label: "nsg", text: why + "  by " + ref, shape: shape}}
	case choice != "":
		return []line{{label: "choice", text: ref + ": " + short(v.Rule) + choice, owner: why, shape: shape}}
	case st.Hook == netfilter.Postrouting && natChain(v.Chain) && v.Rule != nil && (k == netfilter.Return || k == netfilter.Accept) && !reply:
		text := ref + ": " + short(v.Rule)
		if sourceNAT.MatchString(v.Rule.Text) {
			text = ref + ": " + targetOf(v) + " gives it the address that it has" // a masquerade of the machine's own packet
		}
		t.story.kept = append(t.story.kept, text+paren(why))
	}
	return nil
}

// passed are the rules of a chain, and of those that it led to, that would have translated the packet's source and did not apply. Rules for
// other sources, and Azure's own, tell nothing.
func (t *teller) passed(c *netfilter.Chain, p *packet.Packet) []string {
	if c.Table == nil || c.Table.Name == "azure" || c.Table.Family == netfilter.Bridge {
		return nil
	}
	var rules []string
	for i := range c.Rules {
		r := &c.Rules[i]
		switch v := t.visits[r]; {
		case v != nil && v.Verdict.Kind == netfilter.Return:
			return rules
		case v != nil && v.Verdict.Chain != nil && v.Verdict.Kind != netfilter.Break:
			rules = append(rules, t.passed(v.Verdict.Chain, p)...)
			if v.Verdict.Kind == netfilter.Goto {
				return rules
			}
		case (v == nil || v.Verdict.Kind == netfilter.Break) && sourceNAT.MatchString(r.Text) && !otherSource(r, p):
			v = &netfilter.Visit{Chain: c, Rule: r, Verdict: netfilter.Verdict{Kind: netfilter.Break}}
			rules = append(rules, reference(v)+" does not apply"+paren(cmp.Or(t.why(v, p), short(r))))
		}
	}
	return rules
}

var (
	sourceNAT  = regexp.MustCompile(`-j (?:MASQUERADE|SNAT|NETMAP)\b|\b(?:masquerade|snat)\b`)
	fromSource = regexp.MustCompile(`(?:^|[^!] )-s (\S+)|(?:^| )saddr ([0-9a-f.:]+(?:/[0-9]+)?) `)
)

// otherSource tells of rules for a source that is not the packet's.
func otherSource(r *netfilter.Rule, p *packet.Packet) bool {
	m := fromSource.FindStringSubmatch(r.Text)
	if m == nil {
		return false
	}
	text := cmp.Or(m[1], m[2])
	if a, err := netip.ParseAddr(text); err == nil {
		return a != p.Source
	}
	prefix, err := netip.ParsePrefix(text)
	return err == nil && !prefix.Contains(p.Source)
}

// doesOr is what the rule does, or for the end of a chain its policy.
func doesOr(v *netfilter.Visit) string {
	if v.Rule == nil {
		return strings.ToUpper(v.Verdict.Kind.String())
	}
	return does(v.Rule)
}

// targetOf is the rule's target without its options: those of a translation show in what it did.
func targetOf(v *netfilter.Visit) string {
	if v.Rule != nil && effect.MatchString(short(v.Rule)) {
		name, _, _ := strings.Cut(does(v.Rule), " ")
		return name
	}
	return doesOr(v)
}

// natChain tells whether a chain translates: it stands in a table "nat", or it is a base chain of type nat.
func natChain(c *netfilter.Chain) bool {
	return c.Table != nil && c.Table.Name == "nat" || c.Base != nil && c.Base.Type == "nat"
}

// reference is "nat KUBE-SERVICES 4", or "bridge nat PREROUTING 2".
func reference(v *netfilter.Visit) string { return ruleRef(v.Chain, v.Rule) }

// ruleRef names the family where the table's name would be taken for that of an IP table.
func ruleRef(c *netfilter.Chain, r *netfilter.Rule) string {
	if f := c.Table.Family; f == netfilter.Bridge || f == netfilter.ARP || f == netfilter.Netdev {
		return f.String() + " " + c.Ref(r)
	}
	return c.Ref(r)
}

// shapeOf names a rule without what differs between endpoints.
func shapeOf(v *netfilter.Visit) string {
	r, prefix := chainRole(v.Chain)
	if r == endpointRole && v.Rule != nil {
		return prefix + strconv.Itoa(v.Rule.Number)
	}
	if to, p := chainRole(v.Verdict.Chain); to == endpointRole {
		return v.Chain.Name + " to " + p
	}
	return reference(v)
}

// changes tells what a rule changed.
func (t *teller) changes(st *walk.Step, changes []packet.Change, caller *walk.Step, why, choice string, reply bool) []line {
	var lines []line
	v := st.Visit
	ref := reference(v)
	for _, c := range changes {
		l := line{text: fmt.Sprintf("%s → %s  by %s", c.From, c.To, ref), owner: why, shape: c.Field + " " + shapeOf(v)}
		switch c.Field {
		case "source", "destination":
			tr := translation{host: st.Host, ref: ref, does: targetOf(v), why: why, field: c.Field, from: c.From, to: c.To}
			if asks(v) {
				tr.mark = t.mark
			}
			t.note(&tr, reply)
			l.label, l.text = natLabel(c.Field), l.text+": "+tr.does+choice
		case "mark", "connmark":
			l.label = map[string]string{"mark": "mark", "connmark": "ctmark"}[c.Field]
			set := t.marked(c, v, caller, why)
			if set == nil {
				continue // taking a mark away decides nothing
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
func (t *teller) marked(c packet.Change, v *netfilter.Visit, caller *walk.Step, why string) *marking {
	from, _ := strconv.ParseUint(c.From, 0, 32)
	to, _ := strconv.ParseUint(c.To, 0, 32)
	if to&^from == 0 {
		return nil
	}
	m := &marking{bits: uint32(to &^ from), ref: reference(v), why: why}
	if r, _ := chainRole(v.Chain); (r == markRole || r == dropRole) && caller != nil && caller.Visit.Verdict.Chain == v.Chain {
		m.ref, m.why = reference(caller.Visit), t.why(caller.Visit, &caller.Packet)
	}
	t.mark = m
	return m
}

// asks tells whether the mark decided that the rule applies: it tests it, or a rule before it in the same chain does.
func asks(v *netfilter.Visit) bool {
	if v.Rule == nil {
		return false
	}
	if asksMark(v.Rule) {
		return true
	}
	if v.Chain.Base != nil {
		return false
	}
	for i := range v.Chain.Rules {
		if r := &v.Chain.Rules[i]; r.Number < v.Rule.Number && asksMark(r) {
			return true
		}
	}
	return false
}

func (t *teller) note(tr *translation, reply bool) {
	if !reply && tr.field == "source" {
		t.story.sources = append(t.story.sources, *tr)
	}
}

func natLabel(field string) string {
	if field == "source" {
		return "snat"
	}
	return "dnat"
}

// translated tells of a change by a binding: one that a rule of this walk has just asked for, or one of an earlier packet.
func (t *teller) translated(st *walk.Step, reply bool) []line {
	var lines []line
	for _, c := range st.Changes {
		if c.Field != "source" && c.Field != "destination" {
			continue
		}
		tr := translation{host: st.Host, does: "the flow's binding", why: st.Why, field: c.Field, from: c.From, to: c.To}
		if t.last != nil && natChain(t.last.Visit.Chain) && t.last.Hook == st.Hook && t.last.Visit.Verdict.Kind == netfilter.Accept && !reply {
			v := t.last.Visit
			tr.ref, tr.does, tr.why = reference(v), targetOf(v), t.why(v, &st.Packet)
			if asks(v) {
				tr.mark = t.mark
			}
		}
		t.note(&tr, reply)
		l := line{label: natLabel(c.Field), text: c.From + " → " + c.To + "  by " + tr.does, shape: "binding " + c.Field}
		if tr.ref != "" {
			l.text, l.owner = c.From+" → "+c.To+"  by "+tr.ref+": "+tr.does, tr.why
		}
		lines = append(lines, l)
	}
	return lines
}

// choice tells which way a rule's choices went, "" where it made none.
func (t *teller) choice(v *netfilter.Visit) string {
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
		t.choices = append(append([]walk.Chosen(nil), t.choices[:i]...), t.choices[i+1:]...)
		if v.Verdict.Kind == netfilter.Break && (c.Kind == netfilter.Random || c.Kind == netfilter.Hash || c.Kind == netfilter.Counter) {
			continue // the rule that took the packet instead is told
		}
		text += "  " + chosen(&c)
	}
	return text
}

// chosen is a choice's answer in words.
func chosen(c *walk.Chosen) string {
	if c.Answer < 0 || c.Answer >= len(c.Options) {
		return ""
	}
	label := c.Options[c.Answer].Label
	share := weight(c)
	if share == nil {
		if c.Kind == netfilter.Unknown {
			return fmt.Sprintf("[not known: %s; taken here: %s]", c.What, label)
		}
		return fmt.Sprintf("[depends on what was before: %s; taken here: %s]", c.What, label)
	}
	how := map[netfilter.ChoiceKind]string{netfilter.Random: "at random", netfilter.Hash: "by a hash of the flow", netfilter.Counter: "in turn"}[c.Kind]
	return fmt.Sprintf("[%s of the flows, %s]", share.RatString(), how)
}

func (t *teller) routed(st *walk.Step) []line {
	text := routeText(st.Route)
	if st.Route != nil && st.Route.Unknown != "" {
		text += "  [not known: " + st.Route.Unknown + "]"
	}
	for i, c := range t.choices {
		if c.Rule == nil && c.Host == t.host {
			text += "  " + chosen(&c)
			t.choices = append(append([]walk.Chosen(nil), t.choices[:i]...), t.choices[i+1:]...)
			break
		}
	}
	return []line{{label: "route", text: text, shape: "route"}}
}

// routeText is "via 10.0.0.1 dev eth0 (main: 10.0.0.0/8)".
func routeText(a *fib.Answer) string {
	if a == nil {
		return "not known"
	}
	var text string
	switch {
	case a.Type == "none":
		return "none fits: network is unreachable"
	case a.Type == "local":
		text = "to the machine itself"
	case a.Type != "unicast" && a.Type != "":
		text = a.Type
	case a.Gateway.IsValid():
		text = "via " + a.Gateway.String() + " dev " + a.Link
	default:
		text = "dev " + a.Link
	}
	if a.Route == nil {
		return text
	}
	destination := a.Route.Destination.String()
	if a.Route.Destination.IsValid() && a.Route.Destination.Bits() == 0 {
		destination = "default"
	}
	text += fmt.Sprintf(" (table %s: %s)", tableName(a.Route.Table), destination)
	if r := a.Rule; r != nil && a.Route.Table != fib.TableMain && a.Route.Table != fib.TableLocal {
		text += fmt.Sprintf(", by policy rule %d%s", r.Priority, policyTests(r))
	}
	return text
}

func policyTests(r *fib.Rule) string {
	var tests []string
	if r.Mask != 0 || r.Mark != 0 {
		tests = append(tests, fmt.Sprintf("fwmark %#x", r.Mark))
	}
	if r.From.IsValid() {
		tests = append(tests, "from "+r.From.String())
	}
	if r.In != "" {
		tests = append(tests, "iif "+r.In)
	}
	if len(tests) == 0 {
		return ""
	}
	return ": " + strings.Join(tests, " ")
}

func tableName(n int) string {
	switch n {
	case fib.TableLocal:
		return "local"
	case fib.TableMain, 0:
		return "main"
	case fib.TableDefault:
		return "default"
	}
	return strconv.Itoa(n)
}

func changed(changes []packet.Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.Field+" "+c.From+" → "+c.To)
	}
	return strings.Join(all, ", ")
}

// conclude adds how the request's way ended to its last block.
func (t *teller) conclude() {
	s, end := t.story, &t.story.outcome.End
	if len(s.there) == 0 {
		s.there = []block{{host: end.Host}}
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
		l.text = "leaves what is known here" + paren(end.Why)
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

// start is the packet as it was sent.
func (s *story) start() packet.Packet {
	if len(s.outcome.There) == 0 {
		return s.outcome.End.Packet
	}
	return s.outcome.There[0].Packet
}

// sees is the sentence that the walk is for: which source address the destination sees, and the rule that decided.
func (s *story) sees() string {
	end := &s.outcome.End
	switch end.Kind {
	case walk.Delivered, walk.Left:
		return s.seen() + s.aftermath()
	case walk.Undecided:
		return "nobody can tell whether the destination sees it: " + s.ended()
	case walk.Looped:
		return "the destination sees nothing: the packet goes round on " + hostName(end.Host) + ": " + s.ended()
	}
	if s.stopped != nil {
		return fmt.Sprintf("the destination sees nothing: %s on %s by %s", end.Kind, hostName(end.Host), s.ended())
	}
	return fmt.Sprintf("the destination sees nothing: %s on %s: %s", end.Kind, hostName(end.Host), s.ended())
}

func (s *story) ended() string {
	if s.stopped != nil {
		return s.stopped.words()
	}
	return cmp.Or(s.outcome.End.Why, "a reason that is not known")
}

// aftermath adds what keeps the request or its answer from doing any good.
func (s *story) aftermath() string {
	end, back := &s.outcome.End, s.outcome.BackEnd
	var more string
	if end.Kind == walk.Left {
		more = "; what is beyond " + hostName(end.Host) + " is not known"
	}
	if end.Refused {
		more += "; nothing listens on " + end.Packet.DestinationEnd()
	}
	if back != nil && back.Refused {
		more += "; " + back.Why
	}
	if back != nil && back.Kind != walk.Delivered && back.Kind != walk.Left {
		more += fmt.Sprintf("; the reply does not arrive: %s on %s: %s", back.Kind, hostName(back.Host), cmp.Or(back.Why, "see above"))
	}
	return more
}

func (s *story) seen() string {
	end := &s.outcome.End
	source := end.Packet.SourceEnd()
	if n := len(s.sources); !known(end.Packet.Source) && n > 0 {
		source = "an address of " + hostName(s.sources[n-1].host) + " (which one is not known here)"
	}
	if len(s.sources) == 0 {
		start := s.start()
		whose := "the sender's own address, " + source + ","
		if start.Source.IsValid() && start.Source != end.Packet.Source {
			whose = source // changed by something that is not a translation
		}
		return "the destination sees " + whose + " because no rule translates it" + s.reasonsToKeep()
	}
	var by []string
	for i := range s.sources {
		by = append(by, s.sources[i].because(len(s.sources) > 1))
	}
	return "the destination sees " + source + ", because " + strings.Join(by, ", then ")
}

// known tells whether an address is one: a masquerade by a machine whose addresses are not known gives none.
func known(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() }

// reasonsToKeep names the rules that decided against a translation; the last ones are the most telling.
func (s *story) reasonsToKeep() string {
	const most = 3
	kept := unique(s.kept)
	kept = kept[max(0, len(kept)-most):]
	if s.local != "" {
		kept = append([]string{s.local}, kept...)
	}
	if len(kept) == 0 {
		return ""
	}
	return ": " + strings.Join(kept, "; ")
}

func unique(all []string) []string {
	var one []string
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			one = append(one, s)
		}
	}
	return one
}

// because is "nat KUBE-POSTROUTING 3: MASQUERADE (mark 0x4000, set by nat KUBE-EXT-… 1: default/whereami, externalTrafficPolicy Cluster)".
func (tr *translation) because(withHost bool) string {
	text := tr.does
	if tr.ref == "" {
		text = "of " + text
	} else {
		text = tr.ref + ": " + tr.does
	}
	if withHost {
		text = "on " + hostName(tr.host) + " " + text
	}
	if tr.mark == nil {
		return text + paren(tr.why)
	}
	set := "set by " + tr.mark.ref
	if tr.mark.why != "" {
		set += ": " + tr.mark.why
	}
	return text + fmt.Sprintf(" (mark %#x, %s)", tr.mark.bits, set)
}

// address stands for any address with a port in a shape.
var address = regexp.MustCompile(`\[?[0-9a-f.:]*[.:][0-9a-f.:]+\]?(:[0-9-]+)?`)

// shape is equal for outcomes that differ only in the endpoint and in the nodes on the way.
func (s *story) shape() string {
	var b strings.Builder
	hosts := map[string]string{}
	name := func(host string) string {
		if _, ok := hosts[host]; !ok {
			kind, _, _ := strings.Cut(host, "/")
			hosts[host] = fmt.Sprintf("%s%d", kind, len(hosts))
		}
		return hosts[host]
	}
	for _, blocks := range [][]block{s.there, s.back} {
		for _, bl := range blocks {
			b.WriteString("\n" + name(bl.host))
			for _, l := range bl.lines {
				b.WriteString("|" + l.shape)
			}
		}
		b.WriteString("\n--")
	}
	for _, tr := range s.sources {
		fmt.Fprintf(&b, "\n%s %s", name(tr.host), address.ReplaceAllString(tr.ref, ""))
		if tr.mark != nil {
			b.WriteString(" mark")
		}
	}
	fmt.Fprintf(&b, "\n%s %v", s.outcome.End.Kind, s.outcome.End.Refused)
	if s.outcome.BackEnd != nil {
		fmt.Fprintf(&b, " %s", s.outcome.BackEnd.Kind)
	}
	return b.String()
}
