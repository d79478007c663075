//go:build linux

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/drops"
	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/session"
)

// dropsOptions are the flags of drops.
type dropsOptions struct {
	name     string
	hosts    []string // none for all
	from, to string
	proto    string
	output   string
	during   time.Duration // 0 until Ctrl-C
}

func dropsCommand(s Streams) *cobra.Command {
	var o dropsOptions
	c := &cobra.Command{
		Use:   "drops [HOST...] [--from END] [--to END] [--for DURATION] [-o FORMAT]",
		Short: "say which rule drops packets right now",
		Long: `Watches the packets that the kernel drops on the lab's hosts, until Ctrl-C. Each line is a flow: when, how often, the packet, the host and interface, and
the rule, route or check that dropped it. The rule is the one that a walk of the dropped packet meets; where the walk passes, the line says "unexplained".
Packets to multicast groups, and those that sockets throw away without loss, are left out.`,
		Example: `  packetwalk drops
  packetwalk drops node/aks-nodepool1-0 --to vm/vm:80 --for 30s
  packetwalk drops -o json`,
		ValidArgsFunction: completeBy(func(ctx context.Context, _ []string) ([]string, error) {
			opened, err := session.OpenLab(ctx, o.name)
			if err != nil {
				return nil, err
			}
			defer func() { _ = opened.Close(ctx) }()
			return opened.Source().Names(), nil
		}),
		RunE: func(c *cobra.Command, hosts []string) error {
			o.hosts = hosts
			return o.run(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "only packets of this END: an address, or a pod, node, VM or internet host")
	f.StringVar(&o.to, "to", "", "only packets to this END, which may have a port")
	f.StringVar(&o.proto, "proto", "", "only tcp, udp or icmp")
	f.DurationVar(&o.during, "for", 0, "end after this time (default: at Ctrl-C)")
	f.StringVarP(&o.output, "output", "o", "text", "text, wide (with the walk of each packet), or json (a line each)")
	nameFlag(c, &o.name)
	completeFlag(c, "output", "text", "wide", "json")
	completeFlag(c, "proto", "tcp", "udp", "icmp")
	return c
}

// readInterval is how often drops are read.
const readInterval = 250 * time.Millisecond

func (o *dropsOptions) run(ctx context.Context, s Streams) error {
	p := &dropsPrinter{out: termsafe.Writer(s.Out), form: o.output, printed: map[*drops.Flow]bool{}}
	return o.watch(ctx, s, func(w *session.DropWatch, flows []*drops.Flow) error {
		p.owners = w.Owners
		return p.print(flows)
	}, p.end)
}

// watch watches until ctx or the time ends. It calls seen with the flows that had drops since the call before, and end with all.
func (o *dropsOptions) watch(
	ctx context.Context, s Streams, seen func(*session.DropWatch, []*drops.Flow) error, end func([]*drops.Flow) error,
) (err error) {
	filter, err := o.filter()
	if err != nil {
		return badInput{err}
	}
	if err := needRoot(); err != nil {
		return err
	}
	opened, err := session.OpenLab(ctx, o.name)
	if err != nil {
		return err
	}
	defer func() { err = closeSession(context.WithoutCancel(ctx), s, opened, err) }()
	chosen, err := o.chosen(opened)
	if err != nil {
		return badInput{err}
	}
	w, err := opened.WatchDrops(chosen)
	if err != nil {
		return err
	}
	defer w.Close()
	ended := make(<-chan time.Time) // never
	if o.during > 0 {
		ended = time.After(o.during)
	}
	if o.output != "json" {
		printNotes(s, fmt.Sprintf("watching %d network namespaces; Ctrl-C ends it", w.Namespaces()))
	}
	tick := time.NewTicker(readInterval)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
			continue
		case <-ended:
			last = true
		case <-tick.C:
		}
		flows, uncounted, err := w.Read(ctx)
		if err != nil {
			return err
		}
		if uncounted > 0 {
			printNotes(s, fmt.Sprintf("%d packets of other flows were dropped, too: there are more flows than can be counted one by one", uncounted))
		}
		if err := seen(w, slices.DeleteFunc(flows, func(f *drops.Flow) bool { return !filter(f) })); err != nil {
			return err
		}
	}
	return end(slices.DeleteFunc(w.Flows(), func(f *drops.Flow) bool { return !filter(f) }))
}

// chosen returns the full names of the hosts that were asked for; nil for all.
func (o *dropsOptions) chosen(opened *session.Session) (map[string]bool, error) {
	if len(o.hosts) == 0 {
		return nil, nil
	}
	names, err := chooseHosts(opened.Source().Names(), o.hosts)
	if err != nil {
		return nil, err
	}
	chosen := map[string]bool{}
	for _, name := range names {
		chosen[name] = true
	}
	return chosen, nil
}

// filter returns which flows are asked for.
func (o *dropsOptions) filter() (func(*drops.Flow) bool, error) {
	if !slices.Contains([]string{"text", "wide", "json"}, o.output) {
		return nil, fmt.Errorf("unknown output %q; use text, wide or json", o.output)
	}
	var protocol packet.Protocol
	if o.proto != "" {
		var err error
		if protocol, err = packet.ParseProtocol(o.proto); err != nil {
			return nil, err
		}
	}
	from, err := parseDropEnd(o.from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	to, err := parseDropEnd(o.to)
	if err != nil {
		return nil, fmt.Errorf("--to: %w", err)
	}
	return func(f *drops.Flow) bool {
		return (o.proto == "" || f.Protocol == protocol) && isDropEnd(from, &f.From) && isDropEnd(to, &f.To)
	}, nil
}

// parseDropEnd reads an end of the command line; nil for none.
func parseDropEnd(text string) (*endpoint.End, error) {
	if text == "" {
		return nil, nil
	}
	end, err := endpoint.Parse(text)
	if err != nil {
		return nil, err
	}
	switch end.Kind {
	case endpoint.Deployment, endpoint.StatefulSet, endpoint.DaemonSet, endpoint.Job, endpoint.DNSName:
		return nil, fmt.Errorf("%s names no single host; use a pod, a node, a Service or an address", end)
	}
	return &end, nil
}

// isDropEnd reports whether a flow's end is the one that was asked for.
func isDropEnd(asked *endpoint.End, e *drops.End) bool {
	if asked == nil {
		return true
	}
	if asked.Port != 0 && asked.Port != e.Port {
		return false
	}
	if asked.Address.IsValid() {
		return asked.Address == e.Address
	}
	name := asked.Name
	if asked.Kind.Namespaced() {
		name = cmp.Or(asked.Namespace, "default") + "/" + asked.Name
	}
	kind := string(asked.Kind)
	if asked.Kind == endpoint.Service {
		kind = "service"
	}
	return (name == "" || name == e.Owner.Name) && (asked.Kind == endpoint.HostName || kind == e.Owner.Kind)
}

// dropsPrinter writes flows as they come.
type dropsPrinter struct {
	out     io.Writer
	form    string
	owners  func(hosts []string) *explain.Owners
	printed map[*drops.Flow]bool
	headed  bool
}

// dropDoc is a flow as JSON.
type dropDoc struct {
	Time      time.Time `json:"time"` // of the last drop
	Count     uint64    `json:"count"`
	Host      string    `json:"host"`
	Link      string    `json:"link,omitempty"`
	Protocol  string    `json:"protocol"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	Because   string    `json:"because"`
	Advice    string    `json:"advice,omitempty"`
	Kernel    string    `json:"kernel"`
	Rejected  bool      `json:"rejected,omitempty"`
	Explained bool      `json:"explained"`
}

func newDropDoc(f *drops.Flow) dropDoc {
	return dropDoc{
		Time: f.Last.UTC(), Count: f.Count, Host: f.Host, Link: f.Link, Protocol: f.Protocol.String(), From: f.From.String(), To: f.To.String(),
		Because: f.Cause.Text, Advice: f.Cause.Advice, Kernel: f.Cause.Kernel, Rejected: f.Cause.Rejected, Explained: f.Cause.Explained,
	}
}

// print writes the flows that are new, and as JSON those that have more drops, too.
func (p *dropsPrinter) print(flows []*drops.Flow) error {
	slices.SortFunc(flows, func(a, b *drops.Flow) int { return a.First.Compare(b.First) })
	for _, f := range flows {
		known := p.printed[f]
		p.printed[f] = true
		if p.form == "json" {
			if err := json.NewEncoder(p.out).Encode(newDropDoc(f)); err != nil {
				return err
			}
			continue
		}
		if known {
			continue
		}
		if err := p.line(f); err != nil {
			return err
		}
	}
	return nil
}

func (p *dropsPrinter) line(f *drops.Flow) error {
	if !p.headed {
		p.headed = true
		fmt.Fprintln(p.out, "TIME      COUNT  PACKET, HOST AND INTERFACE, REASON")
	}
	_, err := fmt.Fprintf(p.out, "%s  %5d  %s %s → %s  on %s: %s\n", f.Last.Format(time.TimeOnly), f.Count, f.Protocol, f.From, f.To,
		strings.TrimSpace(strings.Replace(f.Host, "/", " ", 1)+" "+f.Link), f.Cause.String())
	if p.form == "wide" && err == nil && f.Cause.Advice != "" {
		_, err = fmt.Fprintf(p.out, "  advice  %s\n", f.Cause.Advice)
	}
	if p.form == "wide" && err == nil && f.Cause.Walk != nil {
		err = explain.Text(p.out, f.Cause.Walk, explain.Options{Owners: p.owners(f.Cause.Walk.Hosts())})
	}
	return err
}

// end writes how often flows were dropped that were dropped again after their line was written.
func (p *dropsPrinter) end(all []*drops.Flow) error {
	if p.form == "json" {
		return nil
	}
	all = slices.DeleteFunc(all, func(f *drops.Flow) bool { return !p.printed[f] })
	if len(all) == 0 {
		_, err := fmt.Fprintln(p.out, "no packet was dropped")
		return err
	}
	slices.SortFunc(all, func(a, b *drops.Flow) int { return cmp.Or(cmp.Compare(b.Count, a.Count), a.First.Compare(b.First)) })
	fmt.Fprintln(p.out, "\nin all:")
	p.headed = false
	for _, f := range all {
		if err := p.line(f); err != nil {
			return err
		}
	}
	return nil
}
