package foreign

import "packetwalk.dev/internal/model/reason"

// felixHosts are the chains of HostEndpoints, the policies of a node's own interfaces (felix/rules/endpoints.go and dispatch.go): in table
// filter those of what the node sends, receives and forwards, in mangle those before translation (preDNAT), in raw those without tracking
// (doNotTrack). decides are the lines of a chain that decides about an interface.
func felixHosts(decides func(direction, end string) []reason.Line) []reason.Chain {
	in := func(name, purpose string, role reason.Role, rules ...reason.Line) reason.Chain {
		return reason.Chain{Table: "{table}", Name: name, Role: role, For: purpose, Rules: rules}
	}
	host := func(direction, end string, more ...reason.Line) []reason.Line {
		return append(append(more,
			reason.Line{To: "cali-failsafe-{io}", For: "Calico: is it for a port that is open on every node?"},
			reason.Line{To: "NOTRACK", For: "Calico: a policy without connection tracking allowed it"},
			reason.Line{To: "MARK", Comment: "Allow forwarded traffic by default", For: "Calico: no policy is about what the node forwards"},
			reason.Line{To: "RETURN", Comment: "Return for accepted forward traffic", For: "Calico: no policy is about what the node forwards"},
		), decides(direction, end)...)
	}
	return []reason.Chain{
		in("cali-{fromHost}-{link}", "policies of what comes in by one of the node's own interfaces", reason.PolicyList,
			host("ingress", "from {sender}")...),
		in("cali-{toHost}-{link}", "policies of what leaves by one of the node's own interfaces", reason.PolicyList,
			host("egress", "to {receiver}",
				reason.Line{To: "MARK", Text: "--ctstate RELATED,ESTABLISHED *--set-xmark *",
					For: "Calico: of a connection that was let through before"},
				reason.Line{To: "RETURN", Text: "--ctstate RELATED,ESTABLISHED", For: "Calico: of a connection that was let through before"})...),
		in("cali-failsafe-{io}", "ports that are open on every node", reason.NoRole,
			reason.Line{To: "ACCEPT", For: "Calico: a port that its configuration keeps open on every node (failsafe)"}),
		in("cali-{where}-{hosts}", "finds the interface that a packet came in by, or leaves by", reason.NoRole,
			reason.Line{To: "cali-{host}-any-interface-at-all", For: "Calico: policies of all interfaces of the node"},
			reason.Line{To: "cali-{host}-_{hash}", For: "Calico: policies of all interfaces of the node, or of one with a long name"},
			reason.Line{To: "cali-{host}-{link}", For: "Calico: policies of interface {link}"},
			reason.Line{To: "cali-{where}-{alike}", For: "Calico: one of the interfaces whose names begin alike"},
			reason.Line{To: "RETURN", Comment: "Skip egress WHEP policy for traffic to local workload",
				For: "Calico: to a pod of this node, where policies of all interfaces do not apply"}),
	}
}
