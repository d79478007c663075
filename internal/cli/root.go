package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/session"
)

// Version is the version of this build, set by the linker.
var Version = "dev"

// Streams are what a command reads and writes.
type Streams struct {
	In       *os.File
	Out, Err io.Writer
}

// exitStatus is an error whose status a command ends with, having said all there is to say.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// badInput marks an error that is the user's to mend: exit status 2.
type badInput struct{ error }

func (e badInput) Unwrap() error { return e.error }

// isInput reports whether the user can mend an error.
func isInput(err error) bool {
	_, input := errors.AsType[badInput](err)
	_, sessionInput := errors.AsType[*session.InputError](err)
	return input || sessionInput
}

// Main runs one command line and returns its exit status.
func Main(args []string, s Streams) int {
	return execute(rootCommand(s), args, s)
}

// execute runs one command line of a program.
func execute(root *cobra.Command, args []string, s Streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ran := false
	root.PersistentPreRun = func(c *cobra.Command, _ []string) {
		if ran = true; !c.Hidden { // the lab's process keeps the client's log
			klog.SetLogger(logr.Discard()) // what goes wrong comes as an error, too
		}
	}
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	help := fmt.Sprintf("run '%s --help' for the commands", root.CommandPath())
	if c != root && c.Name() != "help" {
		help = fmt.Sprintf("run '%s --help' for what it takes", c.CommandPath())
	}
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) { // Go 1.26.0's cause is not context.Canceled
		err = context.Canceled
	}
	if err != nil {
		// As cobra writes it (command.go: findSuggestions).
		if wrong, names, ok := strings.Cut(err.Error(), "\n\nDid you mean this?\n"); ok {
			err = fmt.Errorf("%s; did you mean %s?", wrong, strings.Join(slices.Sorted(slices.Values(strings.Fields(names))), " or "))
		}
	}
	return conclude(err, ran, help, hintsOf(root, args), s.Err)
}

// conclude prints an error and returns the exit status. help is where the user finds how the command is written.
func conclude(err error, ran bool, help string, hints hinter, stderr io.Writer) int {
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "packetwalk: interrupted")
		return 130
	}
	for _, line := range strings.Split(err.Error(), "\n") {
		prefix := "packetwalk:"
		if strings.HasPrefix(line, "  ") { // of a list, for example of commands to copy
			prefix = " "
		}
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintln(stderr, prefix, termsafe.Text(hints.complete(line)))
		}
	}
	switch {
	case !ran: // flags and arguments that do not parse
		hints.lab = "" // help is the same for all
		fmt.Fprintln(stderr, hints.complete(help))
		return 2
	case isInput(err):
		return 2
	}
	return 1
}

// noArguments refuses what stands on a command line without a flag; remedy says what to write instead.
func noArguments(remedy string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no argument %q: %s", c.Name(), args[0], remedy)
		}
		return nil
	}
}

func rootCommand(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "packetwalk",
		Short: "the AKS node network in this machine's kernel, every packet explained",
		Long: `packetwalk runs Azure Kubernetes Service's node network in the Linux kernel of this machine, under a real Kubernetes API, and says where packets
go in it, which source address their destination sees, and which rule decided that.`,
		Example: `  packetwalk up
  packetwalk kubectl apply -f examples/overlay/app.yaml
  packetwalk walk --from internet --to svc/whereami`,
		Version:       Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	addLabCommands(root, s)
	root.AddGroup(&cobra.Group{ID: "packets", Title: "Its packets:"})
	add(root, "packets", walkCommand(s), uiCommand(s), mcpCommand(s), captureCommand(s), portsCommand(s))
	root.AddCommand(versionCommand(s))
	addCompletion(root)
	addHelp(root)
	wrapHelp(root)
	return root
}

// add adds commands to a group of the help.
func add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		c.DisableFlagsInUseLine = true // they stand there already, or below
		root.AddCommand(c)
	}
}

// versionCommand prints what --version prints, as a command as in kubectl.
func versionCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  noArguments("leave it out"),
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(s.Out, "packetwalk version %s\n", c.Root().Version)
			return err
		},
	}
}
