package scripts

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestBaseLock: base.lock has a version of each package that base names, for both architectures, and a day for each.
func TestBaseLock(t *testing.T) {
	script, err := os.ReadFile("base")
	mustDo(t, err)
	lock, err := os.ReadFile("base.lock")
	mustDo(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		if !regexp.MustCompile(`(?m)^# ` + arch + ` was locked on \d{4}-\d\d-\d\d$`).Match(lock) {
			t.Errorf("no day for %s", arch)
		}
		for _, list := range []string{"whole", "small"} {
			names := regexp.MustCompile(`(?m)^` + list + `='([^']*)'`).FindSubmatch(script)
			if names == nil {
				t.Fatalf("base has no list %s", list)
			}
			for _, name := range strings.Fields(string(names[1])) {
				if !regexp.MustCompile(`(?m)^` + arch + ` ` + regexp.QuoteMeta(name) + ` [0-9]\S*$`).Match(lock) {
					t.Errorf("no version of %s for %s", name, arch)
				}
			}
		}
	}
}
