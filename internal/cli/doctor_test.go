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

// TestDiagnosisPrint: without wide only what does not work is printed, and the last line sums up.
func TestDiagnosisPrint(t *testing.T) {
	nft := preflight.Row{Feature: "nft", NeededFor: []preflight.Need{preflight.Lab}, Result: preflight.Works}
	ipset := preflight.Row{Feature: "ipset", NeededFor: []preflight.Need{preflight.Calico}, Result: preflight.Missing, Cause: "not found", Remedy: "apt-get install ipset"}
	limits := preflight.Row{Feature: "cgroup limits", NeededFor: []preflight.Need{preflight.Calico}, Result: preflight.NeedsRoot, Remedy: "run it with sudo"}
	trace := preflight.Row{Feature: "nft trace", NeededFor: []preflight.Need{preflight.LiveWalk}, Result: preflight.Missing, Cause: "old kernel"}
	tests := []struct {
		name          string
		rows          []preflight.Row
		wide          bool
		want, wantNot []string
		last          string
	}{
		{"all works", []preflight.Row{nft}, false, nil, []string{"FEATURE", "NEEDED FOR"}, "all is well: 1 features and programs work"},
		{"all works, wide", []preflight.Row{nft}, true, []string{"nft       every lab", "NEEDED FOR"}, nil, "all is well: 1 features and programs work"},
		{"missing", []preflight.Row{nft, ipset}, false, []string{"apt-get install ipset", "ipset: not found"}, []string{"every lab"},
			"labs do not work yet: of 2 features and programs, 1 do not; the column REMEDY says what to do"},
		{"without root", []preflight.Row{nft, limits}, false, []string{"cgroup limits", "run it with sudo"}, []string{"cgroup limits:"},
			"what can be tried without root works: 1 of 2 features and programs; only root can try the others, above"},
		{"optional", []preflight.Row{nft, trace}, false, []string{"nft trace: old kernel"}, []string{"every lab"},
			"labs work; of 2 features and programs, 1 do not, or could not be tried"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			if err := diagnose([]preflight.Need{preflight.Lab, preflight.Calico, preflight.LiveWalk}, test.rows).print(&out, test.wide); err != nil {
				t.Fatal(err)
			}
			for _, text := range test.want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("no %q in\n%s", text, out.String())
				}
			}
			for _, text := range test.wantNot {
				if strings.Contains(out.String(), text) {
					t.Errorf("%q in\n%s", text, out.String())
				}
			}
			if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); lines[len(lines)-1] != test.last {
				t.Errorf("the last line is %q, want %q", lines[len(lines)-1], test.last)
			}
		})
	}
}
