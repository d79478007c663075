package foreign

import "packetwalk.dev/internal/model/attribution"

// unknownWriter describes rules that AKS's own tests expect on nodes (Azure/AgentBaker, e2e/validation.go) and that no source found so far
// writes.
func unknownWriter() attribution.Writer {
	return attribution.Writer{
		Name: "unknown writer", File: "internal/answer/explain/foreign/unknownwriter.go",
		Words: map[string]string{"port": "[0-9]+"},
		Chains: []attribution.Chain{{Table: "mangle", Name: "FORWARD", For: "what the node forwards", Rules: []attribution.Line{
			{To: "DROP", Text: "-d 168.63.129.16/32 *--dport {port}",
				For: "unknown writer, on AKS nodes: pods may not reach Azure's wire server, port {port}"}}}},
	}
}
