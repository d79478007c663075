package foreign

import (
	"cmp"
	"strings"

	"packetwalk.dev/internal/model/attribution"
)

// kubeProxy describes the rules of kube-proxy's nftables mode (k8s.io/kubernetes pkg/proxy/nftables/proxier.go). The names of its chains
// contain their purpose. Names that would be too long contain only a part of it (hashAndTruncate there).
func kubeProxy() attribution.Writer {
	const (
		of       = "-{id}-{service}/{proto}/{name}"
		end      = "endpoint-{to}-{service}/{proto}/{name}__{address}/{number}"
		external = "{port}, externalTrafficPolicy "
	)
	chain := func(name, purpose string, role attribution.Role, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "kube-proxy", Name: name, For: purpose, Role: role, Rules: rules}
	}
	balancing := []attribution.Line{
		{To: "mark-for-masquerade", Text: "* != *", For: "{port}: cluster IP, from outside the pods' range"},
		{To: "mark-for-masquerade", For: "{port}: cluster IP, masqueraded whoever asks"},
		{To: end, Text: "@affinity-{set}", For: "{port}: endpoint {endpoint}[, {owner}], where the client was last"},
		{To: end, For: "{port}: endpoint {endpoint}[, {owner}]"},
		{Text: "numgen random mod *", For: "{port}: one of its endpoints"},
	}
	toServices := []attribution.Line{
		{To: "services", For: "Services: is the packet for one of them?"},
		{To: "masquerading", For: "Services: is it marked to leave with the node's address?"},
		{To: "firewall-check", For: "Services: is it from outside a load balancer's source ranges?"},
		{To: "service-endpoints-check", For: "Services: is it for one without endpoints, or without local ones?"},
		{To: "nodeport-endpoints-check", For: "Services: is it for a node port without endpoints, or without local ones?"},
		{To: "cluster-ips-check", For: "Services: check for unknown ports of cluster IPs"},
	}
	return attribution.Writer{
		Name: "kube-proxy, nftables mode", File: "internal/answer/explain/foreign/kubeproxy.go", Know: knowKubeProxy,
		Words: map[string]string{
			"id": "[A-Z0-9]+", "to": "[A-Z0-9]+", "service": "[^/]+/[^/]+", "proto": "tcp|udp|sctp", "name": "[a-z0-9-]*", "base": "filter|nat",
			"address": "[0-9a-f.]+", "number": "[0-9]+", "set": "[^ ]+", "check": "service|nodeport",
			"hook": "prerouting|input|forward|output|postrouting|prerouting-pre-dnat|output-pre-dnat|output-post-dnat",
		},
		Chains: []attribution.Chain{
			chain("{base}-{hook}", "where kube-proxy begins", attribution.NoRole, toServices...),
			chain("services", "finds the Service port that a packet is for", attribution.Dispatch,
				attribution.Line{To: "{kind}" + of, Text: "vmap @service-ips", For: "{port}: an IP of it"},
				attribution.Line{To: "{kind}" + of, Text: "vmap @service-nodeports", For: "{port}: node port"},
				attribution.Line{Text: "vmap @service-ips", For: "Services: by destination and port"},
				attribution.Line{Text: "vmap @service-nodeports", For: "Services: by node port, at an address of the node"}),
			chain("service"+of, "spreads a Service port's connections over all endpoints", attribution.Balances, balancing...),
			chain("local"+of, "spreads a Service port's connections over this node's endpoints", attribution.BalancesLocal, balancing...),
			chain("external"+of, "sends a Service port's external traffic on, by externalTrafficPolicy", attribution.Balances,
				attribution.Line{Text: "fib saddr type local *", For: external + "Local, from the node itself"},
				attribution.Line{Comment: "short-circuit pod traffic", For: external + "Local, from a pod: as to the cluster IP"},
				attribution.Line{To: "local" + of, For: external + "Local"},
				attribution.Line{For: external + "Cluster"}),
			chain("firewall"+of, "drops what a load balancer's source ranges keep out", attribution.Balances,
				attribution.Line{To: "drop", For: "{port}: load balancer IP, from outside its source ranges"}),
			chain("endpoint-{id}-{service}/{proto}/{name}__{address}/{number}", "translates to one endpoint", attribution.Endpoint,
				attribution.Line{To: "mark-for-masquerade", For: "{port}: an endpoint that reaches itself through its service"},
				attribution.Line{Text: "update @affinity-{set} *", For: "{port}: remembers the client, for session affinity"},
				attribution.Line{Text: "dnat *", For: "{port}[: {owner}]"}),
			chain("mark-for-masquerade", "marks packets that are to leave with the node's address", attribution.MasqueradeMark,
				attribution.Line{For: "marked: to leave with the node's address"}),
			chain("masquerading", "gives what is marked the node's address", attribution.NoRole,
				attribution.Line{To: "return", For: "not marked by a rule of a Service"},
				attribution.Line{To: "masquerade", For: "marked by a rule of a Service"},
				attribution.Line{For: "the mark has done its work"}),
			chain("reject-chain", "refuses what is for a Service without endpoints", attribution.NoRole,
				attribution.Line{For: "[{port}: has|Services: it has] no endpoints"}),
			chain("{check}-endpoints-check", "finds what is for a Service without endpoints, or without local ones", attribution.NoRole,
				attribution.Line{To: "drop", For: "{port}: no local endpoints[ on {machine}][ ({traffic}: Local)]"},
				attribution.Line{To: "reject-chain", For: "{port}: has no endpoints"},
				attribution.Line{For: "Services: is it for one without endpoints, or without local ones?"}),
			chain("firewall-check", "finds what is for a load balancer with source ranges", attribution.NoRole,
				attribution.Line{To: "firewall" + of, For: "{port}: load balancer IP, from its source ranges?"},
				attribution.Line{For: "Services: is it from outside a load balancer's source ranges?"}),
			chain("cluster-ips-check", "refuses what is for a cluster IP, but for no port of its Service", attribution.NoRole,
				attribution.Line{Text: "@cluster-ips *", For: "Services: a cluster IP[ of {owning}], but no port of its Service"},
				attribution.Line{To: "drop", For: "Services: an unallocated cluster IP"}),
		},
	}
}

// knowKubeProxy reads what chains' names have: a port's name, an endpoint with dots for an IPv6 address's colons. Elements of maps have a
// port's name as their comment.
func knowKubeProxy(_ *attribution.Rule, f attribution.Fields) {
	port := f["service"]
	if f["name"] != "" {
		port += ":" + f["name"]
	}
	f.Set("port", cmp.Or(port, f["element"], f["serviceport"]))
	switch address := f["address"]; {
	case strings.Count(address, ".") > 3 || strings.Contains(address, ".."):
		f.Set("endpoint", "["+strings.ReplaceAll(address, ".", ":")+"]:"+f["number"])
	case address != "":
		f.Set("endpoint", address+":"+f["number"])
	}
}
