//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
)

// listTime is how long a lab may take to say how it is.
const listTime = 5 * time.Second

// A listedLab is a lab in the JSON of list.
type listedLab struct {
	Name       string `json:"name"`
	State      string `json:"state"` // "ready", "not ready" while it starts or does not answer, "down" without a process
	Nodes      int    `json:"nodes"`
	Kubeconfig string `json:"kubeconfig"`
}

func listCommand(s Streams) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:     "list [-o json]",
		Aliases: []string{"ls"},
		Short:   "list the labs of this machine",
		Args:    noArguments("it lists all labs; 'packetwalk status --name NAME' says how one is"),
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return badInput{fmt.Errorf("unknown output format %q; use json", output)}
			}
			if err := needRoot(); err != nil {
				return err
			}
			dirs, err := lab.List()
			if err != nil {
				return err
			}
			labs := make([]listedLab, 0, len(dirs))
			for _, d := range dirs {
				labs = append(labs, listed(c.Context(), d))
			}
			if output == "json" {
				enc := json.NewEncoder(termsafe.Writer(s.Out))
				enc.SetIndent("", "  ")
				return enc.Encode(labs)
			}
			if len(labs) == 0 {
				_, err := fmt.Fprintln(s.Out, "no lab is here")
				return err
			}
			w := tabwriter.NewWriter(termsafe.Writer(s.Out), 0, 8, 3, ' ', 0)
			table(w, "NAME\tSTATE\tNODES\tKUBECONFIG", labs, func(l listedLab) string {
				return fmt.Sprintf("%s\t%s\t%d\t%s", l.Name, l.State, l.Nodes, l.Kubeconfig)
			})
			return w.Flush()
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json (default a table)")
	completeFlag(c, "output", "json")
	return c
}

// listed asks a lab how it is.
func listed(ctx context.Context, d lab.Dir) listedLab {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	st := lab.StatusOf(ctx, d)
	l := listedLab{Name: d.Name(), State: "down", Nodes: len(st.Nodes), Kubeconfig: d.Kubeconfig()}
	switch {
	case st.Ready:
		l.State = "ready"
	case st.Pid > 0:
		l.State = "not ready"
	}
	return l
}
