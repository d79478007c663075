package snapshot_test

import (
	"testing"

	"packetwalk.dev/internal/model/snapshot"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestSelects: a policy selects the pods of its namespace that Kubernetes' own selectors match.
func TestSelects(t *testing.T) {
	for name, requirements := range map[string][]snapshot.Requirement{
		"all":            nil,
		"in":             {{Key: "app", Operator: snapshot.LabelIn, Values: []string{"web", "db"}}},
		"not in":         {{Key: "app", Operator: snapshot.LabelNotIn, Values: []string{"web"}}},
		"exists":         {{Key: "tier", Operator: snapshot.LabelExists}},
		"does not exist": {{Key: "tier", Operator: snapshot.LabelDoesNotExist}},
		"empty value":    {{Key: "tier", Operator: snapshot.LabelIn, Values: []string{""}}},
		"both of two must fit": {
			{Key: "app", Operator: snapshot.LabelIn, Values: []string{"web"}}, {Key: "tier", Operator: snapshot.LabelExists},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var theirs metav1.LabelSelector
			for _, r := range requirements {
				theirs.MatchExpressions = append(theirs.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values})
			}
			selector, err := metav1.LabelSelectorAsSelector(&theirs)
			if err != nil {
				t.Fatal(err)
			}
			p := snapshot.NetworkPolicy{Namespace: "shop", Selector: requirements}
			for _, of := range []map[string]string{nil, {"app": "web"}, {"app": "db", "tier": ""}, {"app": "web", "tier": "x"}, {"tier": "x"}} {
				pod := snapshot.Pod{Namespace: "shop", Labels: of}
				if got, want := p.Selects(&pod), selector.Matches(labels.Set(of)); got != want {
					t.Errorf("%v: %v, want %v", of, got, want)
				}
				if pod.Namespace = "other"; p.Selects(&pod) {
					t.Errorf("%v: selects a pod of another namespace", of)
				}
			}
		})
	}
}
