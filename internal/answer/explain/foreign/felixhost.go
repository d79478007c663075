package foreign

import "packetwalk.dev/internal/model/attribution"

// felixHosts returns the chains of HostEndpoints, the policies of a node's own interfaces (felix/rules/endpoints.go and dispatch.go): in
// table filter those of what the node sends, receives and forwards, in mangle those before translation (preDNAT), in raw those without
// tracking (doNotTrack). decides are the lines of a chain that decides about an interface.
func felixHosts(decides func(direction, end string) []attribution.Line) []attribution.Chain {
	in := func(name, purpose string, role attribution.Role, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "{table}", Name: name, Role: role, For: purpose, Rules: rules}
	}
	host := func(direction, end string, more ...attribution.Line) []attribution.Line {
		return append(append(more,
			attribution.Line{To: "cali-failsafe-{io}", For: "Calico: is it for a port that is open on every node?"},
			attribution.Line{To: "NOTRACK", For: "Calico: a policy without connection tracking allowed it"},
			attribution.Line{To: "MARK", Comment: "Allow forwarded traffic by default", For: "Calico: no policy is about what the node forwards"},
			attribution.Line{To: "RETURN", Comment: "Return for accepted forward traffic", For: "Calico: no policy is about what the node forwards"},
		), decides(direction, end)...)
	}
	return []attribution.Chain{
		in("cali-{fromHost}-{link}", "policies of what comes in by one of the node's own interfaces", attribution.PolicyList,
			host("ingress", "from {sender}")...),
		in("cali-{toHost}-{link}", "policies of what leaves by one of the node's own interfaces", attribution.PolicyList,
			host("egress", "to {receiver}",
				attribution.Line{To: "MARK", Text: "--ctstate RELATED,ESTABLISHED *--set-xmark *",
					For: "Calico: of a connection that was let through before"},
				attribution.Line{To: "RETURN", Text: "--ctstate RELATED,ESTABLISHED", For: "Calico: of a connection that was let through before"})...),
		in("cali-failsafe-{io}", "ports that are open on every node", attribution.NoRole,
			attribution.Line{To: "ACCEPT", For: "Calico: a port that its configuration keeps open on every node (failsafe)"}),
		in("cali-{where}-{hosts}", "finds the interface that a packet came in by, or leaves by", attribution.NoRole,
			attribution.Line{To: "cali-{host}-any-interface-at-all", For: "Calico: policies of all interfaces of the node"},
			attribution.Line{To: "cali-{host}-_{hash}", For: "Calico: policies of all interfaces of the node, or of one with a long name"},
			attribution.Line{To: "cali-{host}-{link}", For: "Calico: policies of interface {link}"},
			attribution.Line{To: "cali-{where}-{alike}", For: "Calico: one of the interfaces whose names begin alike"},
			attribution.Line{To: "RETURN", Comment: "Skip egress WHEP policy for traffic to local workload",
				For: "Calico: to a pod of this node, where policies of all interfaces do not apply"}),
	}
}
