package serviceproxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/iptables"
)

// Rule sets that Config.Rules can name.
const (
	RulesCurrent = "current" // Kubernetes 1.35
	Rules111     = "1.11"
)

// Ages lists the rule sets there are.
func Ages() []string { return slices.Sorted(maps.Keys(ages)) }

func ageOf(rules string) (*age, error) {
	if a, ok := ages[rules]; ok {
		return &a, nil
	}
	return nil, fmt.Errorf("no rule set %q; there are %s", rules, strings.Join(Ages(), ", "))
}

// age is all that differs between the rule sets of different Kubernetes versions. The generator reads it and has no other notion of time.
type age struct {
	// unnamedColon: the name of a service's only, unnamed port ends in a colon (until 1.19).
	unnamedColon bool
	// comments of the rules in the chains of services and endpoints.
	comments endpointComments
	// dispatch writes how external traffic finds its endpoints: EXT, SVL and FW chains since 1.24, FW and XLB before.
	dispatch func(*builder, *portRules)
	// masqueradeInServices: the rule that marks traffic from outside the cluster for masquerade stands in KUBE-SERVICES, not in the
	// service's own chain.
	masqueradeInServices bool
	// internalPolicy: internalTrafficPolicy Local is known (since 1.21).
	internalPolicy bool
	// clearsMark: KUBE-POSTROUTING returns unmarked packets first, clears the mark and masquerades with random ports (since 1.19).
	clearsMark bool
	// dropsInvalid: KUBE-FORWARD drops packets in conntrack state INVALID (since 1.15).
	dropsInvalid bool
	// forwardByPodRange: KUBE-FORWARD accepts established traffic from and to the pod range only (until 1.18).
	forwardByPodRange bool
	// filtersLocal: the filter table drops what has no local endpoint, rejects load balancer addresses without endpoints and accepts
	// health check node ports; before, only cluster IPs, external IPs and node ports without endpoints are rejected.
	filtersLocal bool
	// markDrop: packets to drop are marked in nat and dropped in KUBE-FIREWALL.
	markDrop bool
	// jumps from built-in chains, in the order in which they are put at the head of their chain.
	jumps []jump
}

type endpointComments uint8

const (
	// commentTarget: "ns/name:port -> ip:port" in service chains, the port's name in endpoint chains.
	commentTarget endpointComments = iota
	// commentName: the port's name in both.
	commentName
)

type jump struct {
	table, from, to, comment string
	new                      bool // only packets that begin a connection
}

// rule is the jump as a rule of its built-in chain.
func (j jump) rule() Jump {
	r := iptables.Rule{Target: iptables.Jump(j.to)}
	if j.new {
		r.Matches = append(r.Matches, ctstate(false, "NEW"))
	}
	if j.comment != "" {
		r.Matches = append(r.Matches, iptables.CommentMatch(j.comment))
	}
	return Jump{j.table, iptables.Placed{Chain: j.from, Rule: r}}
}

var ages = map[string]age{
	RulesCurrent: {
		comments:       commentTarget,
		dispatch:       dispatchEXT,
		internalPolicy: true,
		clearsMark:     true,
		dropsInvalid:   true,
		filtersLocal:   true,
		jumps: []jump{
			{iptables.Filter, "INPUT", chainExternal, "kubernetes externally-visible service portals", true},
			{iptables.Filter, "FORWARD", chainExternal, "kubernetes externally-visible service portals", true},
			{iptables.Filter, "INPUT", chainNodePorts, "kubernetes health check service ports", false},
			{iptables.Filter, "FORWARD", chainServices, "kubernetes service portals", true},
			{iptables.Filter, "OUTPUT", chainServices, "kubernetes service portals", true},
			{iptables.Filter, "FORWARD", chainForward, "kubernetes forwarding rules", false},
			{iptables.Filter, "INPUT", chainProxyFW, "kubernetes load balancer firewall", true},
			{iptables.Filter, "OUTPUT", chainProxyFW, "kubernetes load balancer firewall", true},
			{iptables.Filter, "FORWARD", chainProxyFW, "kubernetes load balancer firewall", true},
			{iptables.NAT, "OUTPUT", chainServices, "kubernetes service portals", false},
			{iptables.NAT, "PREROUTING", chainServices, "kubernetes service portals", false},
			{iptables.NAT, "POSTROUTING", chainPostrouting, "kubernetes postrouting rules", false},
			{iptables.Filter, "INPUT", chainFirewall, "", false},
			{iptables.Filter, "OUTPUT", chainFirewall, "", false},
		},
	},
	Rules111: {
		unnamedColon:         true,
		comments:             commentName,
		dispatch:             dispatchXLB,
		masqueradeInServices: true,
		forwardByPodRange:    true,
		markDrop:             true,
		jumps: []jump{
			{iptables.Filter, "INPUT", chainExternal, "kubernetes externally-visible service portals", true},
			{iptables.Filter, "OUTPUT", chainServices, "kubernetes service portals", true},
			{iptables.NAT, "OUTPUT", chainServices, "kubernetes service portals", false},
			{iptables.NAT, "PREROUTING", chainServices, "kubernetes service portals", false},
			{iptables.NAT, "POSTROUTING", chainPostrouting, "kubernetes postrouting rules", false},
			{iptables.Filter, "FORWARD", chainForward, "kubernetes forwarding rules", false},
			{iptables.Filter, "OUTPUT", chainFirewall, "", false},
			{iptables.Filter, "INPUT", chainFirewall, "", false},
		},
	},
}
