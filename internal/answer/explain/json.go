package explain

import (
	"cmp"
	"encoding/json"
	"io"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// apiVersion and kind are those of the JSON document; docs/walk-json.md describes its fields. Within one apiVersion fields are added, never
// renamed or removed.
const (
	apiVersion = "packetwalk.dev/v1alpha1"
	kind       = "Walk"
)

// Document is a walk as JSON. Its results and observations follow the status of Antrea's Traceflow (crd.antrea.io/v1beta1), whose names
// keep their meaning here; what Antrea has no name for has one of its own.
type Document struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Packet     PacketDoc `json:"packet"` // as it was sent; empty where its name was not resolved
	// Headline says in one sentence what the destination sees. Conclusions has its parts, and Groups the outcomes by what they differ in.
	Headline    string          `json:"headline"`
	Conclusions []ConclusionDoc `json:"conclusions"`
	Groups      []GroupDoc      `json:"groups"`
	Outcomes    []OutcomeDoc    `json:"outcomes"`
	More        bool            `json:"more,omitempty"` // there are more outcomes than these
	Assumed     []AssumedDoc    `json:"assumed,omitempty"`
	Notes       []string        `json:"notes,omitempty"`
	Lines       []LinesDoc      `json:"lines,omitempty"` // the account of a text
	Query       *QueryDoc       `json:"query,omitempty"` // by which the sender looks the destination up
}

// LinesDoc is the fate of consecutive lines of a text that have the same.
type LinesDoc struct {
	From int    `json:"from"` // from 1
	To   int    `json:"to"`
	Fate string `json:"fate"`         // "read", "without effect", "not read"
	As   string `json:"as,omitempty"` // what they were read as, or why they have no effect or were not read
}

// AssumedDoc is something that was not known.
type AssumedDoc struct {
	Node      string `json:"node,omitempty"`
	Component string `json:"component,omitempty"` // NetworkPolicy; absent where it is about no single one
	What      string `json:"what"`
}

// PacketDoc is a packet at one place.
type PacketDoc struct {
	Protocol    string `json:"protocol"`
	SrcIP       string `json:"srcIP,omitempty"`
	SrcPort     string `json:"srcPort,omitempty"` // "40000", or "1024-65535" where the kernel picks one
	DstIP       string `json:"dstIP,omitempty"`
	DstPort     string `json:"dstPort,omitempty"`
	Source      *Owner `json:"source,omitempty"`
	Destination *Owner `json:"destination,omitempty"`
}

func (d *PacketDoc) source() string { return endOf(d.SrcIP, d.SrcPort) }

func (d *PacketDoc) destination() string { return endOf(d.DstIP, d.DstPort) }

// endOf returns an address with its port, "?" for one that is unknown.
func endOf(ip, port string) string {
	if port == "" {
		return cmp.Or(ip, "?")
	}
	return net.JoinHostPort(cmp.Or(ip, "?"), port)
}

// OutcomeDoc is one way that the packet can go.
type OutcomeDoc struct {
	Number int `json:"number"`
	// Probability is exact, "1/2"; absent where a choice has no known weights.
	Probability string `json:"probability,omitempty"`
	// ProbabilityDecimal is the nearest float64.
	ProbabilityDecimal *float64    `json:"probabilityDecimal,omitempty"`
	Short              string      `json:"short"` // the outcome in one line
	Choices            []ChoiceDoc `json:"choices,omitempty"`
	Results            []NodeDoc   `json:"results"`
	End                EndDoc      `json:"end"`
	Sees               SummaryDoc  `json:"sees"`
	Reply              []NodeDoc   `json:"reply,omitempty"`
	ReplyEnd           *EndDoc     `json:"replyEnd,omitempty"`
	// Unshown are the parts of nodes' states that the packet met and that are not shown, or not all of them: what the outcome says holds as
	// far as the rest shows. ReplyUnshown are those that the reply met.
	Unshown      []MissingStateDoc `json:"unshown,omitempty"`
	ReplyUnshown []MissingStateDoc `json:"replyUnshown,omitempty"`
	// UnreadLines are lines of a text that were not read and may change the outcome.
	UnreadLines []int `json:"unreadLines,omitempty"`
}

// MissingStateDoc is a part of a node's state, or a chain of which not all rules are shown.
type MissingStateDoc struct {
	Node   string `json:"node"`
	Part   string `json:"part,omitempty"`   // "routes", "nftables rules", …; absent for a chain
	Family string `json:"family,omitempty"` // of the chain's table: "ip", "ip6", …
	Table  string `json:"table,omitempty"`
	Chain  string `json:"chain,omitempty"`
}

// ChoiceDoc is a choice that this outcome took.
type ChoiceDoc struct {
	Node               string   `json:"node"`
	Kind               string   `json:"kind"` // "random", "hash", "counter", "history", "unknown"
	Rule               string   `json:"rule,omitempty"`
	What               string   `json:"what"`
	Options            []string `json:"options"`
	Answer             int      `json:"answer"` // index into options
	Probability        string   `json:"probability,omitempty"`
	ProbabilityDecimal *float64 `json:"probabilityDecimal,omitempty"`
}

// NodeDoc is one machine on the way.
type NodeDoc struct {
	Node         string        `json:"node"`                // "node/NAME", "pod/NAMESPACE/NAME", "fabric", …
	Timestamp    int64         `json:"timestamp,omitempty"` // of the state that was walked, in seconds since 1970
	Observations []Observation `json:"observations"`
}

// Observation is one step.
type Observation struct {
	Component       string `json:"component"`               // Forwarding, Routing, LB, Egress, NetworkPolicy, Conntrack
	ComponentInfo   string `json:"componentInfo,omitempty"` // which rule, route or interface
	Action          string `json:"action"`                  // Sent, Received, Forwarded, Delivered, Dropped, Rejected, MarkedForSNAT, …
	Pod             string `json:"pod,omitempty"`           // NAMESPACE/NAME, where the node is one
	DstMAC          string `json:"dstMAC,omitempty"`
	TTL             int    `json:"ttl,omitempty"`
	TranslatedSrcIP string `json:"translatedSrcIP,omitempty"`
	TranslatedDstIP string `json:"translatedDstIP,omitempty"`

	Stage   string        `json:"stage"`          // what kind of step it is: "sent", "received", "rule", "routed", …
	Hook    string        `json:"hook,omitempty"` // "prerouting", …
	Rule    *RuleDoc      `json:"rule,omitempty"`
	Owner   string        `json:"owner,omitempty"`  // whose rule it is and why it is there
	Writer  string        `json:"writer,omitempty"` // who writes such rules; docs/dev/rules.md has their files
	Changes []ChangeDoc   `json:"changes,omitempty"`
	Why     string        `json:"why,omitempty"`
	In      string        `json:"in,omitempty"`
	Out     string        `json:"out,omitempty"`
	Packet  PacketDoc     `json:"packet"` // after the step
	Mark    uint32        `json:"mark,omitempty"`
	Copy    []Observation `json:"copy,omitempty"` // the way of a copy, where the stage is "copied"
}

// RuleDoc is a rule that was evaluated; number 0 is a chain's policy.
type RuleDoc struct {
	Family  string `json:"family"`
	Table   string `json:"table"`
	Chain   string `json:"chain"`
	Number  int    `json:"number"`
	Handle  uint64 `json:"handle,omitempty"`
	Text    string `json:"text,omitempty"`
	Verdict string `json:"verdict,omitempty"` // "accept", "drop", "jump", …; "break" where it did not apply
	Target  string `json:"target,omitempty"`
	Failed  string `json:"failed,omitempty"` // the test that did not hold
	// Before are the last rules of the chain that were evaluated before this one and did not apply; Unmatched counts all of these. After
	// are the rules behind this one, without a verdict. Only the picture of a walk has them.
	Before    []RuleDoc `json:"before,omitempty"`
	Unmatched int       `json:"unmatched,omitempty"`
	After     []RuleDoc `json:"after,omitempty"`
}

// ChangeDoc is one thing that a step changed.
type ChangeDoc struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// EndDoc is how a packet's way ended.
type EndDoc struct {
	Kind     string    `json:"kind"` // "delivered", "left", "dropped", "rejected", "unknown", "loop"
	Node     string    `json:"node"`
	Packet   PacketDoc `json:"packet"`
	Why      string    `json:"why,omitempty"`
	Listener string    `json:"listener,omitempty"`
	Refused  bool      `json:"refused,omitempty"`
	// Disguise says which programs may show the receiving process another source or destination.
	Disguise string `json:"disguise,omitempty"`
	// Forwarder is the machine outside the snapshot that gets the packet and forwards it (left) or drops it: "appliance 10.13.200.4".
	Forwarder string `json:"forwarder,omitempty"`
}

// SummaryDoc is what the destination sees, or what a forwarder before it sees.
type SummaryDoc struct {
	By           string           `json:"by,omitempty"`    // the forwarder; absent for the destination
	SrcIP        string           `json:"srcIP,omitempty"` // absent when it sees nothing
	SrcPort      string           `json:"srcPort,omitempty"`
	Translated   bool             `json:"translated"`
	Seen         string           `json:"seen,omitempty"`         // the host where a packet was seen with this source, which the walk does not explain
	Translations []TranslationDoc `json:"translations,omitempty"` // of the source, in order
	Text         string           `json:"text"`                   // the last sentence of the text output
	// the list below it: which rules decided, what keeps the answer from arriving
	Conditions []string `json:"conditions,omitempty"`
}

// TranslationDoc is one translation of the source address.
type TranslationDoc struct {
	Node  string `json:"node"`
	Rule  string `json:"rule,omitempty"` // "nat KUBE-POSTROUTING 3"; absent for a binding that was there before
	From  string `json:"from"`
	To    string `json:"to"`
	Owner string `json:"owner,omitempty"`
	// MarkedBy is the rule that set the mark that made this rule apply.
	Mark      uint32 `json:"mark,omitempty"`
	MarkedBy  string `json:"markedBy,omitempty"`
	MarkOwner string `json:"markOwner,omitempty"`
}

// JSON writes a walk as a Document.
func JSON(w io.Writer, r *walk.Result, o Options) error {
	w, done := o.named(w)
	defer done()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(newDocument(r, o))
}

// newDocument makes the JSON form of a walk.
func newDocument(r *walk.Result, o Options) Document {
	d := Document{APIVersion: apiVersion, Kind: kind, Notes: o.Notes, Conclusions: []ConclusionDoc{}, Groups: []GroupDoc{}, Outcomes: []OutcomeDoc{}}
	if o.Query != nil {
		d.Query = o.Query.doc()
	}
	if r == nil {
		d.Headline = o.Query.Text()
		return d
	}
	d.More = r.More
	all := o.explanations(r)
	d.Conclusions, d.Groups = conclusionDocs(all), groupDocs(all)
	d.Headline = headline(d.Conclusions)
	for i, s := range all {
		if i == 0 {
			start := s.start()
			d.Packet = packetDoc(&start, o.Owners)
		}
		d.Outcomes = append(d.Outcomes, s.doc(o))
	}
	for i, l := range o.Lines {
		one := LinesDoc{From: i + 1, To: i + 1, Fate: [...]string{"read", "without effect", "not read"}[l.Fate], As: l.As}
		if last := len(d.Lines) - 1; last >= 0 && d.Lines[last].Fate == one.Fate && d.Lines[last].As == one.As {
			d.Lines[last].To = one.To
			continue
		}
		d.Lines = append(d.Lines, one)
	}
	for _, a := range slices.Concat(r.Assumed, o.Read) {
		d.Assumed = append(d.Assumed, AssumedDoc{a.Host, a.Component, a.What})
	}
	return d
}

func (s *explanation) doc(o Options) OutcomeDoc {
	out := s.outcome
	d := OutcomeDoc{
		Number: s.number, Short: s.short(), Results: nodeDocs(out.There, o), End: endDoc(&out.End, o.Owners), Reply: nodeDocs(out.Back, o), Sees: s.summaryDoc(),
	}
	d.Probability, d.ProbabilityDecimal = probability(out.Probability)
	d.UnreadLines = out.Unread
	d.Unshown, d.ReplyUnshown = unshownDocs(out.Unshown), unshownDocs(out.BackUnshown)
	for i := range out.Choices {
		d.Choices = append(d.Choices, choiceDoc(&out.Choices[i]))
	}
	if out.BackEnd != nil {
		e := endDoc(out.BackEnd, o.Owners)
		d.ReplyEnd = &e
	}
	return d
}

func unshownDocs(all []walk.MissingState) []MissingStateDoc {
	var docs []MissingStateDoc
	for _, u := range all {
		d := MissingStateDoc{Node: u.Host, Part: string(u.Part)}
		if c := u.Chain; c != nil {
			d.Family, d.Table, d.Chain = c.Table.Family.String(), c.Table.Name, c.Name
		}
		docs = append(docs, d)
	}
	return docs
}

func choiceDoc(c *walk.Decision) ChoiceDoc {
	d := ChoiceDoc{Node: c.Host, Kind: c.Kind.String(), What: c.What, Answer: c.Answer, Options: []string{}}
	if c.Chain != nil {
		d.Rule = ruleRef(c.Chain, c.Rule)
	}
	for _, o := range c.Options {
		d.Options = append(d.Options, o.Label)
	}
	d.Probability, d.ProbabilityDecimal = probability(weight(c))
	return d
}

// probability returns a probability as a fraction and as a decimal number; neither where it is not known.
func probability(p *big.Rat) (fraction string, decimal *float64) {
	if p == nil {
		return "", nil
	}
	nearest, _ := p.Float64()
	return p.RatString(), &nearest
}

// weight returns a choice's probability; nil where it is not known.
func weight(c *walk.Decision) *big.Rat {
	var sum uint64
	for _, o := range c.Options {
		sum += o.Weight
	}
	if sum == 0 || c.Answer < 0 || c.Answer >= len(c.Options) {
		return nil
	}
	n := new(big.Int).SetUint64(c.Options[c.Answer].Weight)
	return new(big.Rat).SetFrac(n, new(big.Int).SetUint64(sum))
}

func (s *explanation) summaryDoc() SummaryDoc {
	a := s.summary()
	d := SummaryDoc{Translated: len(s.sources) > 0, Text: a.sentence, Conditions: a.words()}
	switch end, l := &s.outcome.End, s.live; {
	case l.decides(s.outcome) && !l.requestHolds(s.outcome):
		d = SummaryDoc{Seen: l.Receiver, Text: d.Text, Conditions: d.Conditions}
		if l.Receiver != "" {
			p := packetDoc(&packet.Packet{Tuple: l.Received}, nil)
			d.SrcIP, d.SrcPort = p.SrcIP, p.SrcPort
		}
		return d
	case end.Kind == walk.Delivered || end.Kind == walk.Left:
		p := packetDoc(&packet.Packet{Tuple: l.source(end)}, nil)
		d.SrcIP, d.SrcPort, d.By = p.SrcIP, p.SrcPort, end.Forwarder
	}
	for _, t := range s.sources {
		one := TranslationDoc{Node: t.host, Rule: t.ref, From: t.from, To: t.to, Owner: t.why}
		if t.mark != nil {
			one.Mark, one.MarkedBy, one.MarkOwner = t.mark.bits, t.mark.ref, t.mark.why
		}
		d.Translations = append(d.Translations, one)
	}
	return d
}

func packetDoc(p *packet.Packet, o *Owners) PacketDoc {
	d := PacketDoc{Protocol: p.Protocol.String()}
	if p.Frame.ARP != nil {
		return PacketDoc{Protocol: "arp", SrcIP: p.Frame.ARP.Sender.String(), DstIP: p.Frame.ARP.Target.String()}
	}
	if known(p.Source) {
		d.SrcIP = p.Source.String()
	}
	if known(p.Destination) {
		d.DstIP = p.Destination.String()
	}
	if p.Protocol.HasPorts() {
		d.SrcPort, d.DstPort = p.SourcePort.String(), p.DestinationPort.String()
	}
	if owner, ok := o.Address(p.Source, p.Protocol, p.SourcePort.Number); ok {
		d.Source = &owner
	}
	if owner, ok := o.Address(p.Destination, p.Protocol, p.DestinationPort.Number); ok {
		d.Destination = &owner
	}
	return d
}

func endDoc(e *walk.End, o *Owners) EndDoc {
	return EndDoc{Kind: string(e.Kind), Node: e.Host, Packet: packetDoc(&e.Packet, o), Why: e.Why, Listener: e.Listener, Refused: e.Refused,
		Disguise: e.Disguise, Forwarder: e.Forwarder}
}

// nodeDocs groups steps by machine.
func nodeDocs(steps []walk.Step, o Options) []NodeDoc {
	nodes := []NodeDoc{}
	why := newReasoner(o.Owners)
	near := neighbours{}
	for i := range steps {
		st := &steps[i]
		if o.Neighbours && near.hold(st) {
			continue
		}
		if len(nodes) == 0 || nodes[len(nodes)-1].Node != st.Host {
			nodes = append(nodes, NodeDoc{Node: st.Host, Timestamp: timestamp(o.Time)})
		}
		n := &nodes[len(nodes)-1]
		ob := observe(st, why, o.Owners)
		if o.Neighbours && ob.Rule != nil {
			near.add(ob.Rule, st.Visit)
		}
		n.Observations = append(n.Observations, ob)
	}
	return nodes
}

func timestamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func observe(st *walk.Step, why *reasoner, owners *Owners) Observation {
	p := &st.Packet
	ob := Observation{
		Stage: string(st.Stage), Hook: st.Hook.String(), Why: st.Why, Packet: packetDoc(p, owners), Mark: p.Mark,
		In: cmp.Or(p.BridgeIn, p.In), Out: cmp.Or(p.BridgeOut, p.Out),
	}
	if !p.SomeTTL {
		ob.TTL = int(p.TTL)
	}
	if pod, ok := strings.CutPrefix(st.Host, "pod/"); ok {
		ob.Pod = pod
	}
	if !p.Frame.Destination.IsZero() {
		ob.DstMAC = p.Frame.Destination.String()
	}
	for _, c := range changesOf(st) {
		ob.Changes = append(ob.Changes, ChangeDoc(c))
		switch c.Field {
		case "source":
			ob.TranslatedSrcIP = ipOf(p.Source)
		case "destination":
			ob.TranslatedDstIP = ipOf(p.Destination)
		}
	}
	ob.Component, ob.Action = why.component(st)
	switch st.Stage {
	case walk.Ruled:
		r := why.reason(st.Host, st.Visit, p)
		ob.ComponentInfo, ob.Owner, ob.Writer, ob.Rule = reference(st.Visit), r.For, r.Writer, ruleDoc(st.Visit)
	case walk.Routed:
		ob.ComponentInfo = routeText(st.Route)
	case walk.Encapsulated, walk.Decapsulated:
		ob.ComponentInfo = tunnelText(st)
	case walk.Bridged:
		ob.ComponentInfo = bridgeText(st.Bridge)
	case walk.Resolved:
		ob.ComponentInfo = resolveText(st.Resolve)
	case walk.Tracked:
		ob.ComponentInfo = p.Track.State.String()
	case walk.Copy:
		ob.ComponentInfo = ended(&st.Copied.End)
		for i := range st.Copied.Steps {
			ob.Copy = append(ob.Copy, observe(&st.Copied.Steps[i], why, owners))
		}
	}
	return ob
}

func ipOf(a netip.Addr) string {
	if !known(a) {
		return ""
	}
	return a.String()
}

func changesOf(st *walk.Step) []packet.Change {
	if len(st.Changes) == 0 && st.Visit != nil {
		return st.Visit.Changes
	}
	return st.Changes
}

// component gives a step Antrea's words for the part of the data path and for what it did.
func (t *reasoner) component(st *walk.Step) (component, action string) {
	switch st.Stage {
	case walk.Sent:
		return "Forwarding", "Sent"
	case walk.Received:
		return "Forwarding", "Received"
	case walk.Routed:
		if st.Route != nil && st.Route.Type != "unicast" && st.Route.Type != "local" {
			return "Routing", "Dropped"
		}
		return "Routing", "Forwarded"
	case walk.Tracked:
		return "Conntrack", "Forwarded"
	case walk.Translated:
		return "Conntrack", "Translated"
	case walk.Ruled:
		return t.ruleComponent(st)
	case walk.Ended:
		return "Forwarding", "Ended"
	}
	return "Forwarding", "Forwarded"
}

func (t *reasoner) ruleComponent(st *walk.Step) (component, action string) {
	v := st.Visit
	component, action = "NetworkPolicy", "Forwarded"
	for _, c := range changesOf(st) {
		switch c.Field {
		case "source":
			component, action = "Egress", "Translated"
		case "destination":
			component, action = "LB", "Translated"
		case "mark":
			if t.role(v.Chain) == attribution.MasqueradeMark {
				return "Egress", "MarkedForSNAT"
			}
		}
	}
	if t.balances(v.Chain) || t.balances(v.Verdict.Chain) || t.role(v.Chain) == attribution.Dispatch {
		component = "LB"
	} else if action == "Forwarded" && natChain(v.Chain) && st.Hook == netfilter.Postrouting {
		component = "Egress"
	}
	switch v.Verdict.Kind {
	case netfilter.Drop:
		action = "Dropped"
	case netfilter.Reject:
		action = "Rejected"
	case netfilter.Break:
		action = "Skipped"
	case netfilter.Undecided:
		action = "Unknown"
	case netfilter.Stolen:
		action = "Taken"
	}
	return component, action
}

func ruleDoc(v *netfilter.Visit) *RuleDoc {
	d := &RuleDoc{Family: v.Chain.Table.Family.String(), Table: v.Chain.Table.Name, Chain: v.Chain.Name, Verdict: v.Verdict.Kind.String()}
	if v.Rule != nil {
		d.Number, d.Handle, d.Text = v.Rule.Number, v.Rule.Handle, v.Rule.Text
	}
	if v.Verdict.Chain != nil {
		d.Target = v.Verdict.Chain.Name
	}
	if v.Failed != nil {
		d.Failed = v.Failed.String()
	}
	return d
}
