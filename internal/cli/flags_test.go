//go:build linux

package cli

import (
	"strings"
	"testing"
)

// TestLogsTail: a number of lines that no log has is an error before anything is printed; -1 is all, as with kubectl.
func TestLogsTail(t *testing.T) {
	for tail, want := range map[string]string{
		"-2": "want a number from -1", "99999999999999999999": "want a number from -1", "x": "want a number from -1", "1.5": "want a number from -1",
		"-1": "no lab", "0": "no lab", "7": "no lab",
	} {
		t.Run(tail, func(t *testing.T) {
			t.Setenv("PACKETWALK_LAB", "nosuch-of-tests")
			c := logsCommand(Streams{})
			c.SetArgs([]string{"--tail", tail, "lab"})
			c.SilenceErrors, c.SilenceUsage = true, true
			if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		})
	}
}
