package explain

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/termsafe"
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
			line = fmt.Sprintf("%d of %d (%s): %s", s.number, p.total, odds([]*explanation{s}), line)
		}
		fmt.Fprintln(p, p.paint(plain, line))
	}
	return b.Flush()
}

// short returns an outcome in one line: "internet client → fabric → node n1, DNAT 10.244.0.6:80 → pod shop/web-1".
func (s *explanation) short() string {
	var machines []string
	steps := s.outcome.There
	for i := 0; i < len(steps); {
		host, words := steps[i].Host, []string{hostName(steps[i].Host)}
		for ; i < len(steps) && steps[i].Host == host; i++ {
			words = append(words, translations(&steps[i])...)
		}
		machines = append(machines, strings.Join(words, ", "))
	}
	end := &s.outcome.End
	if len(machines) == 0 {
		machines = []string{hostName(end.Host)}
	}
	text := strings.Join(shortened(machines), " → ")
	switch {
	case end.Kind == walk.Delivered && end.Refused:
		return text + ": refused, nothing listens on " + end.Packet.DestinationEnd()
	case end.Kind == walk.Delivered:
		return text
	case end.Kind == walk.Left && end.Forwarder != "":
		return text + " → " + end.Forwarder
	case end.Kind == walk.Left:
		return text + ": leaves the known network"
	case end.Kind == walk.Undecided:
		return text + ": outcome unknown: " + s.ended()
	}
	return text + ": " + string(end.Kind) + ": " + s.ended()
}

// translations returns the addresses that a step gives the packet: "SNAT 10.240.0.4".
func translations(st *walk.Step) []string {
	var words []string
	for _, c := range changesOf(st) {
		if st.Stage != walk.Ruled && st.Stage != walk.Translated {
			continue
		}
		switch p := &st.Packet; c.Field {
		case "source":
			words = append(words, "SNAT "+knownAddress(p.Source.String(), known(p.Source)))
		case "destination":
			words = append(words, "DNAT "+knownAddress(p.DestinationEnd(), known(p.Destination)))
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
	Differs  string `json:"differs,omitempty"` // "the last hop and the nodes on the way"; absent of one outcome
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
