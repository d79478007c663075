package redact_test

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/redact"
)

// TestRedactNetworkPolicies: policies select the same pods after redaction, and no name or label of theirs is left. What is wrong with a
// list names none.
func TestRedactNetworkPolicies(t *testing.T) {
	held := small()
	held.Lists["pods.json"] = []byte(`{"items":[` +
		`{"metadata":{"namespace":"acme","name":"acme-web","labels":{"acme.example/app":"acme-web","acme-other":"acme-x"}},"spec":{"nodeName":"n1"}},` +
		`{"metadata":{"namespace":"acme","name":"acme-db","labels":{"acme.example/app":"acme-db","acme-tier":""}},"spec":{"nodeName":"n1"}}]}`)
	policy := func(name, selector string) string {
		return `{"metadata":{"namespace":"acme","name":"` + name + `","labels":{"acme":"acme"}},` +
			`"spec":{"podSelector":` + selector + `,"policyTypes":["Ingress"]}}`
	}
	held.Lists[capture.NetworkPoliciesFile] = []byte(`{"items":[` + strings.Join([]string{
		policy("acme-all", `{}`), policy("acme-one", `{"matchLabels":{"acme.example/app":"acme-web"}}`),
		policy("acme-not", `{"matchExpressions":[{"key":"acme.example/app","operator":"NotIn","values":["acme-web","acme-y"]}]}`),
		policy("acme-tier", `{"matchExpressions":[{"key":"acme-tier","operator":"Exists"}],"matchLabels":{"acme-tier":""}}`),
	}, ",") + `]}`)
	selected := func(lists map[string][]byte) (all []bool) {
		o, err := capture.ReadObjects(lists)
		if err != nil || len(o.NetworkPolicies) != 4 {
			t.Fatalf("%+v, %v", o, err)
		}
		for i := range o.NetworkPolicies {
			for j := range o.Pods {
				all = append(all, o.NetworkPolicies[i].Selects(&o.Pods[j]))
			}
		}
		return all
	}
	after := redacted(t, held)
	if got, want := selected(after.Lists), selected(held.Lists); !slices.Equal(got, want) || !slices.Contains(want, false) {
		t.Errorf("selected %v, before %v", got, want)
	}
	for file, list := range after.Lists {
		if strings.Contains(string(list), "acme") {
			t.Errorf("%s: %s", file, list)
		}
	}
	if pods := string(after.Lists["pods.json"]); strings.Count(pods, `"label-`) != 3 {
		t.Errorf("labels by which nothing is selected: %s", pods)
	}

	held.Lists[capture.NetworkPoliciesFile] = []byte(`{"items":[` + strings.ReplaceAll(policy("acme-all", `{}`), "Ingress", "Sideways") + `]}`)
	_, origin, _, err := redact.Capture(held.Head, held.Origin(), book, testKey)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := origin.Lists()
	if err == nil || strings.Contains(err.Error(), "acme") || lists[capture.NetworkPoliciesFile] != nil {
		t.Errorf("%v, %s", err, lists[capture.NetworkPoliciesFile])
	}
}
