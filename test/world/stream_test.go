package world

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCount: a line that is half written counts for nothing, wherever it was cut.
func TestCount(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	const lines = "200 0.001200\n000 10.000100\n200 0.030000\n"
	wants := map[int]string{0: "0 0 0", 1: "1 0 0.001200", 2: "1 1 10.000100 000 10.000100", 3: "2 1 10.000100 000 10.000100"} // by whole lines
	for cut := range len(lines) + 1 {
		if err := os.WriteFile(made, []byte(lines[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("bash", "-c", `made=$1; `+countScript+"count", "count", made).CombinedOutput()
		if want := wants[strings.Count(lines[:cut], "\n")]; err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("of %q counted %q, %v, want %s", lines[:cut], out, err, want)
		}
	}
}
