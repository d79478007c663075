package foreign

import "packetwalk.dev/internal/model/attribution"

// flannel describes flannel's rules for masquerading and forwarding (flannel-io/flannel, pkg/trafficmngr), which k3s has, too. They are in
// flannel's own chains of iptables or in its own table of nftables. The rules of versions without such chains do not name their writer.
func flannel() attribution.Writer {
	const (
		within   = "flannel: from a pod to a pod: keeps the pod's address"
		outside  = "flannel: from a pod to outside the pods' network: leaves with the node's address"
		toPod    = "flannel: from outside the pods' network to a pod of another node: leaves with the node's address"
		external = "flannel: from outside to a pod of this node: keeps the client's address"
		marked   = "flannel: kube-proxy has marked it to be masqueraded: left to kube-proxy"
		accepted = "flannel: from or to a pod: forwarded"
	)
	chain := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: table, Name: name, For: purpose, Rules: rules}
	}
	return attribution.Writer{
		Name: "flannel", File: "internal/answer/explain/foreign/flannel.go",
		Words: map[string]string{"cidr": `[0-9a-f.:]+/[0-9]+`, "other": `[0-9a-f.:]+/[0-9]+`, "side": "[sd]"},
		Chains: []attribution.Chain{
			chain("nat", "POSTROUTING", "where flannel begins", attribution.Line{To: "FLANNEL-POSTRTG", For: "flannel: is it masqueraded?"}),
			chain("filter", "FORWARD", "where flannel begins", attribution.Line{To: "FLANNEL-FWD", For: "flannel: is it from or to a pod?"}),
			chain("filter", "FLANNEL-FWD", "lets pods' packets be forwarded", attribution.Line{To: "ACCEPT", Text: "-{side} {cidr} *", For: accepted}),
			chain("nat", "FLANNEL-POSTRTG", "which source pods have outside their network",
				attribution.Line{To: "RETURN", Text: "--mark 0x4000/0x4000 *", For: marked},
				attribution.Line{To: "RETURN", Text: "! -s {other} -d {cidr} *", For: external},
				attribution.Line{To: "RETURN", Text: "-s {other} -d {cidr} *", For: within},
				attribution.Line{To: "MASQUERADE", Text: "! -s {other} -d {cidr} *", For: toPod},
				attribution.Line{To: "MASQUERADE", Text: "-s {cidr} ! -d {other} *", For: outside}),
			chain("flannel-ipv{version}", "forward", "lets pods' packets be forwarded", attribution.Line{To: "accept", For: accepted}),
			chain("flannel-ipv{version}", "postrtg", "which source pods have outside their network",
				attribution.Line{To: "return", Text: "meta mark 0x00004000 *", For: marked},
				attribution.Line{To: "return", Text: "saddr {other} * daddr {cidr} *", For: within},
				attribution.Line{To: "return", Text: "saddr != {other} * daddr {cidr} *", For: "flannel: to a pod, from outside the pods of this node"},
				attribution.Line{To: "masquerade", Text: "saddr != {other} *", For: toPod},
				attribution.Line{To: "masquerade", Text: "saddr {cidr} *", For: outside}),
		},
	}
}
