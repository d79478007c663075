package iptables

import (
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Signed says what the rules of all versions are there for, kube-proxy's as well as this proxy's. Chains named by a hash are told by the
// ports: their Name, Protocol and Endpoints. Without them, comments say which port it is, or the rule that led to the chain does.
func Signed(ports []service.Port) attribution.Writer {
	known := map[string]attribution.Fields{}
	for i := range ports {
		p := &ports[i]
		for _, name := range []string{p.Name.String(), (&ruleSetVersion{unnamedColon: true}).portName(p.Name)} {
			known[hash(name, p.Protocol.Lower())] = attribution.Fields{"port": p.Name.String()}
			for _, e := range p.Endpoints {
				known[hash(name, p.Protocol.Lower(), e.String())] = attribution.Fields{"port": p.Name.String(), "endpoint": e.String()}
			}
		}
	}
	return attribution.Writer{
		Name: "service proxy", File: "internal/node/proxy/iptables/generate.go",
		Words: map[string]string{
			"port": `[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*(?::[a-z0-9-]*)?`, "hash": `[^\s-]+`, "to": `[^\s-]+`, "builtin": "[A-Z]+",
			"side": "-[si]",
		},
		Comments: []string{"{port} -> {endpoint}", "*for {port}", "*for {port} *", "* to {port} *", "{port}", "{port} *"},
		Always:   always(),
		Forms:    forms(),
		Chains:   slices.Concat(attribution.In(iptables.NAT, natChains...), attribution.In(iptables.Filter, filterChains...), attribution.In("", canary)),
		Know: func(_ *attribution.Rule, f attribution.Fields) {
			for _, word := range []string{"hash", "to"} {
				for k, v := range known[f[word]] {
					f.Set(k, v)
				}
			}
			f.Set("port", strings.TrimSuffix(f["port"], ":"))
		},
	}
}

// always has the rules of every cluster: the marks and the masquerade of the oldest version (later ones do the same in more steps), and the
// jumps of all versions.
var always = sync.OnceValue(func() string {
	nat, filter := iptables.Edit{Table: iptables.NAT}, iptables.Edit{Table: iptables.Filter}
	for _, rules := range []string{rules112, RulesCurrent} {
		set, err := Generate(proxy.Config{Rules: rules, MasqueradeBit: 14}, nil)
		if err != nil {
			panic(err) // a version of this package
		}
		for _, j := range set.Jumps {
			if j.Table == iptables.NAT && rules == rules112 {
				nat.Insert = append(nat.Insert, j.SharedRule)
			} else if j.Table == iptables.Filter {
				filter.Insert = append(filter.Insert, j.SharedRule)
			}
		}
		if rules == rules112 {
			all := &set.Tables[slices.IndexFunc(set.Tables, func(t iptables.Table) bool { return t.Name == iptables.NAT })]
			nat.Replace = []iptables.Chain{*all.Chain(chainMarkMasq), *all.Chain(chainPostrouting)}
			for _, r := range all.Chain(chainServices).Rules {
				nat.Append = append(nat.Append, iptables.SharedRule{Chain: chainServices, Rule: r})
			}
		}
	}
	return string(iptables.AppendRestore(nil, []iptables.Edit{nat, filter}))
})

// forms are the chains of always as they are today.
var forms = sync.OnceValue(func() string {
	set, err := Generate(proxy.Config{Rules: RulesCurrent, MasqueradeBit: 14}, nil)
	if err != nil {
		panic(err) // a version of this package
	}
	all := &set.Tables[slices.IndexFunc(set.Tables, func(t iptables.Table) bool { return t.Name == iptables.NAT })]
	nat := iptables.Edit{Table: iptables.NAT, Replace: []iptables.Chain{*all.Chain(chainPostrouting)}}
	return string(iptables.AppendRestore(nil, []iptables.Edit{nat}))
})

const (
	outside    = "{port}: cluster IP, from outside the pods' range"
	anyone     = "{port}: cluster IP, masqueraded whoever asks"
	toEndpoint = "{port}: [endpoint {endpoint}, {owner}|endpoint {endpoint}|an endpoint]"
	fromLocal  = "--src-type LOCAL"
	// The policies of external traffic, and what kube-proxy lets go past Local.
	clusterPolicy = "{port}, externalTrafficPolicy Cluster"
	localPolicy   = "{port}, externalTrafficPolicy Local"
	ofNode        = localPolicy + ", from the node itself"
	ofPod         = localPolicy + ", from a pod: as to the cluster IP"
)

// balancing are the rules of a chain that spreads connections over endpoints, after those that mark for masquerade.
var balancing = []attribution.Line{
	{To: chainMarkMasq, Text: "! {side} {pods}", For: outside},
	{To: chainMarkMasq, Comment: "* cluster IP", For: anyone},
	{To: prefixEndpoint + "{to}", Text: "-m recent --rcheck *", For: toEndpoint + ", where the client was last"},
	{To: prefixEndpoint + "{to}", For: toEndpoint},
}

var natChains = []attribution.Chain{
	{Name: "{builtin}", For: "where the service proxy begins", Rules: []attribution.Line{
		{To: chainServices, For: "Services: is the packet for one of them?"},
		{To: chainPostrouting, For: "Services: is it marked to leave with the node's address?"},
	}},
	{Name: chainServices, Role: attribution.Dispatch, For: "finds the Service port that a packet is for, by its destination", Rules: []attribution.Line{
		{To: chainMarkMasq, Comment: "* cluster IP", Text: "! {side} {pods}", For: outside},
		{To: chainMarkMasq, Comment: "* cluster IP", For: anyone},
		{To: chainMarkMasq, Comment: "* external IP", For: "{port}: external IP, masqueraded"},
		{Comment: "* loadbalancer IP", For: "{port}: load balancer IP"},
		{Comment: "* {kind} IP", For: "{port}: {kind} IP"},
		{To: chainNodePorts, For: "Services: node ports, when it is for no address of theirs"},
	}},
	{Name: chainNodePorts, Role: attribution.Dispatch, For: "finds the Service port that a packet is for, by its node port", Rules: []attribution.Line{
		{To: chainMarkMasq, Text: "-s {loopback}", For: "{port}: node port, from 127.0.0.0/8: must not leave with that address"},
		{To: chainMarkMasq, For: "{port}: node port, masqueraded"},
		{Text: "--nfacct-name *", For: "{port}: node port, counted as one at 127.0.0.0/8"},
		{For: "{port}: node port"},
	}},
	{Name: prefixCluster + "{hash}", Role: attribution.Balances, For: "spreads a Service port's connections over all endpoints", Rules: balancing},
	{Name: prefixLocal + "{hash}", Role: attribution.BalancesLocal, For: "spreads a Service port's connections over this node's endpoints",
		Rules: balancing},
	{Name: prefixExternal + "{hash}", Role: attribution.Balances, For: "sends a Service port's external traffic on, by externalTrafficPolicy",
		Rules: []attribution.Line{
			{Text: fromLocal, For: ofNode},
			{To: prefixCluster + "{to}", Text: "{side} {pods}", For: ofPod},
			{To: prefixLocal + "{to}", For: localPolicy},
			{For: clusterPolicy},
		}},
	{Name: prefixFirewall + "{hash}", Role: attribution.Balances, For: "lets a load balancer's source ranges in; until 1.23 all of its traffic",
		Rules: []attribution.Line{
			{To: chainMarkDrop, For: "{port}: no rule before took it"},
			{To: prefixXLB + "{to}", For: localPolicy},
			{To: prefixExternal + "{to}", For: "{port}: load balancer IP, from one of its source ranges"},
			{Comment: "other traffic to *", For: "{port}: load balancer IP, from outside its source ranges"},
			{For: clusterPolicy},
		}},
	{Name: prefixXLB + "{hash}", Role: attribution.BalancesLocal,
		For: "until 1.23: external traffic over this node's endpoints, externalTrafficPolicy Local",
		Rules: slices.Concat([]attribution.Line{
			{Text: fromLocal, For: ofNode},
			{To: prefixCluster + "{to}", For: ofPod},
			{To: chainMarkDrop, For: "{port}: no endpoint on this node"},
		}, balancing[2:])},
	{Name: prefixEndpoint + "{hash}", Role: attribution.Endpoint, For: "translates to one endpoint", Rules: []attribution.Line{
		{To: chainMarkMasq, For: "{port}: an endpoint that reaches itself through its service"},
		{To: "DNAT", Text: "--to-destination {endpoint}", For: "{port}[: {owner}]"},
	}},
	{Name: chainMarkMasq, Role: attribution.MasqueradeMark, For: "marks packets that are to leave with the node's address", Rules: []attribution.Line{
		{To: "MARK", For: "marked: to leave with the node's address"},
	}},
	{Name: chainMarkDrop, Role: attribution.DropMark, For: "until 1.24: marks packets that KUBE-FIREWALL is to drop", Rules: []attribution.Line{
		{To: "MARK", For: "marked: to be dropped by " + chainFirewall},
	}},
	{Name: chainPostrouting, For: "gives what is marked the node's address", Rules: []attribution.Line{
		{To: "RETURN", Text: "-m mark ! --mark *", For: "not marked by a rule of a Service"},
		{To: "MARK", For: "the mark has done its work"},
		{To: "MASQUERADE", For: "marked by a rule of a Service", Not: "not marked by a rule of a Service"},
	}},
}

var filterChains = []attribution.Chain{
	{Name: "{builtin}", For: "where the service proxy begins", Rules: []attribution.Line{
		{To: chainServices, For: "Services: is it for a cluster IP without endpoints, or without local ones?"},
		{To: chainExternal, For: "Services: is it for another of their addresses, without endpoints, or without local ones?"},
		{To: chainNodePorts, For: "Services: is it a load balancer's health check?"},
		{To: chainForward, For: "Services: may it be forwarded?"},
		{To: chainProxyFW, For: "Services: is it from outside a load balancer's source ranges?"},
		{To: chainFirewall, For: "Services: is it marked to be dropped, or from outside to 127.0.0.0/8?"},
	}},
	{Name: chainServices, Role: attribution.Dispatch, For: "refuses what is for a cluster IP without endpoints", Rules: noEndpoints("internal")},
	{Name: chainExternal, For: "refuses what is for an external address or node port without endpoints here",
		Rules: noEndpoints("external")},
	{Name: chainNodePorts, For: "lets health checks of externalTrafficPolicy Local in", Rules: []attribution.Line{
		{To: "ACCEPT", Comment: "* health check node port", For: "{port}: health check node port"},
	}},
	{Name: chainForward, For: "lets Services' traffic through the node", Rules: []attribution.Line{
		{Text: "--ctstate INVALID", For: "of no connection that conntrack knows"},
		{Text: "--mark *", For: "marked by a rule of a Service to leave with the node's address"},
		{Comment: "* pod source rule", For: "of a connection that was let through before, from a pod"},
		{Comment: "* pod destination rule", For: "of a connection that was let through before, to a pod"},
		{Text: "--ctstate RELATED,ESTABLISHED", For: "of a connection that was let through before"},
	}},
	{Name: chainProxyFW, For: "drops what a load balancer's source ranges keep out", Rules: []attribution.Line{
		{To: "DROP", For: "{port}: load balancer IP, from outside its source ranges"},
	}},
	{Name: chainFirewall, For: "drops what is marked for it, and what comes from outside to 127.0.0.0/8; the kubelet's, too",
		Rules: []attribution.Line{
			{To: "DROP", Text: "--mark *", For: "marked to be dropped"},
			{To: "DROP", Comment: "block incoming localnet connections",
				For: "block access from outside to 127.0.0.0/8 (kubernetes issue 90259)"},
		}},
}

// noEndpoints returns the rules for traffic of a kind, "internal" or "external", to Services without endpoints.
func noEndpoints(traffic string) []attribution.Line {
	return []attribution.Line{
		{To: "REJECT", For: "{port}: has no endpoints"},
		{To: "DROP", For: "{port}: no local endpoints[ on {machine}] (" + traffic + "TrafficPolicy: Local)"},
	}
}

// canary is an empty chain. While it exists, the table has not been flushed.
var canary = attribution.Chain{Name: chainCanary, For: "empty: shows that the table has not been flushed"}
