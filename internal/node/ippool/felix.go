package ippool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Felix is what counts of FelixConfigurations: where the jumps to Calico's chains stand in the kernel's own chains.
type Felix struct {
	Append bool // at the end; otherwise at the head, so that Calico decides before everybody else
}

// Configuration is a FelixConfiguration object: its name and its spec in JSON.
type Configuration struct {
	Name string
	Spec []byte
}

// Fields of a FelixConfiguration that would change what is translated, and that are not built.
var translating = []string{"bpfEnabled", "iptablesNATOutgoingInterfaceFilter", "natOutgoingAddress", "natOutgoingExclusions",
	"natPortRange", "nftablesMode"}

// ParseFelix merges those configurations that are a node's: "default", and over it "node.NAME". All that is wrong with them is in the
// error by their names, and what it leaves undecided has felix's default. Fields that have nothing to do with address translation are
// passed over; one that changes it and that packetwalk does not follow is an error.
func ParseFelix(node string, configurations []Configuration) (Felix, map[string]error) {
	var f Felix
	failed := map[string]error{}
	for _, name := range []string{"default", "node." + node} {
		for _, c := range configurations {
			if c.Name != name {
				continue
			}
			if err := f.overlay(c.Spec); err != nil {
				failed[name] = err
			}
		}
	}
	return f, failed
}

func (f *Felix) overlay(spec []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(spec, &fields); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	var errs problems
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := string(bytes.TrimSpace(fields[name]))
		if slices.Contains(translating, name) && !isDefault(name, value) {
			errs.add("spec."+name, "%s has no effect: packetwalk does not follow this field; leave it out", value)
		}
	}
	if text, ok := fields["chainInsertMode"]; ok {
		var mode string
		if err := json.Unmarshal(text, &mode); err != nil {
			mode = string(text)
		}
		switch strings.ToLower(mode) {
		case "insert", "":
			f.Append = false
		case "append":
			f.Append = true
		default:
			errs.add("spec.chainInsertMode", "no value %q; write Insert or Append", mode)
		}
	}
	return errors.Join(errs...)
}

// isDefault tells whether a field says in so many words what leaving it out means.
func isDefault(field, value string) bool {
	switch value {
	case "null", `""`, "false":
		return true
	}
	return field == "natOutgoingExclusions" && value == `"IPPoolsOnly"` ||
		field == "nftablesMode" && value == `"Disabled"`
}
