package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/usercluster"
)

func pluginWalkCommand(s Streams, plugin *pluginOptions) *cobra.Command {
	o := walkOptions{plugin: plugin}
	c := &cobra.Command{
		Use:   "walk --from END --to END [--live] [-o FORMAT]",
		Short: "say where a packet goes, which source its destination sees, and which rule decided",
		Long: `Takes a packet through the cluster's nodes as their kernels would and says, machine by machine, what rules, routes and translations make of it; at
the end stands the source address that the destination sees and the rule that decided it. Of several outcomes it shows a table and the steps of one. --live sends one real packet (of TCP a connection that is
opened and closed) and compares every step with the kernels' own traces: for that, rules of packetwalk's own are on the nodes for a moment.
The exit status is 3 where it is not known what becomes of the packet.

An END is pod/[NAMESPACE/]NAME[:PORT], svc/[NAMESPACE/]NAME[:PORT|:PORTNAME] (as a sender its first ready pod), deploy/, sts/, ds/ or
job/[NAMESPACE/]NAME[:PORT] (one of its pods), node/NAME[:PORT], a DNS name[:PORT], or an address with an optional port. Names other than
those of the cluster's services, pods and nodes need --resolve or --live: the sender's own resolver is then asked, from its network namespace.
The walk then begins with the query's own way. If the query is lost, no packet is walked, and the exit status is 1.`,
		Example: `  kubectl packetwalk walk --from pod/shop/web-1 --to 203.0.113.9:443
  kubectl packetwalk walk --from pod/shop/web-1 --to example.com:443 --resolve
  kubectl packetwalk walk --from node/node-1 --to svc/kube-system/kube-dns:53 --proto udp -o wide`,
		Args: noArguments("the ends are --from END and --to END"),
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), s) },
	}
	o.flags(c)
	c.Flags().StringVar(&o.at, "at", "", "the node where the packet comes in, for senders that the cluster does not have")
	c.Flags().BoolVar(&o.resolve, "resolve", false, "look a name of --to up as the sender does, by DNS queries from there (--live does, too)")
	boundedCount(c.Flags(), &o.most, "max-nodes", mostNodes, 1, 5000, "how many nodes are read at most: a packet for a service may go to each of its pods")
	for _, name := range []string{"from", "to"} {
		_ = c.RegisterFlagCompletionFunc(name, plugin.complete(endsOf)) // the flags are there
	}
	return c
}

// mostNodes bounds what is started for one walk, unless --max-nodes sets another limit.
const mostNodes = 20

// openCluster opens the cluster that the flags choose. Ends without a namespace get the one that the flags choose.
func (o *walkOptions) openCluster(ctx context.Context, s Streams, from, to *endpoint.End) (*session.Session, error) {
	o.plugin.pods.Most = o.most
	opened, namespace, err := o.plugin.open(ctx, true)
	if err != nil {
		return nil, err
	}
	for _, e := range []*endpoint.End{from, to} {
		if e.Namespace == "" && e.Kind.Namespaced() {
			e.Namespace = namespace
		}
	}
	opened.Resolves = o.live || o.resolve
	sender, err := endpoint.Sender(opened.Source().Objects(), *from)
	if err != nil {
		return nil, badInput{fmt.Errorf("--from %s: %w", from, err)}
	}
	if why := opened.Cluster.Refused(string(sender.Kind), sender.Namespace, sender.Name); why != "" {
		return nil, fmt.Errorf("--from %s: %s", from, why)
	}
	return opened, nil
}

// announcement says what --live is about to do on the nodes.
func announcement(c *usercluster.View, result *walk.Result, receivers []string) string {
	var nodes []string
	for _, host := range append(result.Hosts(), receivers...) {
		if n := c.NodeOf(host); n != "" {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	p := &result.Request.Packet
	what := "sends one ping"
	switch {
	case p.Protocol == packet.TCP:
		what = "opens one TCP connection and closes it again,"
	case p.Protocol == packet.UDP && p.DestinationPort.Number == 53:
		what = "sends one DNS query"
	case p.Protocol == packet.UDP:
		what = "sends one datagram of 32 random bytes"
	}
	return fmt.Sprintf("%s from %s to %s, and traces it on %s: rules and packet sockets of its own are there for some seconds",
		what, result.Request.Host, p.DestinationEnd(), strings.Join(slices.Compact(nodes), ", "))
}

// plan shows what a walk would make, for --dry-run: the sender's node is known beforehand, others only as the packet comes to them.
func (o *walkOptions) plan(ctx context.Context, s Streams, from, to endpoint.End) (err error) {
	opened, err := o.openCluster(ctx, s, &from, &to)
	if err != nil {
		return err
	}
	defer func() { err = closeSession(ctx, s, opened, err) }()
	objects := opened.Source().Objects()
	if from, err = endpoint.Sender(objects, from); err != nil {
		return badInput{err}
	}
	node := ""
	switch from.Kind {
	case endpoint.Node:
		node = from.Name
	case endpoint.Pod:
		for _, p := range objects.Pods {
			if p.Namespace == from.Namespace && p.Name == from.Name {
				node = p.Node
			}
		}
	}
	if o.at != "" {
		node = strings.TrimPrefix(o.at, "node/")
	}
	if node == "" {
		return badInput{fmt.Errorf("--from %s: --dry-run finds the node of a pod, a service or a node only", from)}
	}
	fmt.Fprintf(s.Out, "# And one such Job for each further node that the packet comes to.\n")
	return printObjects(s.Out, usercluster.Plan(o.plugin.pods, node))
}
