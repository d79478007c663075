//go:build !linux

package cli

import (
	"github.com/spf13/cobra"

	"packetwalk.dev/internal/session"
)

// labCommands are the commands of labs. They are not in the help where there is no Linux.
var labCommands = []string{"up", "status", "down", "tour", "import", "doctor", "shell", "kubectl", "ssh", "az", "logs", "drops", "image"}

// addLabCommands adds commands that say what they need.
func addLabCommands(root *cobra.Command, _ Streams) {
	root.Long += "\n\nHere it walks through captures and pasted text: labs need Linux."
	root.Example = "  packetwalk walk --snapshot cluster.pwcap.tar.gz --from pod/web-1 --to 203.0.113.9:443"
	for _, name := range labCommands {
		root.AddCommand(&cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error { return session.ErrLinux },
		})
	}
}

// addNodeCommand adds nothing: the pods on the nodes have Linux.
func addNodeCommand(*cobra.Command, Streams) {}

// nameFlag adds the name of a lab, for the error that says that there are none.
func nameFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "name", "", "the lab's name")
	_ = c.Flags().MarkHidden("name") // it exists
}

// needRoot returns what labs need before that.
func needRoot() error { return session.ErrLinux }

// rootFor returns what a capture of a lab, or of this machine, needs before that.
func rootFor(captureOptions) error { return session.ErrLinux }

// readersCommand returns how who reads an output starts this program for labs, elsewhere.
func readersCommand() string { return "packetwalk" }
