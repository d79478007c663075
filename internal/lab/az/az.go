package az

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// Exit codes of Run, which are az's.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitNotFound = 3
)

// Lab is what the commands show: plain data.
type Lab struct {
	Network vnet.Network
	Cluster *cluster.Cluster // with its defaults; nil where only the network is known

	KubernetesVersion string // of the control plane and the nodes: 1.35.8
	Changing          bool   // the cluster is being changed
	// ContainerGroups are those of Azure Container Instances, with their views; ContainerLogs copies the log of a container of one, with
	// follow until it ends.
	ContainerGroups []aci.ContainerGroup
	ContainerLogs   func(group, container string, follow bool, w io.Writer) error
	// Edit changes the lab by an edit of its cluster.yaml and gives it as it is then; without wait it returns when that has begun. It may be
	// nil.
	Edit func(edit func(source []byte) ([]byte, error), wait bool) (Lab, error)
}

// Run runs an az command, given without the word az, on a lab: "network lb rule list -g GROUP --lb-name kubernetes -o table". It writes
// what az writes and returns az's exit code: 0; 2 for arguments that cannot be; 3 for something that is not there; 1 for another failure.
func Run(args []string, l Lab, stdout, stderr io.Writer) int {
	l.Network = arm.Visible(l.Network)
	err := run(args, l, stdout)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "az:", err)
	var c exitError
	if errors.As(err, &c) {
		return c.code
	}
	return exitFailure
}

// exitError is an error with its exit code.
type exitError struct {
	error
	code int
}

func usage(format string, args ...any) error {
	return exitError{fmt.Errorf(format, args...), exitUsage}
}

func notFound(format string, args ...any) error {
	return exitError{fmt.Errorf(format, args...), exitNotFound}
}

// run finds the command, reads its arguments, and writes its result.
func run(args []string, l Lab, stdout io.Writer) error {
	words := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	if words < 0 {
		words = len(args)
	}
	name := strings.Join(args[:words], " ")
	o := options{format: "json"}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.words == name })
	c := command{flags: common}
	if i >= 0 {
		c = all[i]
	}
	if err := o.parse(args[words:], c); err != nil {
		return err
	}
	if o.help || words == 0 {
		_, err := io.WriteString(stdout, usageOf(all, args[:words]))
		return err
	}
	if i < 0 {
		remedy := ""
		if slices.Contains(changing, args[words-1]) {
			remedy = "; the lab's az only reads this: change cluster.yaml, and 'packetwalk up -f cluster.yaml' brings the lab to it"
		}
		return usage("%q is not among the commands of the lab%s\n%s", name, remedy, usageOf(all, args[:words]))
	}
	if missing := c.missing(&o); missing != "" {
		return usage("the following arguments are required: %s", missing)
	}
	result, err := c.run(l, o, stdout)
	if err != nil {
		return err
	}
	return write(stdout, result, c.table, o)
}

// changing are the last words of the Azure CLI's commands that change something.
var changing = []string{"create", "update", "delete", "add", "remove", "start", "stop", "restart", "deallocate", "associate"}

// Usage lists the commands and their flags.
func Usage() string { return usageOf(commands(), nil) }

// usageOf lists the commands that begin as the words do, as far as any does.
func usageOf(all []command, words []string) string {
	for n := len(words); n >= 0; n-- {
		var found []string
		for _, c := range all {
			if c.usage != "" && (n == 0 || strings.HasPrefix(c.usage, strings.Join(words[:n], " ")+" ")) {
				found = append(found, "  az "+c.usage+"\n")
			}
		}
		if found != nil && n > 0 {
			return "There are:\n" + strings.Join(found, "")
		}
		if n == 0 {
			return "Commands, each with -o json|jsonc|table|tsv|none and --query JMESPATH:\n" + strings.Join(found, "")
		}
	}
	return ""
}
