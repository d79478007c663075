//go:build linux

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/session"
)

func statusCommand(s Streams) *cobra.Command {
	var name, output string
	var colour when
	c := &cobra.Command{
		Use:   "status [-o wide|json|yaml] [--name NAME]",
		Short: "say how the lab is and what is broken (exit status 1 if anything is)",
		Long: `Says what runs: nodes, hosts, container groups, the load balancer's front ends, how many outbound (SNAT) ports each node uses; and at the
end what is broken (exit status 1 if anything is) and what may soon be.`,
		Args: noArguments("the lab's name is --name NAME"),
		RunE: func(c *cobra.Command, _ []string) error {
			st, err := readStatus(c.Context(), c.Root(), name, output)
			if err != nil {
				return err
			}
			if err := printStatus(s.Out, colour.screen(s.Out), st, output); err != nil {
				return err
			}
			if len(st.Problems) > 0 {
				return exitStatus(1)
			}
			return nil
		},
	}
	nameFlag(c, &name)
	colourFlag(c, &colour)
	c.Flags().StringVarP(&output, "output", "o", "", "wide, json or yaml (default a table)")
	completeFlag(c, "output", "wide", "json", "yaml")
	return c
}

// readStatus returns the status of a lab, with what drops packets there. output is the form in which it is printed.
func readStatus(ctx context.Context, root *cobra.Command, name, output string) (lab.Status, error) {
	d, err := labOf(name)
	if err != nil {
		return lab.Status{}, err
	}
	st := lab.StatusOf(ctx, d)
	findDrops(ctx, d.Name(), &st)
	completeHints(root, &st, output)
	return st, nil
}

// findDrops adds to a status what drops the load balancer's probes of back ends, and, where a network policy engine runs, pods' requests to
// the cluster's DNS: by a walk of each. That a pod cannot ask DNS may be meant, and is a warning.
func findDrops(ctx context.Context, name string, st *lab.Status) {
	hasProbes := slices.ContainsFunc(st.Frontends, func(f lab.Frontend) bool { return len(f.Probed) > 0 })
	hasPolicies := slices.ContainsFunc(st.Nodes, func(n lab.Node) bool { return n.CalicoFelix != nil })
	if !hasProbes && !hasPolicies {
		return
	}
	opened, err := session.OpenLab(ctx, name)
	if err != nil {
		st.Problems = append(st.Problems, fmt.Sprintf("what drops probes and DNS requests is unknown: %v", err))
		return
	}
	defer func() { _ = opened.Close(ctx) }()
	network := opened.Network(ctx)
	st.Problems = append(st.Problems, network.ProbeDrops(session.FailingProbes(session.Frontends(*st)...))...)
	if hasPolicies {
		st.Warnings = append(st.Warnings, network.DNSDrops()...)
	}
}

// completeHints lets the commands in a status's problems and warnings run as they stand. Those of a document are for any reader.
func completeHints(root *cobra.Command, st *lab.Status, output string) {
	h := hintsOf(root, nil)
	if output == "json" || output == "yaml" {
		h.self = "packetwalk"
	}
	if st.Name != lab.DefaultName {
		h.lab = st.Name
	}
	for _, texts := range [][]string{st.Problems, st.Warnings} {
		for i, text := range texts {
			texts[i] = h.complete(text)
		}
	}
}

func printStatus(w io.Writer, on screen, st lab.Status, output string) error {
	switch output {
	case "json":
		enc := json.NewEncoder(termsafe.Writer(w))
		enc.SetIndent("", "  ")
		return enc.Encode(st)
	case "yaml":
		text, err := yaml.Marshal(st)
		if err != nil {
			return err
		}
		_, err = forReading(w).Write(text)
		return err
	case "", "wide":
		return printTables(w, on, st, output == "wide")
	}
	return badInput{fmt.Errorf("unknown output format %q; use wide, json or yaml", output)}
}

// printTables writes a table for each kind of thing that the lab has, and then what is wrong with it.
func printTables(out io.Writer, on screen, st lab.Status, wide bool) error {
	out = termsafe.Writer(out)
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintf(w, "LAB\t%s\nAPI SERVER\t%s\nKUBECONFIG\t%s\n", st.Name, st.APIServer, st.Kubeconfig)
	if a := st.Azure; a != nil {
		fmt.Fprintf(w, "AZURE\t%s\n", a.Endpoint)
		if wide {
			fmt.Fprintf(w, "AZURE TOKEN\t%s\nAZURE CA\t%s\nTENANT\t%s\nSUBSCRIPTION\t%s\n", a.Token, a.CA, a.Tenant, a.Subscription)
		}
	}
	fmt.Fprintln(w)
	table(w, "NODE\tADDRESS\tPODS\tAGENT", st.Nodes, nodeRow)
	table(w, "HOST\tKIND\tADDRESS\tPUBLIC IP\tAPPLICATION", st.Hosts, func(h lab.Host) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", h.Name, h.Kind, h.Address, dash(h.PublicIP), dash(h.App))
	})
	table(w, "CONTAINER GROUP\tADDRESS\tSTATE\tREADY\tSERVICE PROXY", st.ContainerGroups, groupRow)
	table(w, "FRONT END\tHEALTHY\tRULE", st.Frontends, func(f lab.Frontend) string {
		return fmt.Sprintf("%s:%d\t%d/%d\t%s", f.Address, f.Port, len(f.Healthy), f.Total, f.Rule)
	})
	table(w, "OUTBOUND PORTS\tIN USE\tOF\tFULLEST DESTINATION", st.Outbound, func(o lab.Outbound) string {
		return fmt.Sprintf("%s\t%d\t%d\t%s", o.Node, o.InUse, o.Ports, fullest(o))
	})
	if wide {
		process := lab.Component{Name: "lab", Pid: st.Pid}
		table(w, "COMPONENT\tSTATE\tRESTARTS\tLAST EXIT", append([]lab.Component{process}, st.Components...), func(c lab.Component) string {
			return fmt.Sprintf("%s\t%s\t%d\t%s", c.Name, state(c), c.Restarts, dash(c.LastExit))
		})
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range st.Problems {
		fmt.Fprintln(out, on.paint(red, "problem:"), termsafe.Text(p))
	}
	for _, p := range st.Warnings {
		fmt.Fprintln(out, on.paint(yellow, "warning:"), termsafe.Text(p))
	}
	if len(st.Problems) == 0 && len(st.Warnings) == 0 && st.Ready {
		fmt.Fprintln(out, on.paint(green, "all is well"))
	}
	return nil
}

// table writes a heading, a row for each thing with its cells between tabs, and an empty line; nothing where there are no things.
func table[T any](w io.Writer, heading string, things []T, row func(T) string) {
	if len(things) == 0 {
		return
	}
	fmt.Fprintln(w, heading)
	for _, t := range things {
		fmt.Fprintln(w, row(t))
	}
	fmt.Fprintln(w)
}

func nodeRow(n lab.Node) string {
	pods := "?"
	if n.Pods >= 0 {
		pods = strconv.Itoa(n.Pods)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s", n.Name, dash(n.Address), pods, state(n.Agent))
}

func groupRow(g lab.ContainerGroup) string {
	proxy := "none"
	if g.ProxyPid >= 0 {
		proxy = state(lab.Component{Pid: g.ProxyPid})
	}
	return fmt.Sprintf("%s\t%s\t%s\t%d/%d\t%s", g.Name, dash(g.Address), g.State, g.Ready, g.Containers, proxy)
}

// fullest says which destination has most of a node's outbound ports.
func fullest(o lab.Outbound) string {
	if o.Fullest == nil {
		return "-"
	}
	return fmt.Sprintf("%s %s: %d, %d %%", o.Fullest.Protocol, o.Fullest.Destination, o.Fullest.InUse, o.Fullest.Percent)
}

func state(c lab.Component) string {
	if c.Pid == 0 {
		return "down"
	}
	return fmt.Sprintf("up (pid %d)", c.Pid)
}

func dash(s string) string { return cmp.Or(s, "-") }
