package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// Rule sets that Config.Rules can name.
const (
	RulesCurrent = "current" // Kubernetes 1.35
	rules111     = "1.11"
	rules112     = "1.12"
	rules119     = "1.19"
)

// RuleSetVersions lists the rule sets there are.
func RuleSetVersions() []string { return slices.Sorted(maps.Keys(versions)) }

func versionOf(rules string) (*ruleSetVersion, error) {
	if a, ok := versions[rules]; ok {
		return &a, nil
	}
	return nil, fmt.Errorf("no rule set %q; there are %s", rules, strings.Join(RuleSetVersions(), ", "))
}

// ruleSetVersion is all that differs between the rule sets of different Kubernetes versions. The generator reads it and has no other notion
// of time. The versions in the comments are those in which k8s.io/kubernetes pkg/proxy/iptables/proxier.go and
// pkg/kubelet/kubelet_network_linux.go changed.
type ruleSetVersion struct {
	// unnamedColon: the name of a service's only, unnamed port ends in a colon (until 1.19).
	unnamedColon bool
	// comments of the rules in the chains of services and endpoints.
	comments endpointComments
	// places: decimal places with which the probability of an endpoint is asked for (5 in 1.13, 10 in 1.19).
	places int
	// dispatch writes how external traffic finds its endpoints: EXT, SVL and FW chains since 1.24, FW and XLB before.
	dispatch func(*builder, *portRules)
	// masqueradeInServices: the rule that marks traffic from outside the cluster for masquerade stands in KUBE-SERVICES, not in the
	// service's own chain.
	masqueradeInServices bool
	// internalPolicy: internalTrafficPolicy Local is known (since 1.21).
	internalPolicy bool
	// externalIPPolicy: versions with KUBE-XLB chains only; externalTrafficPolicy Local holds for external IPs too (since 1.19, kubernetes
	// pull request 90537).
	externalIPPolicy bool
	// nodeReachesAll: versions with KUBE-XLB chains only; the node itself reaches all endpoints of a Local service, not only its own (since
	// 1.15).
	nodeReachesAll bool
	// refusesBalancer: versions with KUBE-XLB chains only; load balancer addresses without endpoints are rejected, in KUBE-SERVICES (since
	// 1.14).
	refusesBalancer bool
	// clearsMark: KUBE-POSTROUTING returns unmarked packets first, clears the mark and masquerades with random ports (since 1.19).
	clearsMark bool
	// dropsInvalid: KUBE-FORWARD drops packets in conntrack state INVALID (since 1.15).
	dropsInvalid bool
	// established: which packets of connections that are known KUBE-FORWARD accepts.
	established establishedRules
	// filtersLocal: the filter table drops what has no local endpoint, rejects load balancer addresses without endpoints and accepts
	// health check node ports.
	filtersLocal bool
	// markDrop: packets to drop are marked in nat and dropped in KUBE-FIREWALL (until 1.24).
	markDrop bool
	// localnet: when KUBE-FIREWALL keeps neighbours away from 127.0.0.0/8.
	localnet localnetGuard
	// jumps from built-in chains, in the order in which they are put at the head of their chain.
	jumps []jump
}

type endpointComments uint8

const (
	// commentTarget: "ns/name:port -> ip:port" in service chains, the port's name in endpoint chains.
	commentTarget endpointComments = iota
	// commentName: the port's name in both.
	commentName
	// commentNone: neither has comments. From 1.12 (kubernetes pull request 65755) to 1.19 they were made and then lost.
	commentNone
)

type establishedRules uint8

const (
	// establishedAll: one rule, for all addresses.
	establishedAll establishedRules = iota
	// establishedPodRange: from the pod range and to it, and nothing if the range is not known (until 1.17).
	establishedPodRange
	// establishedTwice: the same two rules without the addresses.
	establishedTwice
)

type localnetGuard uint8

const (
	// localnetIfOpened: where node ports answer on 127.0.0.1, which needs route_localnet.
	localnetIfOpened localnetGuard = iota
	// localnetNever: not known yet.
	localnetNever
	// localnetAlways: the kubelet's rule, whatever the service proxy does (from 1.19, kubernetes issue 90259).
	localnetAlways
)

type jump struct {
	table, from, to, comment string
	new                      bool // only packets that begin a connection
}

// rule returns the jump as a rule of its built-in chain.
func (j jump) rule() Jump {
	r := iptables.Rule{Target: iptables.Jump(j.to)}
	if j.new {
		r.Matches = append(r.Matches, ctstate(false, "NEW"))
	}
	if j.comment != "" {
		r.Matches = append(r.Matches, iptables.CommentMatch(j.comment))
	}
	return Jump{j.table, iptables.SharedRule{Chain: j.from, Rule: r}}
}

// servicePortals111 are the jumps of 1.11 and 1.12, before KUBE-SERVICES was asked about what is forwarded.
var servicePortals111 = []jump{
	{iptables.Filter, "INPUT", chainExternal, "kubernetes externally-visible service portals", true},
	{iptables.Filter, "OUTPUT", chainServices, "kubernetes service portals", true},
	{iptables.NAT, "OUTPUT", chainServices, "kubernetes service portals", false},
	{iptables.NAT, "PREROUTING", chainServices, "kubernetes service portals", false},
	{iptables.NAT, "POSTROUTING", chainPostrouting, "kubernetes postrouting rules", false},
	{iptables.Filter, "FORWARD", chainForward, "kubernetes forwarding rules", false},
	{iptables.Filter, "OUTPUT", chainFirewall, "", false},
	{iptables.Filter, "INPUT", chainFirewall, "", false},
}

var versions = map[string]ruleSetVersion{
	RulesCurrent: {
		comments:       commentTarget,
		places:         10,
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
	rules111: {
		unnamedColon:         true,
		comments:             commentName,
		places:               5,
		dispatch:             dispatchXLB,
		masqueradeInServices: true,
		established:          establishedPodRange,
		markDrop:             true,
		localnet:             localnetNever,
		jumps:                servicePortals111,
	},
	rules112: {
		unnamedColon:         true,
		comments:             commentNone,
		places:               5,
		dispatch:             dispatchXLB,
		masqueradeInServices: true,
		established:          establishedPodRange,
		markDrop:             true,
		localnet:             localnetNever,
		jumps:                servicePortals111,
	},
	rules119: {
		unnamedColon:         true,
		comments:             commentNone,
		places:               10,
		dispatch:             dispatchXLB,
		masqueradeInServices: true,
		externalIPPolicy:     true,
		nodeReachesAll:       true,
		refusesBalancer:      true,
		clearsMark:           true,
		dropsInvalid:         true,
		established:          establishedTwice,
		markDrop:             true,
		localnet:             localnetAlways,
		jumps: []jump{
			{iptables.Filter, "INPUT", chainExternal, "kubernetes externally-visible service portals", true},
			{iptables.Filter, "FORWARD", chainServices, "kubernetes service portals", true},
			{iptables.Filter, "OUTPUT", chainServices, "kubernetes service portals", true},
			{iptables.Filter, "INPUT", chainServices, "kubernetes service portals", true},
			{iptables.Filter, "FORWARD", chainForward, "kubernetes forwarding rules", false},
			{iptables.NAT, "OUTPUT", chainServices, "kubernetes service portals", false},
			{iptables.NAT, "PREROUTING", chainServices, "kubernetes service portals", false},
			{iptables.NAT, "POSTROUTING", chainPostrouting, "kubernetes postrouting rules", false},
			{iptables.Filter, "OUTPUT", chainFirewall, "", false},
			{iptables.Filter, "INPUT", chainFirewall, "", false},
		},
	},
}
