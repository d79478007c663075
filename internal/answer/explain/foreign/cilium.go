package foreign

import "packetwalk.dev/internal/model/attribution"

// cilium returns what Cilium's agent writes for iptables (cilium/cilium, pkg/datapath/iptables). Its eBPF programs do the rest: Services,
// policies and, where so configured, masquerading. They set the packet marks that these rules match.
func cilium() attribution.Writer {
	var chains []attribution.Chain
	chain := func(table, hook, name, purpose string, rules ...attribution.Line) {
		chains = append(chains,
			attribution.Chain{Table: table, Name: hook, For: "where Cilium begins", Rules: []attribution.Line{{To: name, For: "Cilium: " + purpose}}},
			attribution.Chain{Table: table, Name: name, For: purpose, Rules: rules})
	}
	const (
		proxied   = "Cilium: to its L7 or DNS proxy"
		answers   = "Cilium: from its L7 or DNS proxy"
		untracked = ": not tracked"
		toCache   = "to {address} port {port}, whose connections its pod wants untracked"
		fromCache = "from {address} port {port}, whose connections its pod wants untracked"
	)
	xfrm := attribution.Line{To: "ACCEPT", Comment: "exclude * from {table} {chain} chain", For: "Cilium: encrypted by IPsec, or to be: left alone"}
	port := func(to, end string) []attribution.Line {
		return []attribution.Line{
			{To: to, Text: "-d {address} *--dport {port} *", For: "Cilium: " + toCache + end},
			{To: to, Text: "-s {address} *--sport {port} *", For: "Cilium: " + fromCache + end}}
	}
	forProxy := []attribution.Line{xfrm,
		{To: "ACCEPT", Comment: "cilium: ACCEPT for proxy traffic", For: proxied + " or from it: accepted"},
		{To: "ACCEPT", Comment: "cilium: ACCEPT for l7 proxy upstream traffic", For: answers + " to the destination: accepted"},
		{To: "ACCEPT", Comment: "cilium: ACCEPT for proxy return traffic", For: answers + ", an answer: accepted"}}
	notrack := []attribution.Line{
		{To: "CT", Comment: "cilium: NOTRACK for pod traffic", For: "Cilium: from or to a pod (installNoConntrackIptablesRules)" + untracked},
		{To: "CT", Comment: "cilium-xfrm-notrack:", For: "Cilium: encrypted by IPsec, or to be" + untracked},
		{To: "CT", Comment: "cilium: NOTRACK for proxy traffic", For: proxied + untracked},
		{To: "CT", Comment: "cilium: NOTRACK for proxy return traffic", For: answers + ", an answer" + untracked},
		{To: "CT", Comment: "cilium: NOTRACK for proxy forward traffic", For: answers + " to the destination" + untracked},
		{To: "CT", Comment: "cilium: NOTRACK for L7 proxy upstream traffic", For: answers + " to the destination" + untracked}}
	accept, ct := port("ACCEPT", ": accepted"), port("CT", untracked)
	chain("filter", "INPUT", "CILIUM_INPUT", "is it for Cilium's proxies?", append(forProxy[:2:2], accept...)...)
	chain("filter", "OUTPUT", "CILIUM_OUTPUT", "what the node itself sends gets Cilium's mark", append(append(forProxy[:4:4], accept...),
		attribution.Line{To: "MARK", Comment: "cilium: host->any mark as from host", For: "Cilium: sent by the node itself: marked as such"})...)
	chain("filter", "FORWARD", "CILIUM_FORWARD", "is it from or to a pod?", append([]attribution.Line{xfrm,
		{To: "ACCEPT", Comment: "cilium: any->cluster on {link} forward accept", For: "Cilium: to a pod, by {link}: forwarded"},
		{To: "ACCEPT", Comment: "cilium: cluster->any on {link} forward accept*", For: "Cilium: from a pod, by {link}: forwarded"}}, accept...)...)
	chain("nat", "PREROUTING", "CILIUM_PRE_nat", "nothing unless IPsec is on", xfrm)
	chain("nat", "OUTPUT", "CILIUM_OUTPUT_nat", "nothing unless IPsec is on", xfrm)
	chain("nat", "POSTROUTING", "CILIUM_POST_nat", "is it masqueraded?", xfrm,
		attribution.Line{To: "ACCEPT", Comment: "exclude traffic to cluster nodes from masquerade",
			For: "Cilium: to a node of the cluster: keeps the pod's address"},
		attribution.Line{To: "SNAT", Comment: "cilium snat non-cluster via source route", Text: "--to-source {address}*",
			For: "Cilium: from a pod to outside the cluster: leaves with {address}, the route's source"},
		attribution.Line{To: "MASQUERADE", Comment: "cilium masquerade non-cluster", Text: "! -d {range} *",
			For: "Cilium: from a pod to outside {range}: leaves with the node's address", Not: "Cilium: not from a pod to outside {range}"},
		attribution.Line{To: "ACCEPT", Comment: "exclude proxy return traffic from masquerade", For: answers + ", an answer: keeps its address"},
		attribution.Line{To: "SNAT", Comment: "cilium host->cluster masquerade", Text: "--to-source {address}",
			For: "Cilium: from the node to a pod elsewhere: leaves with {address}, the node's address in the pods' network"},
		attribution.Line{To: "SNAT", Comment: "cilium host->cluster from {loopback} masquerade", Text: "--to-source {address}",
			For: "Cilium: from {loopback} to a pod: with the source {address}, so that the pod can answer"},
		attribution.Line{To: "SNAT", Comment: "hairpin traffic that originated from a local pod", Text: "--to-source {address}",
			For: "Cilium: from a pod of this node, translated to one of this node: with the source {address}, so that the answer comes back here"})
	chain("mangle", "POSTROUTING", "CILIUM_POST_mangle", "nothing of today's versions")
	chain("mangle", "PREROUTING", "CILIUM_PRE_mangle", "is it for Cilium's proxies?",
		attribution.Line{To: "MARK", Comment: "cilium: any->pod redirect proxied traffic to host proxy",
			For: "Cilium: of a connection that its proxy has: marked, to be routed there"},
		attribution.Line{To: "TPROXY", Comment: "cilium: TPROXY to host {proxy} proxy", Text: "--on-port {port} *",
			For: "Cilium: to its proxy {proxy}, port {port}, which opens a new connection"},
		attribution.Line{To: "CONNMARK", Comment: "cilium: primary ENI", For: "Cilium: answers leave by the interface on which the connection came"})
	chain("raw", "PREROUTING", "CILIUM_PRE_raw", "what conntrack does not see", append(notrack[:3:3], ct...)...)
	chain("raw", "OUTPUT", "CILIUM_OUTPUT_raw", "what conntrack does not see", append(append(notrack[:1:1], notrack[3:]...), ct...)...)
	return attribution.Writer{Name: "Cilium", File: "internal/answer/explain/foreign/cilium.go", Words: map[string]string{"port": "[0-9]+"},
		Chains: chains}
}
