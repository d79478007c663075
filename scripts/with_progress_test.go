package scripts

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestWithProgress: what runs is said at once and every 5 s, the exit status is the command's, and nothing holds the output at the end.
func TestWithProgress(t *testing.T) {
	begin := time.Now()
	out, err := exec.Command("./with-progress", "building it", "sh", "-c", "sleep 6; echo made; exit 3").CombinedOutput()
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 3 {
		t.Errorf("%v", err)
	}
	if want := "building it\nbuilding it: 5 s so far\nmade\n"; string(out) != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it ended after %v", took)
	}
	if out, err := exec.Command("./with-progress", "one", "echo", "two words").Output(); err != nil || strings.TrimSpace(string(out)) != "one\ntwo words" {
		t.Errorf("%q, %v", out, err)
	}
}
