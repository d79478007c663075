package foreign

import "packetwalk.dev/internal/model/attribution"

// weave describes the rules of Weave Net: its translation (net/bridge.go) and its network policy controller (prog/weave-npc, npc). The sets
// of addresses that its rules look into have hashes as names; the comments say what is in them.
func weave() attribution.Writer {
	chain := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "filter", Name: name, For: purpose, Rules: rules}
	}
	begins := func(rules ...attribution.Line) []attribution.Line {
		return append(rules, attribution.Line{To: "WEAVE-NPC-EGRESS", For: "Weave: network policies of the pod that sent it"})
	}
	egress := func(rule string) []attribution.Line {
		return []attribution.Line{
			{To: "WEAVE-NPC-EGRESS-ACCEPT", Comment: "{rule}", For: "Weave: " + rule},
			{To: "RETURN", Comment: "{rule}", For: "Weave: allowed by the rule before"},
		}
	}
	return attribution.Writer{
		Name: "Weave Net", File: "internal/answer/explain/foreign/weave.go", Words: map[string]string{"rule": ".+"},
		Chains: []attribution.Chain{
			{Table: "nat", Name: "POSTROUTING", For: "where Weave begins", Rules: []attribution.Line{{To: "WEAVE", For: "Weave: is it masqueraded?"}}},
			{Table: "nat", Name: "WEAVE", For: "which source pods have outside their network", Rules: []attribution.Line{
				{To: "RETURN", Comment: "Prevent SNAT to locally running containers", For: "Weave: to pods of this node: no translation"},
				{To: "RETURN", Text: "-d 224.0.0.0/4 *", For: "Weave: multicast: no translation"},
				{To: "MASQUERADE", Text: "! -d {range} *", For: "Weave: from a pod to outside the pods' range {range}",
					Not: "Weave: not from a pod to outside the pods' range {range}"},
				{To: "MASQUERADE", Text: "! -s {range} *", For: "Weave: to a pod from outside the pods' range {range}",
					Not: "Weave: not to a pod from outside the pods' range {range}"}}},
			chain("INPUT", "where Weave begins", begins()...),
			chain("FORWARD", "where Weave begins", begins(
				attribution.Line{To: "WEAVE-NPC", For: "Weave: network policies of the pod that it is for"},
				attribution.Line{To: "NFLOG", Text: "-o weave *", For: "Weave: logs what is dropped next"},
				attribution.Line{To: "DROP", Text: "-o weave *", For: "Weave: no network policy of the receiver allows it"},
				attribution.Line{To: "ACCEPT", Text: "-i weave ! -o weave *", For: "Weave: from a pod to outside"},
				attribution.Line{To: "ACCEPT", Text: "-o weave *", For: "Weave: an answer to a pod"})...),
			{Table: "filter", Name: "WEAVE-NPC", Role: attribution.NetworkPolicy, For: "network policies of the pod that a packet is for",
				Rules: []attribution.Line{
					{To: "ACCEPT", Text: "--state RELATED,ESTABLISHED", For: "Weave: of a connection that was let through before"},
					{To: "ACCEPT", Text: "-d 224.0.0.0/4 *", For: "Weave: multicast"},
					{To: "ACCEPT", Text: "--physdev-out {link}", For: "Weave: for no pod of this node"},
					{To: "WEAVE-NPC-DEFAULT", For: "Weave: is the pod in a namespace without policies for ingress?"},
					{To: "WEAVE-NPC-INGRESS", For: "Weave: does a policy for ingress allow it?"}}},
			chain("WEAVE-NPC-DEFAULT", "what no policy for ingress chooses", attribution.Line{To: "ACCEPT", Comment: "{rule}", For: "Weave: {rule}"}),
			chain("WEAVE-NPC-INGRESS", "what policies for ingress allow",
				attribution.Line{To: "ACCEPT", Comment: "{rule}", For: "Weave: a policy for ingress allows it: {rule}"}),
			{Table: "filter", Name: "WEAVE-NPC-EGRESS", Role: attribution.NetworkPolicy, For: "network policies of the pod that sent a packet",
				Rules: []attribution.Line{
					{To: "ACCEPT", Text: "--state RELATED,ESTABLISHED", For: "Weave: of a connection that was let through before"},
					{To: "RETURN", Text: "--physdev-in {link}", For: "Weave: from no pod of this node"},
					{To: "RETURN", Text: "--dst-type LOCAL", For: "Weave: for the node itself"},
					{To: "RETURN", Text: "-d 224.0.0.0/4 *", For: "Weave: multicast"},
					{To: "WEAVE-NPC-EGRESS-DEFAULT", For: "Weave: is the pod in a namespace without policies for egress?"},
					{To: "WEAVE-NPC-EGRESS-CUSTOM", For: "Weave: does a policy for egress allow it?"},
					{To: "NFLOG", For: "Weave: logs what is dropped next"},
					{To: "DROP", For: "Weave: no network policy of the sender allows it"}}},
			chain("WEAVE-NPC-EGRESS-DEFAULT", "what no policy for egress chooses", egress("{rule}")...),
			chain("WEAVE-NPC-EGRESS-CUSTOM", "what policies for egress allow", egress("a policy for egress allows it: {rule}")...),
			chain("WEAVE-NPC-EGRESS-ACCEPT", "what policies of the sender allow",
				attribution.Line{To: "MARK", For: "Weave: marked as allowed by the sender's policies"}),
		},
	}
}
