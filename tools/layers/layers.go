// Package layers reads the layer table of docs/dev/design.md. Its test compares the table with what each package imports, and holds
// programs of which a lab has many to what they may link.
package layers

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const module = "packetwalk.dev/internal"

// groups are the table's words for packages of others, and the prefixes of the import paths that they stand for.
var groups = map[string]string{
	"Kubernetes": "k8s.io",
	"containerd": "github.com/containerd",
}

var (
	row  = regexp.MustCompile("^\\| `([a-z0-9/]+)` \\| [^|]+ \\| ([^|]+) \\| ([^|]+) \\|$")
	path = regexp.MustCompile("^`[a-z0-9/]+`$")
)

// Parse returns the prefixes of import paths that each package of a design page's table may import, by the package's path below internal.
// The last cell of a row is a list, separated by commas, of paths below internal and words of groups; "–" stands for an empty list. A path
// includes the packages below it. The cell before says what users would lose without the package; only packages for tests have none.
func Parse(page string) (map[string][]string, error) {
	table := map[string][]string{}
	for line := range strings.Lines(page) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		if _, exists := table[m[1]]; exists {
			return nil, fmt.Errorf("two rows of %s", m[1])
		}
		if strings.TrimSpace(m[2]) == "–" && !strings.HasPrefix(m[1], "testing/") {
			return nil, fmt.Errorf("row of %s does not say what users would lose without it", m[1])
		}
		var allowed []string
		for word := range strings.SplitSeq(m[3], ",") {
			word = strings.TrimSpace(word)
			switch {
			case word == "–":
			case groups[word] != "":
				allowed = append(allowed, groups[word])
			case path.MatchString(word):
				allowed = append(allowed, module+"/"+strings.Trim(word, "`"))
			default:
				return nil, fmt.Errorf("row of %s: unknown word %q", m[1], word)
			}
		}
		table[m[1]] = allowed
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("no rows of a layer table")
	}
	return table, nil
}

// isUnder reports whether an import path is one of the prefixes or below one.
func isUnder(importPath string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return importPath == p || strings.HasPrefix(importPath, p+"/") })
}
