package webui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/picture"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

const apiVersion = "packetwalk.dev/v1alpha1"

// Question holds what a walk is asked, as the flags of 'packetwalk walk' have it.
type Question struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Proto string `json:"proto,omitempty"`
	At    string `json:"at,omitempty"`
	UID   string `json:"uid,omitempty"`
	// Live has the packet sent, and the walk compared with the kernel's trace.
	Live bool `json:"live,omitempty"`
}

// Network is a network as a picture, with the names that walks can be asked about.
type Network struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Subject    string           `json:"subject"`         // what is shown: "lab default", or a file's name
	Live       bool             `json:"live,omitempty"`  // it changes
	Sends      string           `json:"sends,omitempty"` // what sending a packet does; "" where none can be sent
	Flags      []string         `json:"flags,omitempty"` // of commands that walk through it
	Ends       []string         `json:"ends"`
	Notes      []string         `json:"notes,omitempty"`
	Picture    *picture.Picture `json:"picture"`
}

// NewNetwork returns the document of a picture.
func NewNetwork(p *picture.Picture) *Network {
	return &Network{APIVersion: apiVersion, Kind: "Network", Ends: []string{}, Picture: p}
}

// Answer is a walk with the picture that it goes through.
type Answer struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Question   Question         `json:"question"`
	Picture    *picture.Picture `json:"picture"`
	Ways       []OutcomeWay     `json:"ways"` // one for each outcome
	Walk       json.RawMessage  `json:"walk"` // as 'packetwalk walk -o json' prints it
	Text       string           `json:"text"` // as 'packetwalk walk' prints it
	Kernel     *Kernel          `json:"kernel,omitempty"`

	document explain.Document
}

// OutcomeWay is the way of an outcome through the picture. A stop belongs to the entry of results, or reply, with its index.
type OutcomeWay struct {
	There picture.Way  `json:"there"`
	Back  *picture.Way `json:"back,omitempty"`
}

// Kernel says how far the walk and the kernel agree on a packet that was sent.
type Kernel struct {
	Steps    int         `json:"steps"` // that were compared
	Agreed   int         `json:"agreed"`
	Complete bool        `json:"complete"`          // every step was compared and agrees
	Summary  string      `json:"summary"`           // in words
	Agree    []string    `json:"agree"`             // hosts at which everything was compared and agrees
	First    *Difference `json:"first,omitempty"`   // the first step where they part
	NotSent  string      `json:"notSent,omitempty"` // why no packet was sent
}

// Difference is a step where walk and kernel part.
type Difference struct {
	Node      string `json:"node"`
	Reply     bool   `json:"reply,omitempty"`
	Predicted string `json:"predicted"`
	Observed  string `json:"observed"`
}

// kernelOf returns what the kernel showed; nil where no packet was to be sent.
func kernelOf(r *proof.Report) *Kernel {
	if r == nil {
		return nil
	}
	k := &Kernel{Steps: r.Steps, Agreed: r.Agreed, Complete: r.Complete(), Agree: []string{}, NotSent: termsafe.Text(r.NotSent)}
	k.Summary, _, _ = strings.Cut(r.String(), "\n")
	k.Summary = termsafe.Text(k.Summary)
	for _, host := range r.Shown {
		k.Agree = append(k.Agree, termsafe.Text(host))
	}
	if d := r.First; d != nil {
		k.First = &Difference{Node: termsafe.Text(d.Host), Reply: d.Back, Predicted: termsafe.Text(d.Predicted), Observed: termsafe.Text(d.Observed)}
	}
	return k
}

// NewAnswer puts an answer together.
func NewAnswer(q Question, p *picture.Picture, source snapshot.Source, r *walk.Result, o explain.Options) (*Answer, error) {
	a := &Answer{APIVersion: apiVersion, Kind: "Answer", Question: q, Picture: p, Ways: []OutcomeWay{}, Kernel: kernelOf(o.Report)}
	o.Colour, o.Width = false, 0
	var text, document bytes.Buffer
	if err := explain.Text(&text, r, o); err != nil {
		return nil, err
	}
	shown := r
	if every := everyRule(source, r, o); every != nil {
		shown, o.Neighbours = every, true
	}
	if err := explain.JSON(termsafe.Writer(&document), shown, o); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(document.Bytes(), &a.document); err != nil {
		return nil, fmt.Errorf("read the walk's JSON: %w", err)
	}
	a.Text = text.String()
	for i := range a.document.Outcomes {
		out := &a.document.Outcomes[i]
		way := OutcomeWay{There: p.Way(hosts(out.Results))}
		if len(out.Reply) > 0 {
			back := p.Way(hosts(out.Reply))
			way.Back = &back
		}
		a.Ways = append(a.Ways, way)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, document.Bytes()); err != nil {
		return nil, err
	}
	a.Walk = compact.Bytes()
	return a, nil
}

// everyRule walks again and notes the rules that did not apply, too. It returns nil where the outcomes are not the same: the chains are
// too long, the result holds a part of the outcomes, or it was corrected by what a kernel showed.
func everyRule(source snapshot.Source, r *walk.Result, o explain.Options) *walk.Result {
	if r == nil || o.Live != nil || o.Numbers != nil {
		return nil
	}
	request := r.Request
	request.EveryRule = true
	every, err := walk.Walk(source, request)
	if err != nil || every.More != r.More || len(every.Outcomes) != len(r.Outcomes) {
		return nil
	}
	return every
}

func hosts(results []explain.NodeDoc) []string {
	all := make([]string, len(results))
	for i := range results {
		all[i] = results[i].Node
	}
	return all
}

// SVG writes the picture with the way of the first outcome.
func (a *Answer) SVG(w io.Writer) error {
	d := &a.document
	caption := picture.Caption{Title: fmt.Sprintf("%s %s → %s", d.Packet.Protocol, a.Question.From, a.Question.To), Answer: d.Headline}
	way := picture.Way{}
	if len(a.Ways) > 0 {
		way = a.Ways[0].There
		for i := range d.Outcomes[0].Results {
			if changes := translations(&d.Outcomes[0].Results[i]); len(changes) > 0 {
				caption.Notes = append(caption.Notes, d.Outcomes[0].Results[i].Node+": "+strings.Join(changes, ", "))
			}
		}
		if n := len(d.Outcomes); n > 1 {
			caption.Title += fmt.Sprintf("   (way 1 of %d)", n)
		}
	}
	return a.Picture.SVG(w, way, caption)
}

// translations returns the addresses that a machine gives the packet.
func translations(n *explain.NodeDoc) []string {
	var all []string
	for i := range n.Observations {
		switch o := &n.Observations[i]; {
		case o.TranslatedDstIP != "":
			all = append(all, "DNAT "+o.TranslatedDstIP)
		case o.TranslatedSrcIP != "":
			all = append(all, "SNAT "+o.TranslatedSrcIP)
		}
	}
	return all
}
