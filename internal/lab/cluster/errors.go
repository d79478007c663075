package cluster

import (
	"fmt"
	"strings"
)

// Error is one thing that is wrong with a cluster.yaml.
type Error struct {
	Path    string // the field: spec.azure.vnets[0].subnets[1].prefix; empty for the whole file
	Line    int    // of the file, from 1; 0 when the value did not come from a file
	Message string // what is wrong
	Remedy  string // what to write instead; may be empty
}

// Error gives "line 7: spec.network.mode: unknown value "brigde" (write bridge)".
func (e Error) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Message)
	if e.Remedy != "" {
		b.WriteString(" (" + e.Remedy + ")")
	}
	return b.String()
}

// Errors is everything that is wrong, in the order of the file. An empty one means that nothing is: use Err to get an error value.
type Errors []Error

// Error gives one line for each error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns es as an error, nil when there is none.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

func (es *Errors) add(path, remedy, format string, args ...any) {
	*es = append(*es, Error{Path: path, Remedy: remedy, Message: fmt.Sprintf(format, args...)})
}
