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

// TestRedactOwners shows that pods have the same owner after redaction where they had before, under names that tell nothing.
func TestRedactOwners(t *testing.T) {
	held := small()
	pod := func(name, owner, labels string) string {
		return `{"metadata":{"namespace":"acme","name":"` + name + `","labels":{` + labels + `}` + owner + `},"spec":{"nodeName":"n1"}}`
	}
	owner := func(group, kind, name string) string {
		return `,"ownerReferences":[{"apiVersion":"` + group + `","kind":"` + kind + `","name":"` + name + `","controller":true}]`
	}
	hash := `"pod-template-hash":"5acme"`
	held.Lists["pods.json"] = []byte(`{"items":[` + strings.Join([]string{
		pod("acme-1", owner("apps/v1", "ReplicaSet", "acme-web-5acme"), hash), pod("acme-2", owner("apps/v1", "ReplicaSet", "acme-web-6acme"), `"pod-template-hash":"6acme"`),
		pod("acme-3", owner("apps/v1", "StatefulSet", "acme-web"), ""), pod("acme-4", owner("batch/v1", "Job", "acme-web"), ""),
		pod("acme-5", owner("acme.example/v1", "AcmeJob", "acme-web"), ""), pod("acme-6", `,"ownerReferences":[]`, ""), pod("acme-7", "", ""),
		pod("acme-8", owner("apps/v1", "ReplicaSet", "acme-alone"), hash),
	}, ",") + `]}`)
	after := redacted(t, held)
	if list := string(after.Lists["pods.json"]); strings.Contains(strings.ToLower(list), "acme") {
		t.Errorf("names are left: %s", list)
	}
	o, err := capture.ReadObjects(after.Lists)
	if err != nil || len(o.Pods) != 8 {
		t.Fatalf("%+v, %v", o, err)
	}
	deployment := func(i int) string {
		name, ok := strings.CutSuffix(o.Pods[i].Controller.Name, "-"+o.Pods[i].Labels["pod-template-hash"])
		if !ok || !strings.HasPrefix(name, "deploy-") {
			t.Errorf("pod %d is of no Deployment: %+v", i, o.Pods[i])
		}
		return name
	}
	if deployment(0) != deployment(1) || o.Pods[0].Controller.Name == o.Pods[1].Controller.Name {
		t.Errorf("two ReplicaSets of one Deployment: %+v", o.Pods[:2])
	}
	for i, want := range map[int]string{2: "StatefulSet.apps", 3: "Job.batch", 4: ".", 5: "", 7: "ReplicaSet.apps"} {
		if c := o.Pods[i].Controller; c == nil || c.Kind != want {
			t.Errorf("pod %d: controller %+v, want %q", i, c, want)
		}
	}
	if o.Pods[6].Controller != nil || o.Pods[7].Labels["pod-template-hash"] != "" {
		t.Errorf("%+v", o.Pods[6:])
	}
}
