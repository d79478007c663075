package foreign

import "packetwalk.dev/internal/model/attribution"

// portmap describes the rules of CNI's plugin for host ports (containernetworking/plugins, plugins/meta/portmap/portmap_iptables.go). With
// externalSetMarkChain, as AKS has it with kubenet, kube-proxy's chain marks instead of portmap's.
func portmap() attribution.Writer {
	chain := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "nat", Name: name, For: purpose, Rules: rules}
	}
	begins := attribution.Line{To: "CNI-HOSTPORT-DNAT", For: "portmap: is it for a host port?"}
	return attribution.Writer{
		Name: "CNI portmap", File: "internal/answer/explain/foreign/portmap.go",
		Words: map[string]string{"net": `[^"\\]+`, "id": `[^"\\]+`, "mark": "CNI-HOSTPORT-SETMARK|KUBE-MARK-MASQ"},
		Chains: []attribution.Chain{
			chain("PREROUTING", "where portmap begins", begins),
			chain("OUTPUT", "where portmap begins", begins),
			chain("POSTROUTING", "where portmap ends", attribution.Line{To: "CNI-HOSTPORT-MASQ",
				For: "portmap: is it marked to leave with the node's address?"}),
			chain("CNI-HOSTPORT-DNAT", "finds the container of a host port",
				attribution.Line{To: "CNI-DN-{hash}", Text: "--dports {ports}", For: "portmap: host ports {ports}"}),
			chain("CNI-DN-{hash}", "one container's host ports",
				attribution.Line{To: "{mark}", Text: "-s 127.0.0.1/32 *--dport {port}",
					For: "portmap: host port {port}, from the node itself"},
				attribution.Line{To: "{mark}", Text: "-s {container} *--dport {port}",
					For: "portmap: host port {port}, from {container}, which may be its container"},
				attribution.Line{To: "DNAT", Text: "--dport {port} -j DNAT --to-destination {end}", For: "portmap: host port {port} of {end}"}),
			chain("CNI-HOSTPORT-SETMARK", "marks packets that are to leave with the node's address",
				attribution.Line{To: "MARK", For: "portmap: marked, to leave with the node's address"}),
			chain("CNI-HOSTPORT-MASQ", "gives what is marked the node's address",
				attribution.Line{To: "MASQUERADE", For: "portmap: marked, leaves with the node's address"}),
		},
	}
}
