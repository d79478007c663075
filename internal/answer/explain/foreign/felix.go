package foreign

import (
	"slices"
	"strings"

	"packetwalk.dev/internal/model/reason"
)

// PolicyName is a policy's name as people write it, from felix's for it: that of Kubernetes' NetworkPolicy shop/web is
// shop/knp.default.web (libcalico-go/lib/backend/k8s/conversion). Calico's own policies stay as they are.
func PolicyName(felix string) string { return strings.Replace(felix, "/knp.default.", "/", 1) }

// Allows reports whether a rule of a policy's chain allows what it applies to: it sets felix's mark of accepted packets.
func Allows(rule string) bool {
	return strings.HasSuffix(rule, "-j MARK --set-xmark 0x10000/0x10000") || strings.Contains(rule, " meta mark set meta mark | 0x00010000 ")
}

// felix is Calico's agent in iptables mode: policies by pod, and the nat chains of IPPools (felix/rules). The first of a rule's comments is
// a hash of the chain up to that rule. The second, where there is one, says what the rule is for.
func felix(pools []Pool) reason.Writer {
	const marked = "Calico: a policy allowed it"
	chain := func(name, purpose string, rules ...reason.Line) reason.Chain {
		return reason.Chain{Table: "filter", Name: name, For: purpose, Rules: rules}
	}
	asks := func(table, name, purpose string, rules ...reason.Line) reason.Chain {
		return reason.Chain{Table: table, Name: name, Role: reason.PolicyList, For: purpose, Rules: rules}
	}
	decides := func(name, purpose string, rules ...reason.Line) reason.Chain {
		return reason.Chain{Table: "filter", Name: name, Role: reason.NetworkPolicy, For: purpose, Rules: rules}
	}
	flowLog := reason.Line{To: "NFLOG", For: "Calico: counted for its flow logs"}
	policy := func(direction string) []reason.Line {
		verdict := "Calico policy {policy} "
		return []reason.Line{
			{To: "MARK", Text: "--set-xmark 0x10000/0x10000", For: verdict + "allows " + direction},
			{To: "MARK", Text: "--set-xmark 0x20000/0x20000", For: verdict + "leaves " + direction + " to the next tier"},
			{To: "MARK", Text: "--set-xmark 0x40000/0x40000", For: verdict + "denies " + direction},
			{To: "MARK", Text: "--set-xmark 0x0/{bit}", For: verdict + "excepts a range of " + direction},
			{To: "MARK", For: verdict + "checks a rule of several parts for " + direction},
			{To: "DROP", For: verdict + "denies " + direction},
			flowLog,
			{To: "LOG", For: verdict + "logs " + direction},
			{To: "RETURN", Text: "--mark *", For: "Calico: decided by the rule before"},
			{Comment: "Policy {policy} " + direction, For: verdict + "has no rule for " + direction},
		}
	}
	profile := func(direction string) []reason.Line {
		return []reason.Line{
			{To: "MARK", Comment: "Profile {profile} " + direction, For: "Calico profile {profile} allows " + direction},
			{To: "RETURN", Text: "--mark *", For: "Calico: allowed by the rule before"},
			flowLog,
			{Comment: "Profile {profile} " + direction, For: "Calico profile {profile} has no rule for " + direction},
		}
	}
	endpoint := func(direction, end string) []reason.Line {
		return []reason.Line{
			{To: "ACCEPT", Text: "--ctstate RELATED,ESTABLISHED", For: "Calico: of a connection that was let through before"},
			{To: "DROP", Text: "--ctstate INVALID", For: "Calico: of no connection that conntrack knows"},
			{To: "MARK", Comment: "Start of tier {tier}", For: "Calico: policies of tier {tier} begin"},
			{To: "MARK", For: "Calico: nothing is allowed yet"},
			flowLog,
			{To: "cali-{list}-{id}", Text: "--mark *", For: "Calico: the next policy"},
			{To: "cali-pr{way}-{profile}", For: "Calico: profile {profile}"},
			{To: "RETURN", Comment: "Return if {what} accepted", For: "Calico: a {what} allowed it"},
			{To: "DROP", Comment: "{tierEnd}Drop if no policies passed packet",
				For: "Calico: [{policies}, |]" + direction + ": no rule allows [{flow} " + end + "|the packet]"},
			{To: "DROP", Comment: "Drop if no profiles matched", For: "Calico: no profile allowed it"},
		}
	}
	pod := func(direction, end string) []reason.Line {
		return append([]reason.Line{
			{To: "DROP", Comment: "Drop {tunnel} encapped packets originating in workloads", For: "Calico: pods send no {tunnel} packets"},
			{To: "MARK", Comment: "Start of policies", For: "Calico: its policies begin"},
		}, endpoint(direction, end)...)
	}
	// Pods whose interfaces begin alike, up to a hexadecimal digit, have a chain of that digit.
	dispatch := func(name, list, way string) []reason.Chain {
		pods := []reason.Line{
			{To: list + "-{link}", For: "Calico: " + way + " the pod behind {link}"},
			{To: "DROP", For: "Calico: " + way + " no pod that it knows"},
		}
		branch := reason.Line{To: name + "-{branch}", For: "Calico: " + way + " one of the pods whose interfaces begin alike"}
		return []reason.Chain{
			decides(name, "finds the pod that a packet is "+way, append(pods, branch)...),
			decides(name+"-{branch}", "finds the pod that a packet is "+way, pods...),
		}
	}
	group := []reason.Line{
		{To: "cali-{list}-{next}", For: "Calico: the next policy"},
		{To: "RETURN", For: "Calico: decided by the policy before"},
	}
	in := func(table, name, purpose string, rules ...reason.Line) reason.Chain {
		return reason.Chain{Table: table, Name: name, For: purpose, Rules: rules}
	}
	hostPolicies := reason.Line{To: "cali-{where}-host-endpoint", For: "Calico: policies of the node's own interfaces"}
	untracked := reason.Line{To: "NOTRACK", For: "Calico: VXLAN between nodes needs no tracking"}
	accepted := reason.Line{To: "ACCEPT", Text: "--mark *", For: marked}
	return reason.Writer{
		Name: "Calico's felix", File: "internal/answer/explain/foreign/felix.go",
		Words: map[string]string{"way": "[io]", "list": "[pg][io]", "what": "policy|profile", "tunnel": "(?:IPv[46] )?VXLAN|IPinIP|IPIP", "who": ".*",
			"link": `[^\s]+`, "tier": `[^"]+`, "where": "from|to", "branch": "0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f",
			"io": "in|out", "fromHost": "fh|fhfw", "toHost": "th|thfw",
			"host": "[ft]h(?:fw)?", "hosts": "(?:host-endpoint|hep-forward)(?:-[^-])?",
			"alike": "(?:host-endpoint|hep-forward)-[^-]",
			"bit":   "0x40000|0x80000|0x100000", "table": "raw|mangle|filter", "tierEnd": `(?:End of tier [^"]+\. )?`},
		Comments: []string{"Policy {policy} ingress", "Policy {policy} egress"},
		Know: func(r *reason.Rule, f reason.Fields) {
			f.Set("policy", PolicyName(f["policy"]))
			poolsOf(pools).know(r, f)
		},
		Always: felixAlways,
		Chains: slices.Concat([]reason.Chain{
			in("raw", "PREROUTING", "where Calico begins", reason.Line{To: "cali-PREROUTING", For: "Calico: what comes in"}),
			in("raw", "OUTPUT", "where Calico begins", reason.Line{To: "cali-OUTPUT", For: "Calico: what the node itself sends"}),
			in("raw", "cali-PREROUTING", "what comes in", untracked,
				reason.Line{To: "MARK", Text: "--set-xmark 0x0/*", For: "Calico: nothing is known yet"},
				reason.Line{To: "MARK", For: "Calico: it comes from a pod"},
				reason.Line{To: "cali-rpf-skip", For: "Calico: pods that may send from other addresses"},
				reason.Line{To: "DROP", For: "Calico: the pod sent it from an address that is not the pod's"},
				hostPolicies, accepted),
			in("raw", "cali-OUTPUT", "what the node itself sends", untracked,
				reason.Line{To: "MARK", For: "Calico: nothing is known yet"}, hostPolicies, accepted),
			in("raw", "cali-rpf-skip", "pods that may send from other addresses"),
			in("mangle", "PREROUTING", "where Calico begins", reason.Line{To: "cali-PREROUTING", For: "Calico: what comes in"}),
			in("mangle", "POSTROUTING", "where Calico begins", reason.Line{To: "cali-POSTROUTING", For: "Calico: what leaves"}),
			in("mangle", "cali-PREROUTING", "what comes in",
				reason.Line{To: "ACCEPT", Text: "--ctstate RELATED,ESTABLISHED", For: "Calico: of a connection that was let through before"},
				hostPolicies, accepted),
			in("mangle", "cali-POSTROUTING", "what leaves",
				reason.Line{To: "cali-egress-dscp", For: "Calico: sets the DSCP of what pods send out of the cluster"},
				reason.Line{To: "RETURN", Text: "--mark *", For: marked},
				reason.Line{To: "MARK", For: "Calico: nothing is allowed yet"}, hostPolicies),
			in("mangle", "cali-egress-dscp", "DSCP of what pods send out of the cluster"),
			chain("cali-cidr-block", "ranges that no route of this node leads to"),
			chain("INPUT", "where Calico begins", reason.Line{To: "cali-INPUT", For: "Calico: what is for the node itself"}),
			chain("OUTPUT", "where Calico begins", reason.Line{To: "cali-OUTPUT", For: "Calico: what the node itself sends"}),
			chain("FORWARD", "where Calico begins and ends", reason.Line{To: "cali-FORWARD", For: "Calico: policies of what is forwarded"},
				reason.Line{To: "ACCEPT", Comment: "Policy explicitly accepted packet.", For: marked},
				reason.Line{To: "MARK", Comment: "cali:{hash}", For: "Calico: marked as allowed, for the chains after this"}),
			chain("cali-FORWARD", "policies of what is forwarded",
				reason.Line{To: "MARK", For: "Calico: nothing is allowed yet"},
				reason.Line{To: "cali-from-hep-forward", For: "Calico: policies of the node's own interfaces, by where it came in"},
				reason.Line{To: "cali-to-hep-forward", For: "Calico: policies of the node's own interfaces, by where it leaves"},
				reason.Line{To: "cali-from-wl-dispatch", For: "Calico: policies of the pod that sent it"},
				reason.Line{To: "cali-to-wl-dispatch", For: "Calico: policies of the pod that it is for"},
				reason.Line{To: "cali-cidr-block", For: "Calico: ranges that no route of this node leads to"}),
			chain("cali-INPUT", "policies of what is for the node itself",
				reason.Line{To: "ACCEPT", Comment: "Allow {tunnel} packets from {who}", For: "Calico: {tunnel} from other nodes"},
				reason.Line{To: "DROP", Comment: "Drop {tunnel} packets from non-{who}", For: "Calico: {tunnel} from others than nodes"},
				reason.Line{To: "cali-wl-to-host", For: "Calico: from a pod to its node"},
				reason.Line{To: "MARK", For: "Calico: nothing is allowed yet"},
				reason.Line{To: "cali-from-host-endpoint", For: "Calico: policies of the node's own interfaces"}, accepted),
			chain("cali-OUTPUT", "policies of what the node itself sends",
				reason.Line{To: "ACCEPT", Comment: "Allow {tunnel} packets to other {who}", For: "Calico: {tunnel} to other nodes"},
				reason.Line{To: "RETURN", Text: "-o {link}", For: "Calico: from the node to a pod: nobody is asked"},
				reason.Line{To: "MARK", For: "Calico: nothing is allowed yet"},
				reason.Line{To: "cali-to-host-endpoint", For: "Calico: policies of the node's own interfaces"}, accepted),
			chain("cali-wl-to-host", "from a pod to its node",
				reason.Line{To: "cali-from-wl-dispatch", For: "Calico: policies of the pod that sent it"},
				reason.Line{To: "{action}", Comment: "Configured DefaultEndpointToHostAction",
					For: "Calico: what its configuration does with pods' packets to their node (DefaultEndpointToHostAction)"}),
			asks("filter", "cali-fw-{link}", "policies of what one pod sends", pod("egress", "to {receiver}")...),
			asks("filter", "cali-tw-{link}", "policies of what is for one pod", pod("ingress", "from {sender}")...),
			asks("{table}", "cali-g{way}-{id}", "policies that several pods have", group...),
			in("{table}", "cali-po-{id}", "a policy's rules for what is sent", policy("egress")...),
			in("{table}", "cali-pi-{id}", "a policy's rules for what is received", policy("ingress")...),
			in("{table}", "cali-pro-{id}", "a namespace's or service account's rules for what is sent", profile("egress")...),
			in("{table}", "cali-pri-{id}", "a namespace's or service account's rules for what is received", profile("ingress")...),
		}, dispatch("cali-from-wl-dispatch", "cali-fw", "from"), dispatch("cali-to-wl-dispatch", "cali-tw", "for"),
			felixHosts(endpoint), felixNAT()),
	}
}
