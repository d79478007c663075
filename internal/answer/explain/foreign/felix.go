package foreign

import (
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
)

// PolicyName returns a policy's name as people write it, from felix's for it: that of Kubernetes' NetworkPolicy shop/web is
// shop/knp.default.web (libcalico-go/lib/backend/k8s/conversion). Calico's own policies stay as they are.
func PolicyName(felix string) string { return strings.Replace(felix, "/knp.default.", "/", 1) }

// Allows reports whether a rule of a policy's chain allows what it applies to: it sets felix's mark of accepted packets.
func Allows(rule string) bool {
	return strings.HasSuffix(rule, "-j MARK --set-xmark 0x10000/0x10000") || strings.Contains(rule, " meta mark set meta mark | 0x00010000 ")
}

// PolicyRules returns for each rule of a policy's chain which of the policy's rules it belongs to, from 1; 0 for none. Felix makes a rule for
// each peer of a Kubernetes NetworkPolicy's rule, and leaves out what is of the other address family. count is how many there are.
func PolicyRules(chain []string) (numbers []int, count int) {
	numbers = make([]int, len(chain))
	for i, text := range chain {
		drops := felixDropsDenied.MatchString(text)
		decides := !drops && felixDecides.MatchString(text) || felixDenies.MatchString(text) &&
			slices.ContainsFunc(chain[i+1:min(i+3, len(chain))], felixDropsDenied.MatchString)
		if decides {
			count++
		}
		numbers[i] = count
		if !decides && !drops && !felixAfter.MatchString(text) {
			numbers[i]++ // a part of the next
		}
	}
	for i, n := range numbers {
		if n > count {
			numbers[i] = 0
		}
	}
	return numbers, count
}

// Rules of a policy's chain. The mark of a denial is one for parts of rules in older releases, which drop without it.
var (
	felixDecides = regexp.MustCompile(`-j MARK --set-xmark 0x[12]0000/0x[12]0000$|-j LOG\b|-j DROP$|` +
		` meta mark set meta mark \| 0x000[12]0000\b| log prefix .* level `)
	felixDenies      = regexp.MustCompile(`-j MARK --set-xmark 0x40000/0x40000$| meta mark set meta mark \| 0x00040000\b`)
	felixDropsDenied = regexp.MustCompile(`--mark 0x40000/0x40000 -j DROP$|meta mark & 0x00040000 == 0x00040000 .*\bdrop\b`)
	felixAfter       = regexp.MustCompile(`-j (?:RETURN|NFLOG)\b| return\b| log prefix .* group `)
)

// BeginsTier reports whether a rule's comment is that of the rule with which a tier of policies begins.
func BeginsTier(comment string) bool { return strings.Contains(comment, "Start of tier ") }

// Excepts reports whether a rule of a policy's chain takes a range out of those that the next rule is about.
func Excepts(rule string) bool { return excepts.MatchString(rule) }

var excepts = regexp.MustCompile(`-j MARK --set-xmark 0x0/0x(?:40000|80000|100000)$| meta mark set meta mark & 0xff(?:fb|f7|ef)ffff\b`)

// felix describes the rules of Calico's agent in iptables mode: policies by pod, and the nat chains of IPPools (felix/rules). The first of
// a rule's comments is a hash of the chain up to that rule. The second, where there is one, says what the rule is for.
func felix(pools []Pool) attribution.Writer {
	const marked = "Calico: a policy allowed it"
	chain := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "filter", Name: name, For: purpose, Rules: rules}
	}
	asks := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: table, Name: name, Role: attribution.PolicyList, For: purpose, Rules: rules}
	}
	decides := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "filter", Name: name, Role: attribution.NetworkPolicy, For: purpose, Rules: rules}
	}
	flowLog := attribution.Line{To: "NFLOG", For: "Calico: counted for its flow logs"}
	policy := func(direction string) []attribution.Line {
		verdict := "Calico policy {policy}[, rule {number} of {rules},|] "
		return []attribution.Line{
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
	profile := func(direction string) []attribution.Line {
		return []attribution.Line{
			{To: "MARK", Comment: "Profile {profile} " + direction, For: "Calico profile {profile} allows " + direction},
			{To: "RETURN", Text: "--mark *", For: "Calico: allowed by the rule before"},
			flowLog,
			{Comment: "Profile {profile} " + direction, For: "Calico profile {profile} has no rule for " + direction},
		}
	}
	endpoint := func(direction, end string) []attribution.Line {
		return []attribution.Line{
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
	pod := func(direction, end string) []attribution.Line {
		return append([]attribution.Line{
			{To: "DROP", Comment: "Drop {tunnel} encapped packets originating in workloads", For: "Calico: pods send no {tunnel} packets"},
			{To: "MARK", Comment: "Start of policies", For: "Calico: its policies begin"},
		}, endpoint(direction, end)...)
	}
	// Pods whose interfaces begin alike, up to a hexadecimal digit, have a chain of that digit.
	dispatch := func(name, list, way string) []attribution.Chain {
		pods := []attribution.Line{
			{To: list + "-{link}", For: "Calico: " + way + " the pod behind {link}"},
			{To: "DROP", For: "Calico: " + way + " no pod that it knows"},
		}
		branch := attribution.Line{To: name + "-{branch}", For: "Calico: " + way + " one of the pods whose interfaces begin alike"}
		return []attribution.Chain{
			decides(name, "finds the pod that a packet is "+way, append(pods, branch)...),
			decides(name+"-{branch}", "finds the pod that a packet is "+way, pods...),
		}
	}
	group := []attribution.Line{
		{To: "cali-{list}-{next}", For: "Calico: the next policy"},
		{To: "RETURN", For: "Calico: decided by the policy before"},
	}
	in := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: table, Name: name, For: purpose, Rules: rules}
	}
	hostPolicies := attribution.Line{To: "cali-{where}-host-endpoint", For: "Calico: policies of the node's own interfaces"}
	untracked := attribution.Line{To: "NOTRACK", For: "Calico: VXLAN between nodes needs no tracking"}
	accepted := attribution.Line{To: "ACCEPT", Text: "--mark *", For: marked}
	return attribution.Writer{
		Name: "Calico's felix", File: "internal/answer/explain/foreign/felix.go",
		Words: map[string]string{"way": "[io]", "list": "[pg][io]", "what": "policy|profile", "tunnel": "(?:IPv[46] )?VXLAN|IPinIP|IPIP", "who": ".*",
			"link": `[^\s]+`, "tier": `[^"]+`, "where": "from|to", "branch": "0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f",
			"io": "in|out", "fromHost": "fh|fhfw", "toHost": "th|thfw",
			"host": "[ft]h(?:fw)?", "hosts": "(?:host-endpoint|hep-forward)(?:-[^-])?",
			"alike": "(?:host-endpoint|hep-forward)-[^-]",
			"bit":   "0x40000|0x80000|0x100000", "table": "raw|mangle|filter", "tierEnd": `(?:End of tier [^"]+\. )?`},
		Comments: []string{"Policy {policy} ingress", "Policy {policy} egress"},
		Know: func(r *attribution.Rule, f attribution.Fields) {
			f.Set("policy", PolicyName(f["policy"]))
			poolsOf(pools).know(r, f)
		},
		Always: felixAlways,
		Chains: slices.Concat([]attribution.Chain{
			in("raw", "PREROUTING", "where Calico begins", attribution.Line{To: "cali-PREROUTING", For: "Calico: what comes in"}),
			in("raw", "OUTPUT", "where Calico begins", attribution.Line{To: "cali-OUTPUT", For: "Calico: what the node itself sends"}),
			in("raw", "cali-PREROUTING", "what comes in", untracked,
				attribution.Line{To: "MARK", Text: "--set-xmark 0x0/*", For: "Calico: nothing is known yet"},
				attribution.Line{To: "MARK", For: "Calico: it comes from a pod"},
				attribution.Line{To: "cali-rpf-skip", For: "Calico: pods that may send from other addresses"},
				attribution.Line{To: "DROP", For: "Calico: the pod sent it from an address that is not the pod's"},
				hostPolicies, accepted),
			in("raw", "cali-OUTPUT", "what the node itself sends", untracked,
				attribution.Line{To: "MARK", For: "Calico: nothing is known yet"}, hostPolicies, accepted),
			in("raw", "cali-rpf-skip", "pods that may send from other addresses"),
			in("mangle", "PREROUTING", "where Calico begins", attribution.Line{To: "cali-PREROUTING", For: "Calico: what comes in"}),
			in("mangle", "POSTROUTING", "where Calico begins", attribution.Line{To: "cali-POSTROUTING", For: "Calico: what leaves"}),
			in("mangle", "cali-PREROUTING", "what comes in",
				attribution.Line{To: "ACCEPT", Text: "--ctstate RELATED,ESTABLISHED", For: "Calico: of a connection that was let through before"},
				hostPolicies, accepted),
			in("mangle", "cali-POSTROUTING", "what leaves",
				attribution.Line{To: "cali-egress-dscp", For: "Calico: sets the DSCP of what pods send out of the cluster"},
				attribution.Line{To: "RETURN", Text: "--mark *", For: marked},
				attribution.Line{To: "MARK", For: "Calico: nothing is allowed yet"}, hostPolicies),
			in("mangle", "cali-egress-dscp", "DSCP of what pods send out of the cluster"),
			chain("cali-cidr-block", "ranges that no route of this node leads to"),
			chain("INPUT", "where Calico begins", attribution.Line{To: "cali-INPUT", For: "Calico: what is for the node itself"}),
			chain("OUTPUT", "where Calico begins", attribution.Line{To: "cali-OUTPUT", For: "Calico: what the node itself sends"}),
			chain("FORWARD", "where Calico begins and ends", attribution.Line{To: "cali-FORWARD", For: "Calico: policies of what is forwarded"},
				attribution.Line{To: "ACCEPT", Comment: "Policy explicitly accepted packet.", For: marked},
				attribution.Line{To: "MARK", Comment: "cali:{hash}", For: "Calico: marked as allowed, for the chains after this"}),
			chain("cali-FORWARD", "policies of what is forwarded",
				attribution.Line{To: "MARK", For: "Calico: nothing is allowed yet"},
				attribution.Line{To: "cali-from-hep-forward", For: "Calico: policies of the node's own interfaces, by where it came in"},
				attribution.Line{To: "cali-to-hep-forward", For: "Calico: policies of the node's own interfaces, by where it leaves"},
				attribution.Line{To: "cali-from-wl-dispatch", For: "Calico: policies of the pod that sent it"},
				attribution.Line{To: "cali-to-wl-dispatch", For: "Calico: policies of the pod that it is for"},
				attribution.Line{To: "cali-cidr-block", For: "Calico: ranges that no route of this node leads to"}),
			chain("cali-INPUT", "policies of what is for the node itself",
				attribution.Line{To: "ACCEPT", Comment: "Allow {tunnel} packets from {who}", For: "Calico: {tunnel} from other nodes"},
				attribution.Line{To: "DROP", Comment: "Drop {tunnel} packets from non-{who}", For: "Calico: {tunnel} from others than nodes"},
				attribution.Line{To: "cali-wl-to-host", For: "Calico: from a pod to its node"},
				attribution.Line{To: "MARK", For: "Calico: nothing is allowed yet"},
				attribution.Line{To: "cali-from-host-endpoint", For: "Calico: policies of the node's own interfaces"}, accepted),
			chain("cali-OUTPUT", "policies of what the node itself sends",
				attribution.Line{To: "ACCEPT", Comment: "Allow {tunnel} packets to other {who}", For: "Calico: {tunnel} to other nodes"},
				attribution.Line{To: "RETURN", Text: "-o {link}", For: "Calico: from the node to a pod: no policy applies"},
				attribution.Line{To: "MARK", For: "Calico: nothing is allowed yet"},
				attribution.Line{To: "cali-to-host-endpoint", For: "Calico: policies of the node's own interfaces"}, accepted),
			chain("cali-wl-to-host", "from a pod to its node",
				attribution.Line{To: "cali-from-wl-dispatch", For: "Calico: policies of the pod that sent it"},
				attribution.Line{To: "{action}", Comment: "Configured DefaultEndpointToHostAction",
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
