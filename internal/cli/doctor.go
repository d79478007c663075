//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/preflight"
)

// diagnosis is doctor's JSON output.
type diagnosis struct {
	Works    bool            `json:"works"` // all that is not optional
	Needs    []needResult    `json:"needs"`
	Features []preflight.Row `json:"features"`
}

// needResult says whether everything that something needs works.
type needResult struct {
	Need    preflight.Need   `json:"need"`
	Result  preflight.Result `json:"result"`
	Without string           `json:"without,omitempty"` // of an optional need: what is off
}

func doctorCommand(s Streams) *cobra.Command {
	var file, output string
	var inside bool
	c := &cobra.Command{
		Use:   "doctor [-f cluster.yaml] [-o wide|json]",
		Short: "try the kernel features and programs that labs need",
		Long: `Tries each kernel feature and program that labs, live walks and node components need, by using it in a network namespace that it makes
and removes, and prints what does not work and what to do about it; with -o wide all that it tried. With -f it tries only what that world
needs. It also names known holes in the containerd and runc of nodes, and packages of Debian that are older than 90 days.

As root it loads kernel modules that are needed, as "up" does. Without root it uses a user namespace, and says what only root can try.

Exit status: 0 if everything works that is not optional, else 1. What only root can try does not count.`,
		Args: noArguments("the file is -f FILE"),
		RunE: func(c *cobra.Command, _ []string) error {
			if inside {
				rows, err := preflight.Inside(c.Context())
				if err != nil {
					return err
				}
				return json.NewEncoder(s.Out).Encode(rows)
			}
			return doctor(c.Context(), s.Out, file, output)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "a cluster's description (see examples/)")
	c.Flags().StringVarP(&output, "output", "o", "", "wide, with what works, or json (default what does not work)")
	completeFlag(c, "output", "wide", "json")
	c.Flags().BoolVar(&inside, "inside", false, "")
	_ = c.Flags().MarkHidden("inside") // it exists
	return c
}

func doctor(ctx context.Context, w io.Writer, file, output string) error {
	if output != "" && output != "wide" && output != "json" {
		return badInput{fmt.Errorf("unknown output %q: use wide or json", output)}
	}
	needs := preflight.AllNeeds()
	if file != "" {
		source, err := readCluster(file, lab.DirOf(lab.DefaultName))
		if err != nil {
			return err
		}
		if needs, err = lab.Needs(lab.DirOf(lab.DefaultName), source); err != nil {
			return err
		}
		needs = append(needs, preflight.OptionalNeeds()...)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	rows, err := preflight.Diagnose(ctx, []string{self, "doctor", "--inside"}, needs...)
	if err != nil {
		return err
	}
	d := diagnose(needs, append(rows, lab.ProgramRows(time.Now())...))
	if output == "json" {
		enc := json.NewEncoder(termsafe.Writer(w))
		enc.SetIndent("", "  ")
		err = enc.Encode(d)
	} else {
		err = d.print(termsafe.Writer(w), output == "wide")
	}
	if err == nil && !d.Works {
		err = exitStatus(1)
	}
	return err
}

func diagnose(needs []preflight.Need, rows []preflight.Row) diagnosis {
	d := diagnosis{Works: true, Features: rows}
	for _, n := range needs {
		r := needResult{n, preflight.Works, n.Without()}
		for _, row := range rows {
			if !slices.Contains(row.NeededFor, n) || row.Result == preflight.Works || r.Result == preflight.Missing {
				continue
			}
			r.Result = row.Result
		}
		bad := r.Result == preflight.Missing || r.Result == preflight.NotTried
		d.Works = d.Works && (!bad || r.Without != "")
		d.Needs = append(d.Needs, r)
	}
	return d
}

// print writes the features that do not work, or all with wide, each with its cause, and one line that sums up.
func (d diagnosis) print(out io.Writer, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	isShown := func(r preflight.Result) bool { return wide || r != preflight.Works }
	features := slices.DeleteFunc(slices.Clone(d.Features), func(r preflight.Row) bool { return !isShown(r.Result) })
	needs := slices.DeleteFunc(slices.Clone(d.Needs), func(n needResult) bool { return !isShown(n.Result) })
	if len(features) > 0 {
		table(w, "FEATURE\tNEEDED FOR\tRESULT\tREMEDY", features, func(r preflight.Row) string {
			if len(r.Loaded) > 0 {
				r.Remedy = "loaded " + strings.Join(r.Loaded, ", ")
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s", r.Feature, r.Needs(), r.Result, dash(r.Remedy))
		})
	}
	if len(needs) > 0 {
		table(w, "NEEDED FOR\tRESULT\tWITHOUT IT", needs, func(n needResult) string {
			without := n.Without
			if n.Result == preflight.Works {
				without = ""
			}
			return fmt.Sprintf("%s\t%s\t%s", n.Need, n.Result, dash(without))
		})
	}
	for _, r := range features {
		if r.Result != preflight.Works && r.Result != preflight.NeedsRoot {
			fmt.Fprintf(w, "%s: %s\n", r.Feature, r.Cause)
		}
	}
	fmt.Fprintln(w, d.summary())
	return w.Flush()
}

// summary returns the last line: whether labs work, and how many features do not.
func (d diagnosis) summary() string {
	bad, untried := 0, 0
	for _, r := range d.Features {
		switch r.Result {
		case preflight.Works:
		case preflight.NeedsRoot:
			untried++
			bad++
		default:
			bad++
		}
	}
	switch {
	case bad == 0:
		return fmt.Sprintf("all is well: %d features and programs work", len(d.Features))
	case bad == untried:
		return fmt.Sprintf("what can be tried without root works: %d of %d features and programs; only root can try the others, above", len(d.Features)-bad, len(d.Features))
	case d.Works:
		return fmt.Sprintf("labs work; of %d features and programs, %d do not, or could not be tried", len(d.Features), bad)
	}
	return fmt.Sprintf("labs do not work yet: of %d features and programs, %d do not; the column REMEDY says what to do", len(d.Features), bad)
}
