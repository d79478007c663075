package capture_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/snapshot"
)

// TestNetworkPolicies: a list keeps which pods policies select, and nothing else of them. No list is not an empty one. A policy that is not
// understood makes the list unreadable: half of it would select other pods.
func TestNetworkPolicies(t *testing.T) {
	const selector = `"podSelector":{"matchLabels":{"app":"web"},` +
		`"matchExpressions":[{"key":"tier","operator":"NotIn","values":["db"]},{"key":"k","operator":"Exists"}]}`
	policy := func(name, spec string) string {
		return `{"metadata":{"namespace":"shop","name":"` + name + `","annotations":{"a":"hunter2"}},"spec":{` + spec + `}}`
	}
	both := `"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]}]`
	for name, test := range map[string]struct {
		list string
		want []snapshot.NetworkPolicy
		err  string
	}{
		"no list": {"", nil, ""},
		"empty":   {`{"items":[]}`, []snapshot.NetworkPolicy{}, ""},
		"everything": {`{"items":[` + policy("all", `"podSelector":{},"policyTypes":["Egress"]`) + `]}`,
			[]snapshot.NetworkPolicy{{Namespace: "shop", Name: "all", Egress: true}}, ""},
		"selector": {`{"items":[` + policy("web", selector+","+both) + `]}`, []snapshot.NetworkPolicy{{
			Namespace: "shop", Name: "web", Ingress: true, Egress: true, Selector: []snapshot.Requirement{
				{Key: "app", Operator: snapshot.LabelIn, Values: []string{"web"}},
				{Key: "tier", Operator: snapshot.LabelNotIn, Values: []string{"db"}},
				{Key: "k", Operator: snapshot.LabelExists},
			}}}, ""},
		"no types":       {`{"items":[` + policy("web", selector) + `]}`, nil, `"shop/web": no policy types`},
		"another type":   {`{"items":[` + policy("web", `"policyTypes":["Sideways"]`) + `]}`, nil, `"shop/web": unknown policy type "Sideways"`},
		"a hostile name": {`{"items":[` + policy(`\u001b[31mred`, both) + `]}`, nil, `invalid name "shop/\x1b[31mred"`},
		"no name":        {`{"items":[{"spec":{` + both + `}}]}`, nil, `invalid name "/"`},
		"another operator": {`{"items":[` + policy("web", both+`,"podSelector":{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}`) + `]}`, nil,
			`"shop/web": unknown operator "Gt"`},
		"no values": {`{"items":[` + policy("web", both+`,"podSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}`) + `]}`, nil,
			`"shop/web": operator In without values`},
		"values too many": {`{"items":[` + policy("web", both+`,"podSelector":{"matchExpressions":[{"key":"a","operator":"Exists","values":["1"]}]}`) + `]}`, nil,
			`"shop/web": operator Exists with values`},
		"not a list": {`[]`, nil, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			lists := map[string][]byte{}
			if test.list != "" {
				lists[capture.NetworkPoliciesFile] = []byte(test.list)
			}
			o, err := capture.ReadObjects(lists)
			if !reflect.DeepEqual(o.NetworkPolicies, test.want) || (err != nil) != (test.err != "") ||
				err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v, %v; want %+v, %s", o.NetworkPolicies, err, test.want, test.err)
			}
			if test.list == "" {
				return
			}
			is := func(l capture.ObjectList) bool { return l.File == capture.NetworkPoliciesFile }
			list := capture.ObjectLists[slices.IndexFunc(capture.ObjectLists, is)]
			kept, err := list.Trim([]byte(test.list))
			if (err != nil) != (test.err != "") || strings.Contains(string(capture.List(kept)), "192.0.2") && err == nil ||
				err == nil && strings.Contains(string(capture.List(kept)), "hunter2") {
				t.Errorf("kept %s, %v", capture.List(kept), err)
			}
		})
	}
}
