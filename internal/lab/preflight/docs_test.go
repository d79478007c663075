package preflight

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the table in docs/requirements.md")

// TestDocumented: docs/requirements.md has the table of features.
func TestDocumented(t *testing.T) {
	const page, begin, end = "../../../docs/requirements.md", "<!-- features -->\n", "<!-- end of features -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no %q and %q", page, begin, end)
	}
	want := before + begin + table() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", page, diff)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("| feature | needed for | modules, or package of the program |\n|---|---|---|\n")
	for _, f := range features {
		from := "`" + strings.Join(f.modules, "`, `") + "`"
		switch {
		case f.program != "":
			from = "package " + strings.TrimPrefix(install(f.program), "apt-get install ")
		case len(f.modules) == 0:
			from = "–"
		}
		needs := joinNeeds(f.needs)
		if (Row{NeededFor: f.needs}).Optional() {
			needs += " (optional)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.name, needs, from)
	}
	return b.String()
}
