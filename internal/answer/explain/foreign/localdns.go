package foreign

import "packetwalk.dev/internal/model/attribution"

// localDNS returns the DNS caches of a node, which packets reach without conntrack: Kubernetes' NodeLocal DNSCache (kubernetes/dns,
// cmd/node-cache/app/cache_app.go) and AKS's LocalDNS (Azure/AgentBaker, parts/linux/cloud-init/artifacts/localdns.sh).
func localDNS() []attribution.Writer {
	const untracked = ": not tracked, so that no rule of table nat applies"
	writer := func(name, comment string) attribution.Writer {
		raw := []attribution.Line{
			{Comment: comment, Text: "-d {address}/{bits} *--dport {port} *", For: name + ": to {address} port {port}" + untracked},
			{Comment: comment, Text: "-s {address}/{bits} *--sport {port} *", For: name + ": an answer from {address} port {port}" + untracked},
		}
		var chains []attribution.Chain
		for _, hook := range []string{"PREROUTING", "OUTPUT"} {
			rules := raw
			if hook == "PREROUTING" {
				rules = raw[:1]
			}
			chains = append(chains, attribution.Chain{Table: "raw", Name: hook, For: "what conntrack does not see", Rules: rules})
		}
		return attribution.Writer{Name: name, File: "internal/answer/explain/foreign/localdns.go",
			Words: map[string]string{"address": "[0-9a-f.:]+", "bits": "32|128", "port": "[0-9]+"}, Chains: chains}
	}
	cache := writer("NodeLocal DNSCache", "NodeLocal DNS Cache: skip conntrack")
	const allowed = "NodeLocal DNS Cache: allow DNS traffic"
	cache.Chains = append(cache.Chains,
		attribution.Chain{Table: "filter", Name: "INPUT", For: "what the node receives", Rules: []attribution.Line{
			{To: "ACCEPT", Comment: allowed, For: "NodeLocal DNSCache: DNS query, which no rule for tracked connections would accept"}}},
		attribution.Chain{Table: "filter", Name: "OUTPUT", For: "what the node sends", Rules: []attribution.Line{
			{To: "ACCEPT", Comment: allowed, For: "NodeLocal DNSCache: DNS answer, which no rule for tracked connections would accept"}}})
	return []attribution.Writer{cache, writer("AKS LocalDNS", "localdns: skip conntrack")}
}
