// Package layers holds the code to the layer table of docs/dev/design.md: its test reads the table and compares it with what each package
// links, directly or through others. Other tests hold the node agent's program to what it may link, and all files and lines to their
// sizes. It imports nothing internal.
package layers

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const module = "packetwalk.dev/internal"

// groups are the table's words for packages of others, and the import path prefixes that they stand for.
var groups = map[string]string{
	"Kubernetes": "k8s.io",
	"client-go":  "k8s.io/client-go",
}

// Rule is what one package must not link: import path prefixes, and exceptions to them.
type Rule struct {
	Denied, Excepted []string // sorted
}

var (
	row   = regexp.MustCompile("^\\| `([a-z0-9/]+)` \\|.*\\| ([^|]+) \\|$")
	names = regexp.MustCompile("^`[a-z0-9/]+`$")
)

// Parse gives for each package of the table in a design page, by its path under internal, what it must not link. A cell is a list,
// separated by commas, of "Kubernetes", "client-go", a path under internal, "ours" for everything under internal, and "ours but PATH",
// which a further "but PATH" may follow; "–" is for none.
func Parse(page string) (map[string]Rule, error) {
	table := map[string]Rule{}
	for line := range strings.Lines(page) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		r, err := cell(m[2])
		if err != nil {
			return nil, fmt.Errorf("row of %s: %w", m[1], err)
		}
		if _, twice := table[m[1]]; twice {
			return nil, fmt.Errorf("two rows of %s", m[1])
		}
		table[m[1]] = r
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("no rows of a layer table")
	}
	return table, nil
}

// cell reads a cell such as "ours but `model/packet` but `syntax`, Kubernetes".
func cell(text string) (Rule, error) {
	var r Rule
	for part := range strings.SplitSeq(text, ",") {
		first, excepted, _ := strings.Cut(strings.TrimSpace(part), " but ")
		switch {
		case first == "–":
		case groups[first] != "":
			r.Denied = append(r.Denied, groups[first])
		case first == "ours":
			r.Denied = append(r.Denied, module)
		case names.MatchString(first):
			r.Denied = append(r.Denied, module+"/"+strings.Trim(first, "`"))
		default:
			return Rule{}, fmt.Errorf("unknown words %q", first)
		}
		if excepted == "" {
			continue
		}
		for e := range strings.SplitSeq(excepted, " but ") {
			if !names.MatchString(e) {
				return Rule{}, fmt.Errorf("unknown words %q", e)
			}
			r.Excepted = append(r.Excepted, module+"/"+strings.Trim(e, "`"))
		}
	}
	slices.Sort(r.Denied)
	slices.Sort(r.Excepted)
	return r, nil
}

// Denies gives the prefix that forbids an import path, if one does. A prefix ends where an element of the path ends.
func (r Rule) Denies(path string) (string, bool) {
	under := func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }
	if slices.ContainsFunc(r.Excepted, under) {
		return "", false
	}
	i := slices.IndexFunc(r.Denied, under)
	if i < 0 {
		return "", false
	}
	return r.Denied[i], true
}
