package az

import (
	"slices"
	"strings"
)

// options are a command's arguments.
type options struct {
	format, query string
	help          bool

	group, name, parent string // -g, -n, --lb-name and the like
	includeDefault      bool   // of security rules
	pool, count         string // aks scale
	newPool             poolOptions
	noWait              bool
	container           string // container logs
	follow              bool

	vm, nic, direction, protocol, local, remote string // network watcher test-ip-flow
}

// flags are names of arguments, and where each goes: a *string for one with a value, a *[]string for one with one or more, a *bool for a
// switch.
type flags map[string]any

// output returns the arguments of all commands.
func output(o *options, more flags) flags {
	more["-o"], more["--output"], more["--query"] = &o.format, &o.format, &o.query
	return more
}

// common has the arguments of all commands that show resources.
func common(o *options) flags {
	return output(o, flags{
		"-g": &o.group, "--resource-group": &o.group, "-n": &o.name, "--name": &o.name,
		"--lb-name": &o.parent, "--cluster-name": &o.parent, "--nic-name": &o.parent, "--vnet-name": &o.parent, "--route-table-name": &o.parent,
		"--nsg-name": &o.parent,
	})
}

// parse reads a command's arguments.
func (o *options) parse(args []string, c command) error {
	known := c.flags(o)
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		if name == "-h" || name == "--help" {
			o.help = true
			continue
		}
		switch at := known[name].(type) {
		case *bool:
			if inline {
				return usage("unrecognized arguments: %s", args[i])
			}
			*at = true
		case *[]string:
			if inline {
				*at = append(*at, value)
			}
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
				*at = append(*at, args[i])
			}
			if len(*at) == 0 {
				return usage("argument %s: expected at least one argument", name)
			}
		case *string:
			if !inline {
				if i++; i == len(args) || strings.HasPrefix(args[i], "-") && known[args[i]] != nil {
					return usage("argument %s: expected one argument", name)
				}
				value = args[i]
			}
			*at = value
		default:
			return usage("unrecognized arguments: %s", args[i])
		}
	}
	if !slices.Contains(formats, o.format) {
		return usage("argument --output/-o: invalid choice: '%s' (choose from %s)", o.format, strings.Join(formats, ", "))
	}
	return nil
}

// missing names the arguments that the command cannot do without and did not get.
func (c command) missing(o *options) string {
	known := c.flags(o)
	var missing []string
	for _, need := range c.needs {
		long, _, _ := strings.Cut(need, "/")
		if *known[long].(*string) == "" {
			missing = append(missing, need)
		}
	}
	return strings.Join(missing, ", ")
}
