package foreign

import "packetwalk.dev/internal/model/attribution"

// kubeRouter describes the rules of kube-router's network policy controller (pkg/controllers/netpol), which k3s and k0s have, too. A
// policy's chain marks what it allows with 0x10000. A pod's chain rejects what has no mark, and marks the rest with 0x20000. Comments name
// pods and policies.
func kubeRouter() attribution.Writer {
	const said = `--comment "`
	chain := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "filter", Name: name, For: purpose, Rules: rules}
	}
	const complies = `rule to explicitly ACCEPT traffic that comply to network policies" *`
	allowed := attribution.Line{To: "ACCEPT", Text: said + complies, For: "kube-router: network policies allow it"}
	begins := func(to, what string) []attribution.Line {
		return []attribution.Line{
			{To: to, For: "kube-router: network policies of " + what},
			{To: "ACCEPT", Text: said + "KUBE-ROUTER " + complies, For: "kube-router: network policies allow it"},
		}
	}
	pods := []attribution.Line{
		{To: "KUBE-POD-FW-{id}", Text: said + `rule to jump traffic destined to POD name:{pod} namespace: {namespace} to chain *`,
			For: "kube-router: network policies of pod {namespace}/{pod}, which it is for"},
		{To: "KUBE-POD-FW-{id}", Text: said + `rule to jump traffic from POD name:{pod} namespace: {namespace} to chain *`,
			For: "kube-router: network policies of pod {namespace}/{pod}, which sent it"},
		allowed,
	}
	local := func(text, what string) attribution.Line {
		return attribution.Line{To: "RETURN", Text: said + text + ` *`, For: "kube-router: " + what + ": no policy of the node's is asked"}
	}
	return attribution.Writer{
		Name: "kube-router", File: "internal/answer/explain/foreign/kuberouter.go",
		Words: map[string]string{"id": "[A-Z2-7]{16}", "proto": "TCP|UDP", "range": "primary/cluster IP|external IP|load balancer IP",
			"what": "source pods|all sources|specified ipBlocks", "peer": "dest pods|all destinations|specified ipBlocks", "message": "[a-z ]+"},
		Chains: []attribution.Chain{
			chain("INPUT", "where kube-router begins", begins("KUBE-ROUTER-INPUT", "what is for the node itself")...),
			chain("FORWARD", "where kube-router begins", begins("KUBE-ROUTER-FORWARD", "what is forwarded")...),
			chain("OUTPUT", "where kube-router begins", begins("KUBE-ROUTER-OUTPUT", "what the node itself sends")...),
			chain("KUBE-ROUTER-INPUT", "network policies of what is for the node itself", append([]attribution.Line{
				local("allow traffic to {range} range", "to the {range} range"),
				local("allow LOCAL {proto} traffic to node ports", "to a node port")}, pods[1:]...)...),
			chain("KUBE-ROUTER-FORWARD", "network policies of what is forwarded", pods...),
			chain("KUBE-ROUTER-OUTPUT", "network policies of what the node itself sends", pods...),
			{Table: "filter", Name: "KUBE-POD-FW-{id}", Role: attribution.NetworkPolicy, For: "network policies of one pod", Rules: []attribution.Line{
				{To: "ACCEPT", Text: "--ctstate RELATED,ESTABLISHED", For: "kube-router: of a connection that was let through before"},
				{To: "DROP", Text: "--ctstate INVALID", For: "kube-router: of no connection that conntrack knows"},
				{To: "ACCEPT", Text: "--src-type LOCAL", For: "kube-router: from the pod's own node"},
				{To: "KUBE-NWPLCY-{id2}", Text: said + `run through nw policy {policy}" *`, For: "kube-router: policy {policy} chooses the pod"},
				{To: "KUBE-NWPLCY-DEFAULT", Text: said + `run through default {direction} network policy *`,
					For: "kube-router: no policy for {direction} chooses the pod"},
				{To: "NFLOG", For: "kube-router: logs what is rejected next"},
				{To: "REJECT", For: "kube-router: policies choose the pod, and none allows it"},
				{To: "MARK", Text: said + `set mark to ACCEPT traffic that comply to network policies" *`,
					For: "kube-router: marked as allowed, for the chain before"},
				{To: "MARK", For: "kube-router: the mark of the policies is removed"}}},
			chain("KUBE-NWPLCY-DEFAULT", "what no policy chooses",
				attribution.Line{To: "ACCEPT", Text: said + `allow icmp {message} messages" *`, For: "kube-router: ICMP {message} is always allowed"},
				attribution.Line{To: "MARK", For: "kube-router: allowed, as no policy chooses the pod"}),
			chain("KUBE-NWPLCY-{id}", "a policy's rules",
				attribution.Line{To: "MARK", Text: said + `rule to ACCEPT traffic from {what} to {peer} selected by policy name* {policy} namespace {namespace}" *`,
					For: "kube-router: policy {namespace}/{policy} allows it"},
				attribution.Line{To: "RETURN", Text: "--mark *", For: "kube-router: allowed by the rule before"}),
		},
	}
}
