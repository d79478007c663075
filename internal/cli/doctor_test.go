//go:build linux

package cli

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/lab/preflight"
)

// TestDiagnose: only what is missing and not optional makes the diagnosis bad, and each need has the worst of its features' results.
func TestDiagnose(t *testing.T) {
	row := func(r preflight.Result, needs ...preflight.Need) preflight.Row {
		return preflight.Row{Feature: "f", NeededFor: needs, Result: r, Cause: "no such\x1b file", Remedy: "install it"}
	}
	needs := []preflight.Need{preflight.Lab, preflight.Calico, preflight.LiveWalk}
	for _, c := range []struct {
		name  string
		rows  []preflight.Row
		works bool
		needs string
	}{
		{"all well", []preflight.Row{row(preflight.Works, preflight.Lab)}, true, "works,works,works"},
		{"optional", []preflight.Row{row(preflight.Missing, preflight.LiveWalk)}, true, "works,works,missing"},
		{"needs root", []preflight.Row{row(preflight.NeedsRoot, preflight.Calico)}, true, "works,needs root to try,works"},
		{"missing", []preflight.Row{row(preflight.Missing, preflight.Calico), row(preflight.NotTried, preflight.Calico)}, false,
			"works,missing,works"},
		{"of two needs", []preflight.Row{row(preflight.Missing, preflight.Lab, preflight.LiveWalk)}, false, "missing,works,missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := diagnose(needs, c.rows)
			var results []string
			for _, n := range d.Needs {
				results = append(results, string(n.Result))
			}
			if got := strings.Join(results, ","); d.Works != c.works || got != c.needs {
				t.Errorf("works %v, %s", d.Works, got)
			}
		})
	}
}
