package capture

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"packetwalk.dev/internal/model/snapshot"
)

// NetworkPoliciesFile is the list of NetworkPolicies.
const NetworkPoliciesFile = "networkpolicies.json"

// The shape of a NetworkPolicy as far as a capture keeps it (k8s.io/api networking/v1).
type (
	networkPolicyObject struct {
		Metadata metaObject `json:"metadata"`
		Spec     struct {
			PodSelector struct {
				MatchLabels      map[string]string   `json:"matchLabels,omitempty"`
				MatchExpressions []requirementObject `json:"matchExpressions,omitempty"`
			} `json:"podSelector"`
			PolicyTypes []string `json:"policyTypes,omitempty"`
		} `json:"spec"`
	}
	requirementObject struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values,omitempty"`
	}
)

// trimNetworkPolicy keeps which pods a policy selects. What it allows is for the policy engine, whose rules the nodes have.
func trimNetworkPolicy(object json.RawMessage) ([]byte, error) {
	var kept networkPolicyObject
	if err := json.Unmarshal(object, &kept); err != nil {
		return nil, err
	}
	if _, err := kept.networkPolicy(); err != nil {
		return nil, err
	}
	return json.Marshal(kept)
}

// networkPolicies returns those of a list; nil where there is no list.
func networkPolicies(list []networkPolicyObject, listed bool) ([]snapshot.NetworkPolicy, error) {
	if !listed {
		return nil, nil
	}
	all := make([]snapshot.NetworkPolicy, 0, len(list))
	for i := range list {
		p, err := list[i].networkPolicy()
		if err != nil {
			return nil, fmt.Errorf("read Kubernetes objects: %s: %w", NetworkPoliciesFile, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// networkPolicy refuses what the API server would not store: a policy that is half understood would select other pods.
func (p *networkPolicyObject) networkPolicy() (snapshot.NetworkPolicy, error) {
	out := snapshot.NetworkPolicy{Namespace: p.Metadata.Namespace, Name: p.Metadata.Name}
	if !isObjectName(out.Namespace) || !isObjectName(out.Name) {
		return out, fmt.Errorf("invalid name %q", out.Namespace+"/"+out.Name)
	}
	for _, t := range p.Spec.PolicyTypes {
		switch t {
		case "Ingress":
			out.Ingress = true
		case "Egress":
			out.Egress = true
		default:
			return out, fmt.Errorf("%q: unknown policy type %q", out.Namespace+"/"+out.Name, t)
		}
	}
	if len(p.Spec.PolicyTypes) == 0 { // the API server always sets them
		return out, fmt.Errorf("%q: no policy types", out.Namespace+"/"+out.Name)
	}
	labels := p.Spec.PodSelector.MatchLabels
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out.Selector = append(out.Selector, snapshot.Requirement{Key: key, Operator: snapshot.LabelIn, Values: []string{labels[key]}})
	}
	for _, e := range p.Spec.PodSelector.MatchExpressions {
		operator := snapshot.LabelOperator(e.Operator)
		switch operator {
		case snapshot.LabelIn, snapshot.LabelNotIn:
			if len(e.Values) == 0 {
				return out, fmt.Errorf("%q: operator %s without values", out.Namespace+"/"+out.Name, operator)
			}
		case snapshot.LabelExists, snapshot.LabelDoesNotExist:
			if len(e.Values) > 0 {
				return out, fmt.Errorf("%q: operator %s with values", out.Namespace+"/"+out.Name, operator)
			}
		default:
			return out, fmt.Errorf("%q: unknown operator %q", out.Namespace+"/"+out.Name, e.Operator)
		}
		out.Selector = append(out.Selector, snapshot.Requirement{Key: e.Key, Operator: operator, Values: e.Values})
	}
	return out, nil
}
