// Package layers holds the code to the layer table of docs/design.md: its test reads the table and compares it with what the packages import
// and with the depguard rules of .golangci.yml. It imports nothing internal.
package layers

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const module = "packetwalk.dev/internal"

// groups are the table's words for more than one package, and the import path prefixes that they stand for.
var groups = map[string][]string{
	"anything internal": {module},
	"Kubernetes":        {"k8s.io"},
	"client-go":         {"k8s.io/client-go"},
	"desired state":     {module + "/service", module + "/serviceproxy", module + "/vnet", module + "/ipmasq", module + "/ippool"},
	"anything but":      {module},
	"and what it owns":  {module + "/container", module + "/controlplane", module + "/fabric", module + "/kubelet"}, // lab's
}

var (
	row  = regexp.MustCompile("^\\| `([a-z0-9]+)` \\|.*\\| ([^|]+) \\|$")
	word = regexp.MustCompile("`([a-z0-9]+)`")
)

// Parse gives for each package of the table in a design page the prefixes of import paths that it must not import, sorted. A prefix with
// "!" in front is an exception to a shorter one.
func Parse(page string) (map[string][]string, error) {
	table := map[string][]string{}
	for line := range strings.Lines(page) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		denied, err := prefixes(m[2])
		if err != nil {
			return nil, fmt.Errorf("row of %s: %w", m[1], err)
		}
		table[m[1]] = denied
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("no rows of a layer table")
	}
	return table, nil
}

// prefixes reads a cell such as "Kubernetes, `kernel`".
func prefixes(cell string) ([]string, error) {
	var denied []string
	sign := ""
	if strings.HasPrefix(cell, "anything but ") {
		sign = "!"
	}
	rest := word.ReplaceAllStringFunc(cell, func(s string) string {
		denied = append(denied, sign+module+"/"+strings.Trim(s, "`"))
		return ""
	})
	for _, part := range strings.Split(rest, ",") {
		part = strings.TrimSpace(part)
		if part == "" || part == "–" {
			continue
		}
		p, ok := groups[part]
		if !ok {
			return nil, fmt.Errorf("unknown words %q", part)
		}
		denied = append(denied, p...)
	}
	slices.Sort(denied)
	return slices.Compact(denied), nil
}

// Denied gives the prefix that forbids an import, if one does. A prefix ends where an element of the path ends.
func Denied(path string, prefixes []string) (string, bool) {
	under := func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }
	for _, p := range prefixes {
		if exception, ok := strings.CutPrefix(p, "!"); ok && under(exception) {
			return "", false
		}
	}
	for _, p := range prefixes {
		if under(p) {
			return p, true
		}
	}
	return "", false
}
