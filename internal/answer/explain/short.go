package explain

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/walk"
)

// Short writes one line for each outcome: how likely it is, the machines on the way with what they translate, and the end.
func Short(w io.Writer, r *walk.Result, o Options) error {
	w, done := o.named(termsafe.Writer(w))
	defer done()
	b := bufio.NewWriter(w)
	p := &page{Writer: b, o: &o}
	if o.Query != nil {
		fmt.Fprintln(p, p.paint(plain, o.Query.Text()))
	}
	if r == nil {
		return b.Flush()
	}
	p.total = o.total(r)
	for _, s := range o.explanations(r) {
		line := s.short()
		if p.total > 1 {
			line = s.numbered(p.total)
		}
		fmt.Fprintln(p, p.paint(plain, line))
	}
	return b.Flush()
}

// short returns an outcome in one line: "internet client → load balancer → node n1, SNAT 10.240.0.4 → pod shop/web-1".
func (s *explanation) short() string {
	end := &s.outcome.End
	text := strings.Join(shortened(s.machines), " → ")
	switch {
	case end.Kind == walk.Delivered && end.Refused:
		text += ": refused, nothing listens on " + end.Packet.DestinationEnd()
	case end.Kind == walk.Left && end.Forwarder != "":
		text += " → " + end.Forwarder
	case end.Kind == walk.Left:
		text += ": leaves the known network"
	case end.Kind == walk.Undecided:
		return text + ": outcome unknown: " + s.ended()
	case end.Kind == walk.Delivered && len(s.machines) == 1:
		text += ": delivered to " + end.Packet.DestinationEnd()
	case end.Kind != walk.Delivered:
		return text + ": " + string(end.Kind) + ": " + s.ended()
	}
	return strings.Join(append([]string{text}, s.replyFaults()...), "; ")
}

// machines returns the machines on the request's way, each with what it translates. Routers of a lab or of Azure that only forward are left
// out. A machine that a load balancer's rule is on bears that name.
func (t *reasoner) machines(out *walk.Outcome) []string {
	var machines []string
	for i := 0; i < len(out.There); {
		first, host := i, out.There[i].Host
		name, words := hostName(host), []string(nil)
		isPlain := !strings.Contains(host, "/")
		for ; i < len(out.There) && out.There[i].Host == host; i++ {
			st := &out.There[i]
			if v := st.Visit; v != nil && t.role(v.Chain) == attribution.LoadBalancer {
				name, isPlain = "load balancer", false
			}
			words = append(words, t.translations(st, &out.End)...)
		}
		if isPlain && len(words) == 0 && first > 0 && i < len(out.There) {
			continue
		}
		machines = append(machines, strings.Join(append([]string{name}, words...), ", "))
	}
	if n := len(out.There); n == 0 || out.There[n-1].Host != out.End.Host {
		machines = append(machines, hostName(out.End.Host))
	}
	return machines
}

// translations returns the addresses that a step gives the packet: "SNAT 10.240.0.4". A destination that is the pod, or the container group,
// at which the packet ends goes without saying.
func (t *reasoner) translations(st *walk.Step, end *walk.End) []string {
	var words []string
	for _, c := range changesOf(st) {
		if st.Stage != walk.Ruled && st.Stage != walk.Translated {
			continue
		}
		switch p := &st.Packet; c.Field {
		case "source":
			words = append(words, "SNAT "+knownAddress(p.Source.String(), known(p.Source)))
		case "destination":
			kind, _, _ := strings.Cut(end.Host, "/")
			if (kind == "pod" || kind == "container-group") && end.Kind == walk.Delivered && p.Destination == end.Packet.Destination {
				continue
			}
			words = append(words, "DNAT "+knownAddress(p.DestinationEnd(), known(p.Destination))+
				paren(t.owners.name(p.Destination, p.Protocol, p.DestinationPort)))
		}
	}
	return words
}

func knownAddress(text string, isKnown bool) string {
	if !isKnown {
		return "to an unknown address"
	}
	return text
}

// shortened leaves out the middle of a way whose packet goes round.
func shortened(machines []string) []string {
	const most = 12
	if len(machines) <= most {
		return machines
	}
	between := fmt.Sprintf("… %d more …", len(machines)-most)
	return slices.Concat(machines[:most-2], []string{between}, machines[len(machines)-2:])
}

// ConclusionDoc holds what some outcomes have in common as their conclusion.
type ConclusionDoc struct {
	Outcomes []int  `json:"outcomes"` // their numbers
	Share    string `json:"share"`    // "probability 1/3 each"
	Text     string `json:"text"`
	// Conditions are those that all of them have.
	Conditions []string `json:"conditions,omitempty"`
}

// GroupDoc holds outcomes that differ only in what is named.
type GroupDoc struct {
	Outcomes []int  `json:"outcomes"`
	Share    string `json:"share"`
	Differs  string `json:"differs,omitempty"` // "the nodes on the way and the last hop"; absent of one outcome
}

// conclusionDocs returns each sentence that concludes an outcome once, in the order of the outcomes.
func conclusionDocs(all []*explanation) []ConclusionDoc {
	var sentences []string
	by := map[string][]*explanation{}
	for _, s := range all {
		sentence := s.summary().sentence
		if by[sentence] == nil {
			sentences = append(sentences, sentence)
		}
		by[sentence] = append(by[sentence], s)
	}
	docs := []ConclusionDoc{}
	for _, sentence := range sentences {
		g := by[sentence]
		d := ConclusionDoc{Outcomes: numbersOf(g), Share: odds(g), Text: sentence}
		choices := taken(g)
		d.Conditions = g[0].summary().given(choices).words()
		for _, s := range g[1:] {
			others := s.summary().given(choices).words()
			d.Conditions = slices.DeleteFunc(d.Conditions, func(c string) bool { return !slices.Contains(others, c) })
		}
		docs = append(docs, d)
	}
	return docs
}

// headline returns the conclusions as one sentence.
func headline(conclusions []ConclusionDoc) string {
	const most = 3
	if len(conclusions) == 1 {
		return conclusions[0].Text
	}
	var parts []string
	for _, c := range conclusions[:min(most, len(conclusions))] {
		parts = append(parts, fmt.Sprintf("%s (%s): %s", ranges(c.Outcomes), c.Share, c.Text))
	}
	if more := len(conclusions) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func groupDocs(all []*explanation) []GroupDoc {
	docs := []GroupDoc{}
	for _, g := range groups(all) {
		d := GroupDoc{Outcomes: numbersOf(g), Share: odds(g)}
		if len(g) > 1 {
			d.Differs = differences(g)
		}
		docs = append(docs, d)
	}
	return docs
}

func numbersOf(g []*explanation) []int {
	var numbers []int
	for _, s := range g {
		numbers = append(numbers, s.number)
	}
	return numbers
}
