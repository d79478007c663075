package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/ports"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/usercluster"
)

// portsOptions holds the flags of ports.
type portsOptions struct {
	walk   walkOptions // says what is opened
	all    bool        // all nodes of a cluster
	hosts  []string
	output string
	during time.Duration // between two readings; 0 for one reading
}

const portsLong = `Counts the source ports (SNAT ports) that connections use, for each address that a host translates sources to and each destination. A port can be used
once for each of them: if none is left, new connections fail. The counts come from conntrack entries, which hold a port for some time after its
connection has ended. --for reads twice, and says how fast the number grows and when all ports will be in use.
The exit status is 3 if the connections of a host are unknown.`

func portsCommand(s Streams) *cobra.Command {
	var o portsOptions
	c := &cobra.Command{
		Use:   "ports [HOST...] [--name LAB | --snapshot FILE] [--for DURATION] [-o FORMAT]",
		Short: "count the source ports (SNAT ports) in use, by destination and client",
		Long:  portsLong + "\n\nIn a lab, the ports of Azure's load balancer and NAT gateways are those of the host fabric.",
		Example: `  packetwalk ports
  packetwalk ports node/aks-nodepool1-0 --for 10s
  packetwalk ports --snapshot cluster.pwcap.tar.gz -o json`,
		RunE: func(c *cobra.Command, hosts []string) error {
			o.hosts = hosts
			return o.run(c.Context(), s)
		},
	}
	c.Flags().StringVar(&o.walk.snapshot, "snapshot", "", "a capture, or a text with conntrack entries, in place of a lab")
	nameFlag(c, &o.walk.name)
	o.flags(c)
	return c
}

func pluginPortsCommand(s Streams, plugin *pluginOptions) *cobra.Command {
	o := portsOptions{walk: walkOptions{plugin: plugin}}
	c := &cobra.Command{
		Use:   "ports [NODE...] [--all-nodes] [--for DURATION] [-o FORMAT]",
		Short: "count the source ports (SNAT ports) in use on nodes, by destination and client",
		Long:  portsLong + "\n\nThe ports of Azure's load balancer and NAT gateways are not on the nodes: Azure's own metrics have them.",
		Example: `  kubectl packetwalk ports node-1
  kubectl packetwalk ports --all-nodes --for 10s`,
		RunE: func(c *cobra.Command, nodes []string) error {
			if o.all == (len(nodes) > 0) {
				return badInput{errors.New("name the nodes, or --all-nodes")}
			}
			for _, node := range nodes {
				o.hosts = append(o.hosts, "node/"+strings.TrimPrefix(node, "node/"))
			}
			return o.run(c.Context(), s)
		},
		ValidArgsFunction: plugin.complete(func(s *session.Session) []string { return s.Cluster.Nodes() }),
	}
	c.Flags().BoolVar(&o.all, "all-nodes", false, "read all nodes")
	o.flags(c)
	return c
}

func (o *portsOptions) flags(c *cobra.Command) {
	c.Flags().DurationVar(&o.during, "for", 0, "read twice, this long apart, and measure the growth")
	c.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	completeFlag(c, "output", "text", "json")
}

// maxPortsInterval bounds the time between two readings.
const maxPortsInterval = time.Hour

func (o *portsOptions) check() error {
	switch {
	case !slices.Contains([]string{"text", "json"}, o.output):
		return fmt.Errorf("unknown output %q; use text or json", o.output)
	case o.during < 0 || o.during > maxPortsInterval:
		return fmt.Errorf("--for: want a duration up to %s", maxPortsInterval)
	case o.during > 0 && o.walk.snapshot != "":
		return errors.New("--for reads twice, and a file stays the same; leave it out")
	}
	return nil
}

func (o *portsOptions) run(ctx context.Context, s Streams) (err error) {
	if err := o.check(); err != nil {
		return badInput{err}
	}
	if o.walk.plugin != nil {
		o.walk.most = max(len(o.hosts), mostNodes)
	}
	opened, err := o.walk.open(ctx, s, &endpoint.End{}, &endpoint.End{})
	if err != nil {
		return err
	}
	defer func() { err = closeSession(context.WithoutCancel(ctx), s, opened, err) }()
	hosts, err := o.chosen(opened)
	if err != nil {
		return badInput{err}
	}
	if o.walk.plugin != nil && o.walk.plugin.dryRun {
		return o.printPlan(s, hosts)
	}
	uses, unknown := opened.PortUses(ctx, hosts)
	if o.during > 0 {
		began := time.Now()
		if !pause.For(ctx, o.during) {
			return ctx.Err()
		}
		if err := opened.Reread(ctx); err != nil {
			return err
		}
		before, unknownBefore := uses, unknown
		uses, unknown = opened.PortUses(ctx, hosts)
		uses = ports.Grow(before, uses, unknownBefore, time.Since(began))
		maps.Copy(unknown, unknownBefore)
	}
	for _, host := range slices.Sorted(maps.Keys(unknown)) {
		printNotes(s, host+": "+unknown[host])
	}
	owners := opened.OwnersOfAll(opened.Source(), nil)
	if o.output == "json" {
		err = printPortsJSON(s.Out, uses, owners)
	} else {
		err = printPorts(termsafe.Writer(s.Out), uses, owners, o.during > 0)
	}
	if err == nil && len(unknown) > 0 {
		return exitUndecided
	}
	return err
}

// chosen returns the full names of the hosts that were asked for, or of those that translate.
func (o *portsOptions) chosen(opened *session.Session) ([]string, error) {
	switch {
	case o.all:
		for _, node := range opened.Cluster.Nodes() {
			o.hosts = append(o.hosts, "node/"+node)
		}
		o.walk.plugin.pods.Most = max(len(o.hosts), mostNodes)
	case len(o.hosts) == 0:
		return opened.TranslatingHosts(), nil
	}
	return chooseHosts(opened.Source().Names(), o.hosts)
}

// chooseHosts returns the full names of hosts that the user named in full, or without their kind or the namespace default.
func chooseHosts(names, asked []string) ([]string, error) {
	chosen := make([]string, len(asked))
	for i, a := range asked {
		j := slices.IndexFunc(names, func(name string) bool {
			_, bare, _ := strings.Cut(name, "/")
			return name == a || bare == a || name == "pod/default/"+strings.TrimPrefix(a, "pod/")
		})
		if j < 0 {
			return nil, fmt.Errorf("no host %q; there are: %s", a, strings.Join(names, ", "))
		}
		chosen[i] = names[j]
	}
	return chosen, nil
}

func (o *portsOptions) printPlan(s Streams, hosts []string) error {
	nodes := make([]string, len(hosts))
	for i, host := range hosts {
		nodes[i] = strings.TrimPrefix(host, "node/")
	}
	return printObjects(s.Out, usercluster.Plan(o.walk.plugin.pods, nodes...))
}

// portsDoc holds a use as JSON.
type portsDoc struct {
	Host        string       `json:"host"`
	Protocol    string       `json:"protocol"`
	Source      string       `json:"source"`
	Destination string       `json:"destination"`
	InUse       int          `json:"inUse"`
	TimeWait    int          `json:"timeWait"`
	Limit       *int         `json:"limit"` // null if unknown
	Reason      string       `json:"limitUnknown,omitempty"`
	Clients     []clientPort `json:"clients"`
	PerSecond   *float64     `json:"perSecond,omitempty"`
	FullIn      *float64     `json:"fullInSeconds,omitempty"`
}

type clientPort struct {
	Address string `json:"address"`
	Name    string `json:"name,omitempty"`
	InUse   int    `json:"inUse"`
}

func printPortsJSON(out io.Writer, uses []ports.Use, owners *explain.Owners) error {
	docs := []portsDoc{}
	for i := range uses {
		u := &uses[i]
		d := portsDoc{Host: u.Host, Protocol: u.Protocol.String(), Source: u.Source.String(), Destination: u.Destination.String(), InUse: u.InUse,
			TimeWait: u.TimeWait, Reason: u.Reason, Clients: []clientPort{}}
		if u.Limit > 0 {
			d.Limit = &u.Limit
		}
		if u.Measured {
			d.PerSecond = &u.PerSecond
		}
		if full, ok := u.Full(); ok {
			seconds := full.Seconds()
			d.FullIn = &seconds
		}
		for _, c := range u.Clients {
			owner, _ := owners.Address(c.Address, 0, 0)
			d.Clients = append(d.Clients, clientPort{c.Address.String(), owner.String(), c.InUse})
		}
		docs = append(docs, d)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(docs)
}

func printPorts(out io.Writer, uses []ports.Use, owners *explain.Owners, measured bool) error {
	if len(uses) == 0 {
		_, err := fmt.Fprintln(out, "no source is translated on the hosts whose connections are known")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprint(w, "HOST\tSOURCE\tDESTINATION\tIN USE\tOF\t")
	if measured {
		fmt.Fprint(w, "GROWTH\tALL IN USE\t")
	}
	fmt.Fprint(w, "CLIENTS\n")
	reasons := map[string]bool{}
	for i := range uses {
		u := &uses[i]
		limit := "unknown"
		if u.Limit > 0 {
			limit = fmt.Sprintf("%d (%d %%)", u.Limit, 100*u.InUse/u.Limit)
		} else {
			reasons[u.Host+": "+u.Reason] = true
		}
		fmt.Fprintf(w, "%s\t%s\t%s %s%s\t%d\t%s\t", u.Host, u.Source, u.Protocol, u.Destination, destinationName(u, owners), u.InUse, limit)
		if measured {
			fmt.Fprintf(w, "%s\t%s\t", growth(u), forecast(u))
		}
		fmt.Fprintf(w, "%s\n", clientsText(u, owners))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		if _, err := fmt.Fprintf(out, "\nhow many ports there are is unknown on %s\n", reason); err != nil {
			return err
		}
	}
	return nil
}

func destinationName(u *ports.Use, owners *explain.Owners) string {
	if owner, known := owners.Address(u.Destination.Addr(), u.Protocol, u.Destination.Port()); known {
		return " (" + owner.String() + ")"
	}
	return ""
}

func growth(u *ports.Use) string {
	if !u.Measured {
		return "unknown"
	}
	return fmt.Sprintf("%+.1f/s", u.PerSecond)
}

func forecast(u *ports.Use) string {
	switch full, ok := u.Full(); {
	case !u.Measured:
		return "unknown"
	case ok && full == 0:
		return "now"
	case ok:
		return "in " + full.Round(time.Second).String()
	case u.Limit == 0 && u.PerSecond > 0:
		return "unknown"
	}
	return "-"
}

// maxClients limits the clients of a line.
const maxClients = 3

func clientsText(u *ports.Use, owners *explain.Owners) string {
	var texts []string
	for i, c := range u.Clients {
		if i == maxClients {
			texts = append(texts, fmt.Sprintf("%d more", len(u.Clients)-maxClients))
			break
		}
		owner, _ := owners.Address(c.Address, 0, 0)
		texts = append(texts, fmt.Sprintf("%s: %d", cmp.Or(owner.String(), c.Address.String()), c.InUse))
	}
	return strings.Join(texts, ", ")
}
