package lab

import (
	"encoding/json"
	"slices"
	"testing"

	"packetwalk.dev/internal/node/ipmasq"
)

// TestMasqComplaints: what many nodes say is said once, errors as problems and warnings as such.
func TestMasqComplaints(t *testing.T) {
	const bad = `{"unhealthy": ["ConfigMap kube-system/a, key k: wrong"], "problems": [{"configMap": "kube-system/a", "key": "k", "severity": "error", "message": "wrong"}]}`
	const suspect = `{"healthy": true, "config": {}, "problems": [{"configMap": "kube-system/b", "key": "k", "entry": "nonMasqueradeCIDRs", "severity": "warning", "message": "empty", "remedy": "write ranges"}]}`
	const starts = `{"unhealthy": ["no configuration has been read yet"], "config": null}`
	var reports []masqReport
	for _, text := range []string{bad, bad, suspect, starts} {
		var r masqReport
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}
	problems, warnings := masqComplaints(reports)
	if want := []string{"ip-masq-agent of 2 of 4 nodes: ConfigMap kube-system/a, key k: wrong"}; !slices.Equal(problems, want) {
		t.Errorf("problems %q", problems)
	}
	if want := []string{"ip-masq-agent of 1 of 4 nodes: ConfigMap kube-system/b, key k, nonMasqueradeCIDRs: empty; write ranges"}; !slices.Equal(warnings, want) {
		t.Errorf("warnings %q", warnings)
	}
	if reports[0].Problems[0].Severity != ipmasq.Error {
		t.Errorf("%+v", reports[0])
	}
}
