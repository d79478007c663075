package foreign

import "packetwalk.dev/internal/model/attribution"

// npm describes the rules of Azure Network Policy Manager, version 2 (azure-container-networking, npm/pkg/dataplane/policies). The comments
// of a policy's rules name what they look for. A policy's chain is named by a hash, in decimal digits or, by
// newer versions, in base 36.
func npm() attribution.Writer {
	chain := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "filter", Name: name, For: purpose, Rules: rules}
	}
	rules := []attribution.Line{
		{To: "AZURE-NPM-ACCEPT", Comment: "{rule}", For: "Azure NPM: allowed: {rule}"},
		{To: "AZURE-NPM-INGRESS-ALLOW-MARK", Comment: "{rule}", For: "Azure NPM: allowed in: {rule}"},
		{To: "MARK", Comment: "{rule}", For: "Azure NPM: denied unless another policy allows it: {rule}"},
	}
	return attribution.Writer{
		Name: "Azure NPM", File: "internal/answer/explain/foreign/npm.go",
		Words: map[string]string{"policy": `[^\s]+?`, "rule": ".+", "hash": "[0-9a-z]+", "rest": ".*"},
		Chains: []attribution.Chain{
			chain("FORWARD", "where Azure NPM begins", attribution.Line{To: "AZURE-NPM", For: "Azure NPM: do network policies allow it?"}),
			{Table: "filter", Name: "AZURE-NPM", Role: attribution.NetworkPolicy, For: "network policies", Rules: []attribution.Line{
				{To: "AZURE-NPM-INGRESS", For: "Azure NPM: policies of the receiver"},
				{To: "AZURE-NPM-EGRESS", For: "Azure NPM: policies of the sender"},
				{To: "AZURE-NPM-ACCEPT", For: "Azure NPM: no policy denies it"}}},
			chain("AZURE-NPM-INGRESS", "policies of the receiver",
				attribution.Line{To: "AZURE-NPM-INGRESS-{hash}", Comment: "INGRESS-POLICY-{policy}-TO-{rest}",
					For: "Azure NPM: policy {policy} chooses the receiver"},
				attribution.Line{To: "DROP", For: "Azure NPM: policies choose the receiver, and none allows it"}),
			chain("AZURE-NPM-EGRESS", "policies of the sender",
				attribution.Line{To: "AZURE-NPM-EGRESS-{hash}", Comment: "EGRESS-POLICY-{policy}-FROM-{rest}",
					For: "Azure NPM: policy {policy} chooses the sender"},
				attribution.Line{To: "DROP", For: "Azure NPM: policies choose the sender, and none allows it"},
				attribution.Line{To: "AZURE-NPM-ACCEPT", For: "Azure NPM: no policy of the sender denies what the receiver's allow"}),
			chain("AZURE-NPM-INGRESS-ALLOW-MARK", "what a policy of the receiver allows",
				attribution.Line{To: "MARK", For: "Azure NPM: marked as allowed by the receiver's policies"},
				attribution.Line{To: "AZURE-NPM-EGRESS", For: "Azure NPM: policies of the sender"}),
			chain("AZURE-NPM-ACCEPT", "what is allowed",
				attribution.Line{To: "MARK", Comment: "CLEAR-AZURE-NPM-MARKS", For: "Azure NPM: the marks of the policies are removed"}, attribution.Line{To: "ACCEPT", For: "Azure NPM: policies allow it"}),
			chain("AZURE-NPM-INGRESS-{hash}", "a policy's rules for what is received", rules...),
			chain("AZURE-NPM-EGRESS-{hash}", "a policy's rules for what is sent", rules...),
		},
	}
}
