package lab

import (
	"encoding/json"
	"net/netip"
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

// TestDefaultPool: claim C7, and what kubectl apply left on it.
func TestDefaultPool(t *testing.T) {
	text, err := defaultPool(netip.MustParsePrefix("10.240.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	var pool struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(text, &pool); err != nil {
		t.Fatal(err)
	}
	const want = `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"annotations":{},"labels":{"addonmanager.kubernetes.io/mode":"Reconcile"},"name":"default-ipv4-ippool"},` +
		`"spec":{"blockSize":26,"cidr":"10.240.0.0/16","ipipMode":"Never","natOutgoing":true}}` + "\n" // to the article's letter
	if got := pool.Metadata.Annotations["kubectl.kubernetes.io/last-applied-configuration"]; got != want {
		t.Errorf("applied %s", got)
	}
}
