package foreign

import (
	"os"
	"strings"
	"testing"
)

// TestFelixAlways compares felixAlways with what felix wrote.
func TestFelixAlways(t *testing.T) {
	for release, other := range map[string]string{"3.27": "-A POSTROUTING ", "3.31": "-I POSTROUTING "} {
		t.Run(release, func(t *testing.T) {
			text, err := os.ReadFile("testdata/felix-nat-" + release + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for line := range strings.Lines(felixAlways) {
				if strings.HasPrefix(line, other) {
					continue
				}
				if n++; !strings.Contains(string(text), strings.Replace(line, "-I ", "-A ", 1)) {
					t.Errorf("felix has no %s", line)
				}
			}
			if n < 7 {
				t.Errorf("%d lines", n)
			}
		})
	}
}
