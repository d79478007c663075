package foreign

import "packetwalk.dev/internal/model/attribution"

// linkerd returns what Linkerd's init container or CNI plugin writes into a pod (linkerd/linkerd2-proxy-init, pkg/iptables/iptables.go).
// The proxy opens new connections: a rule that redirects to it also decides which source the other end sees.
func linkerd() attribution.Writer {
	chain := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "nat", Name: name, For: purpose, Rules: rules}
	}
	skipped := attribution.Line{To: "RETURN", Text: "--dports {ports} *", For: "Linkerd: ports {ports} are skipped: not redirected"}
	const inbound = "the proxy's inbound port {proxy}; the proxy opens a new connection, in which the application sees the pod's own address, " +
		"not the client"
	return attribution.Writer{
		Name: "Linkerd", File: "internal/answer/explain/foreign/linkerd.go",
		Words: map[string]string{"port": "[0-9]+", "proxy": "[0-9]+", "kind": "[ug]id"},
		Chains: []attribution.Chain{
			chain("PREROUTING", "where Linkerd begins",
				attribution.Line{To: "PROXY_INIT_REDIRECT", For: "Linkerd: does the proxy take this incoming connection?"}),
			chain("OUTPUT", "where Linkerd begins",
				attribution.Line{To: "PROXY_INIT_OUTPUT", For: "Linkerd: does the proxy take this outgoing connection?"}),
			chain("PROXY_INIT_REDIRECT", "incoming connections that the proxy takes", skipped,
				attribution.Line{To: "RETURN", Text: "-s {range} *", For: "Linkerd: from {range}, which is skipped: not redirected"},
				attribution.Line{To: "REDIRECT", Text: "--dport {port} *--to-ports {proxy}", For: "Linkerd: port {port} goes to " + inbound},
				attribution.Line{To: "REDIRECT", Text: "--to-ports {proxy}", For: "Linkerd: to " + inbound}),
			chain("PROXY_INIT_OUTPUT", "outgoing connections that the proxy takes",
				attribution.Line{To: "RETURN", Text: "--{kind}-owner {id} *", For: "Linkerd: the proxy's own connection ({kind} {id}): not redirected"},
				attribution.Line{To: "RETURN", Text: "-o lo *", For: "Linkerd: the pod calls itself: not redirected"}, skipped,
				attribution.Line{To: "REDIRECT", Text: "--to-ports {proxy}", For: "Linkerd: to the proxy's outbound port {proxy}; the proxy opens a new " +
					"connection from this pod's address to an endpoint that it chooses"}),
		},
	}
}
