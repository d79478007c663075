package podspec

import (
	"strings"
	"testing"
)

func FuzzExpand(f *testing.F) {
	f.Add("$(A) $$(A) $(B $", "x")
	f.Fuzz(func(t *testing.T, s, v string) {
		vars := map[string]string{"A": v}
		got := Expand(s, vars)
		if !strings.Contains(s, "$") && got != s {
			t.Errorf("%q became %q", s, got)
		}
		// What is escaped comes out as it went in.
		if got := Expand(strings.ReplaceAll(s, "$", "$$"), vars); got != s {
			t.Errorf("escaped %q became %q", s, got)
		}
	})
}
