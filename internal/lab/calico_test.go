package lab

import (
	"encoding/json"
	"slices"
	"testing"
)

// TestPoolComplaints: what many nodes say is said once.
func TestPoolComplaints(t *testing.T) {
	const good = `{"healthy": true, "sets": {"a": []}, "problems": [{"kind": "IPPool", "name": "x", "problem": "spec.cidr: overlaps pool y"}]}`
	const bad = `{"unhealthy": ["write IP sets: no memory"], "sets": {"a": []}}`
	const starts = `{"unhealthy": ["the API has not told the pools yet"]}`
	var reports []poolReport
	for _, text := range []string{good, good, bad, starts, `{}`} {
		var r poolReport
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}
	problems, warnings := poolComplaints(reports)
	if want := []string{"calico pools of 1 of 5 nodes: write IP sets: no memory"}; !slices.Equal(problems, want) {
		t.Errorf("problems %q", problems)
	}
	if want := []string{"IPPool x: spec.cidr: overlaps pool y"}; !slices.Equal(warnings, want) {
		t.Errorf("warnings %q", warnings)
	}
}
