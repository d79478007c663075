package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/picture"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/webui"
)

func uiCommand(s Streams) *cobra.Command {
	var o walkOptions
	var port int
	c := &cobra.Command{
		Use:   "ui [--name LAB | --snapshot FILE] [--port N]",
		Short: "serve a page that shows the network, and the way of packets through it",
		Long: `Serves a page on 127.0.0.1 that shows the network as boxes and wires. It walks packets as 'packetwalk walk' does, and plays their way step by step
with the rule that decided each step. Of a lab, it can also send one real packet, after it asked. It needs the token in the printed address, and
ends with Ctrl-C.`,
		Example: `  packetwalk ui
  packetwalk ui --snapshot cluster.pwcap.tar.gz --port 8080`,
		Args: noArguments("it shows the lab of --name, or the file of --snapshot"),
		RunE: func(c *cobra.Command, _ []string) error { return serveUI(c.Context(), s, o, port) },
	}
	f := c.Flags()
	f.StringVar(&o.snapshot, "snapshot", "", "show a capture, or a text with rules, in place of the lab")
	f.StringVar(&o.names, "map", "", "with --snapshot: a file by 'capture --redact --map', whose names and addresses the capture gets back")
	boundedCount(f, &port, "port", 0, 0, 65535, "the port of the page (0 for one that is free)")
	nameFlag(c, &o.name)
	o.azure.flag(f)
	return c
}

func pluginUICommand(s Streams, plugin *pluginOptions) *cobra.Command {
	o := walkOptions{plugin: plugin}
	var port int
	c := &cobra.Command{
		Use:   "ui [--port N]",
		Short: "serve a page that shows the cluster's network, and the way of packets through it",
		Long: `Serves a page on 127.0.0.1 that shows the cluster's nodes and pods. It walks packets as 'kubectl packetwalk walk' does: a walk starts a short-lived pod
on each node that the packet reaches, and removes it. It can also send one real packet, after it asked. The page needs the token in the printed address, and ends with Ctrl-C.`,
		Example: `  kubectl packetwalk ui --port 8080`,
		Args:    noArguments("it shows the cluster of the kubeconfig file"),
		RunE:    func(c *cobra.Command, _ []string) error { return serveUI(c.Context(), s, o, port) },
	}
	boundedCount(c.Flags(), &o.most, "max-nodes", mostNodes, 1, 5000, "how many nodes are read at most for one walk")
	boundedCount(c.Flags(), &port, "port", 0, 0, 65535, "the port of the page (0 for one that is free)")
	o.azure.flag(c.Flags())
	return c
}

// serveUI serves the page until ctx ends.
func serveUI(ctx context.Context, s Streams, o walkOptions, port int) (err error) {
	page := &pageSubject{subject: subject{walk: o, streams: s}}
	if o.snapshot != "" { // it stays as it is: read it once
		if o.snapshot == "-" {
			return badInput{errors.New("ui --snapshot - has no name for its commands; write the capture to a file")}
		}
		if page.file, err = o.open(ctx, s, &endpoint.End{}, &endpoint.End{}); err != nil {
			return err
		}
		defer func() { err = closeSession(context.WithoutCancel(ctx), s, page.file, err) }()
		if err := o.azure.extend(ctx, s, page.file); err != nil {
			return err
		}
	} else if _, err := page.Network(ctx, nil); err != nil { // say at once what is wrong
		return err
	}
	listener, err := webui.Listen(port)
	if err != nil {
		return fmt.Errorf("%w; leave out --port for one that is free", err)
	}
	server := webui.NewServer(page, listener.Addr())
	fmt.Fprintf(s.Out, "open %s\n", server.URL())
	printNotes(s, "the address has a token: whoever has it can read this network. Ctrl-C ends the page")
	if err := server.Serve(ctx, listener); err != nil {
		return err
	}
	return nil
}

// pageSubject answers the page's questions as 'packetwalk walk' does.
type pageSubject struct {
	subject

	mu       sync.Mutex
	previous *picture.Picture // what stays keeps its place

	reading  sync.Mutex // of machines
	machines []read     // the last ones that were read
}

// read holds a machine that was read.
type read struct {
	id      string
	machine *webui.Machine
}

// mostMachines limits the machines of a lab or cluster whose states are kept for pages of rules.
const mostMachines = 4

// Network implements webui.Subject.
func (p *pageSubject) Network(ctx context.Context, open []string) (*webui.Network, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.walk
	opened, done, err := p.openNetwork(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer done()
	n := webui.NewNetwork(picture.New(opened.Source(), picture.Options{Open: open, Previous: p.previous, Status: boxStatus(opened.Lab)}))
	p.previous = n.Picture
	n.Ends = slices.Compact(slices.Sorted(slices.Values(endsOf(opened))))
	n.Subject, n.Flags = p.shown()
	n.Live, n.Sends = opened.Lab != nil, p.sends()
	for _, note := range opened.Notes {
		n.Notes = append(n.Notes, termsafe.Text(note))
	}
	return n, nil
}

// Machine implements webui.Subject.
func (p *pageSubject) Machine(ctx context.Context, id string, r webui.Reading) (*webui.Machine, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	i := slices.IndexFunc(p.machines, func(m read) bool { return m.id == id })
	if i >= 0 && (p.file != nil || r.Version == p.machines[i].machine.Version) {
		return p.machines[i].machine, nil
	}
	m, err := p.readMachine(ctx, id, r.Start)
	if err != nil {
		return nil, err
	}
	if m.Version = 1; i >= 0 {
		m.Version = p.machines[i].machine.Version + 1
		p.machines = slices.Delete(p.machines, i, i+1)
	} else if len(p.machines) == mostMachines {
		p.machines = p.machines[1:]
	}
	p.machines = append(p.machines, read{id, m})
	return m, nil
}

// sends says what a live packet does; "" where none can be sent.
func (p *pageSubject) sends() string {
	switch {
	case p.file != nil:
		return ""
	case p.walk.plugin != nil:
		return "This starts a short-lived pod on each node of the way, sends one real packet from the sender's network namespace, and traces it in the " +
			"nodes' kernels. A tcp packet opens a connection and closes it. The receiving program may log it."
	}
	return "This sends one real packet from the sender's network namespace in the lab, and traces it in this machine's kernel. " +
		"A tcp packet opens a connection and closes it. The receiving program may log it."
}

// boxStatus returns what a lab knows of boxes at this moment: back ends whose probes succeed, and SNAT ports in use.
func boxStatus(lab session.Lab) map[string]picture.Status {
	if lab == nil {
		return nil
	}
	all := map[string]picture.Status{}
	fewest := map[string]session.Frontend{}
	for _, f := range lab.Frontends() {
		s := all[f.Address]
		s.Facts = append(s.Facts, picture.Fact{Name: fmt.Sprintf("probes of port %d", f.Port), Value: fmt.Sprintf("%d of %d succeed", f.Healthy, f.Total)})
		for _, machine := range slices.Sorted(maps.Keys(f.Probed)) {
			s.Facts = append(s.Facts, picture.Fact{Name: "probe fails", Value: termsafe.Text(machine) + " at " + f.Probed[machine].String()})
		}
		if before, ok := fewest[f.Address]; !ok || f.Healthy*before.Total < before.Healthy*f.Total {
			fewest[f.Address] = f
			s.Text, s.Alert = fmt.Sprintf("probe %d/%d", f.Healthy, f.Total), f.Healthy == 0 && f.Total > 0
		}
		all[f.Address] = s
	}
	for _, o := range lab.Outbound() {
		s := picture.Status{Text: fmt.Sprintf("SNAT %d", o.InUse), Alert: o.Percent >= 80}
		s.Facts = append(s.Facts, picture.Fact{Name: "SNAT ports", Value: fmt.Sprintf("%d of %d in use", o.InUse, o.Ports)})
		if o.Fullest != "" {
			s.Facts = append(s.Facts, picture.Fact{Name: "most towards", Value: fmt.Sprintf("%s, %d %% of the ports", termsafe.Text(o.Fullest), o.Percent)})
		}
		all["node/"+o.Node] = s
	}
	return all
}

// shown names what is shown, and the flags with which a command walks through it.
func (p *pageSubject) shown() (name string, flags []string) {
	switch o := &p.walk; {
	case o.plugin != nil:
		return "cluster", nil
	case o.snapshot != "":
		return termsafe.Text(filepath.Base(o.snapshot)), []string{"--snapshot", o.snapshot}
	case o.name != "":
		return "lab " + o.name, []string{"--name", o.name}
	}
	return "lab", nil
}

// Answer implements webui.Subject.
func (p *pageSubject) Answer(ctx context.Context, q webui.Question, open []string) (*webui.Answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.walk
	o.from, o.to, o.proto, o.at, o.owner, o.output, o.live = q.From, q.To, q.Proto, q.At, q.UID, "text", q.Live
	var answer *webui.Answer
	err := p.ask(ctx, o, func(opened *session.Session, a *walkAnswer) (err error) {
		a.question.Live = q.Live
		answer, err = a.picture(picture.Options{Open: open, Previous: p.previous, Status: boxStatus(opened.Lab)})
		return err
	})
	if err != nil {
		return nil, questionError(err)
	}
	p.previous = answer.Picture
	return answer, nil
}

// questionError marks an error that the user can mend by another question.
func questionError(err error) error {
	if isInput(err) {
		return &webui.QuestionError{Err: err}
	}
	return err
}
