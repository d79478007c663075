//go:build linux

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/drops"
	"packetwalk.dev/internal/mcpserver"
	"packetwalk.dev/internal/session"
)

// addLabTools adds the tools about a lab that runs.
func addLabTools(server *mcpserver.Server, root *cobra.Command, name string) {
	mcpserver.Add(server, mcpserver.Tool{
		Name: "status", Title: "What runs in the lab, and what is broken",
		Description: "Shows what runs in the lab and what is broken: 'packetwalk status'. The exit status is 1 if anything is.",
	}, inputErrors(func(ctx context.Context, _ struct{}) (*mcpserver.Answer, error) { return labStatus(ctx, root, name) }))
	mcpserver.Add(server, mcpserver.Tool{
		Name: "drops", Title: "Which rule drops packets now",
		Description: fmt.Sprintf("Watches the packets that the kernel drops in the lab for some seconds, and names the rule or check that drops each flow: "+
			"'packetwalk drops'. It sends nothing: have the traffic run meanwhile. At most %d seconds.", mostDropSeconds),
	}, inputErrors(func(ctx context.Context, in dropsArguments) (*mcpserver.Answer, error) {
		return watchDrops(ctx, name, in)
	}))
}

// labStatus returns a lab's status without the token of its Azure, which no answer needs.
func labStatus(ctx context.Context, root *cobra.Command, name string) (*mcpserver.Answer, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	st, err := readStatus(ctx, root, name, "json")
	if err != nil {
		return nil, err
	}
	if st.Azure != nil {
		azure := *st.Azure
		azure.Token = ""
		st.Azure = &azure
	}
	tables := st
	tables.Problems, tables.Ready = nil, false // they stand before the tables, and no line says that all is well
	var text, document bytes.Buffer
	if err := errors.Join(printStatus(&text, screen{}, tables, ""), printStatus(&document, screen{}, st, "json")); err != nil {
		return nil, err
	}
	a := &mcpserver.Answer{Meaning: "nothing is broken", Document: document.Bytes(), Shorten: "it is left out, and the text has the tables"}
	if n := len(st.Problems); n > 0 {
		a.ExitStatus, a.Meaning = mcpserver.StatusFailure, fmt.Sprintf("%d problems", n)
	}
	a.Text = lines(st.Problems) + text.String()
	return a, ctx.Err()
}

// mostDropSeconds limits how long drops are watched.
const mostDropSeconds = 60

// dropsArguments holds the flags of 'packetwalk drops'.
type dropsArguments struct {
	Seconds int      `json:"seconds,omitempty" jsonschema:"how long to watch, 1 to 60 (default 10)"`
	Hosts   []string `json:"hosts,omitempty" jsonschema:"only these hosts"`
	From    string   `json:"from,omitempty" jsonschema:"only packets of this END: an address, or a pod, node, VM or internet host"`
	To      string   `json:"to,omitempty" jsonschema:"only packets to this END, which may have a port"`
	Proto   string   `json:"proto,omitempty" jsonschema:"only tcp, udp or icmp"`
}

// dropsDoc has the lines of 'packetwalk drops -o json', one for each flow.
type dropsDoc struct {
	Drops []dropDoc `json:"drops"`
	Notes []string  `json:"notes,omitempty"`
}

func watchDrops(ctx context.Context, name string, in dropsArguments) (*mcpserver.Answer, error) {
	seconds := cmp.Or(in.Seconds, 10)
	if seconds < 1 || seconds > mostDropSeconds {
		return nil, badInput{fmt.Errorf("seconds: want a number from 1 to %d", mostDropSeconds)}
	}
	o := dropsOptions{name: name, hosts: in.Hosts, from: in.From, to: in.To, proto: in.Proto, output: "json", during: time.Duration(seconds) * time.Second}
	d := dropsDoc{Drops: []dropDoc{}}
	var text strings.Builder
	var notes bytes.Buffer
	err := o.watch(ctx, Streams{Out: &notes, Err: &notes}, func(*session.DropWatch, []*drops.Flow) error { return nil }, func(all []*drops.Flow) error {
		slices.SortFunc(all, func(a, b *drops.Flow) int { return cmp.Or(cmp.Compare(b.Count, a.Count), a.First.Compare(b.First)) })
		printer := dropsPrinter{out: &text, form: "text", headed: true}
		for _, f := range all {
			d.Drops = append(d.Drops, newDropDoc(f))
			if err := printer.line(f); err != nil {
				return err
			}
		}
		return nil
	})
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return nil, err
	}
	for line := range strings.Lines(notes.String()) {
		d.Notes = append(d.Notes, strings.TrimSpace(line))
	}
	document, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	return &mcpserver.Answer{
		Meaning: fmt.Sprintf("%d flows had packets dropped within %d s", len(d.Drops), seconds), Text: text.String() + lines(d.Notes), Document: document,
		Shorten: "it is left out; choose by from, to or hosts",
	}, nil
}
