package vnet

import "packetwalk.dev/internal/model/attribution"

// Comments of the rules that are not the fabric's table's. NoHop's gives back the hop that forwarding takes off the TTL.
const (
	NoHop     = "forwarding here is no hop"
	groupsWay = "container host: the group's way to the internet"
)

// Signed says what the rules of Azure's side are there for. Those of the fabric's table have it as their comment; where a rule's map may
// lead to several chains, it depends on which it was.
func Signed() attribution.Writer {
	says := func(prefix string) attribution.Line { return attribution.Line{Comment: "{why}", For: prefix + "{why}"} }
	leads := []attribution.Line{
		{To: "routes/{vnet}/{table}", For: "Azure: the routes of VNet {vnet} with route table {table}"},
		{To: "routes/{vnet}", For: "Azure: the routes of VNet {vnet}"},
		{To: "vnet/{vnet}", For: "Azure: within VNet {vnet}"},
		{To: "vnet/{peer}", For: "Azure: by the peering of VNets {vnet} and {peer}"},
		{To: "hop/{nic}", For: "Azure: a user-defined route to a virtual appliance"},
		{To: overlayName, For: "Azure CNI Overlay: to the node that has the pod's part of the range"},
		{To: "none", For: "Azure: the route leads nowhere"},
		{To: "no-hop", For: "Azure: the route's next hop does not forward"},
		says("Azure: "),
	}
	table := func(name, purpose string, role attribution.Role, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: TableName, Name: name, For: purpose, Role: role, Rules: rules}
	}
	group := []attribution.Line{
		{To: "return", Comment: "{rule}", For: "NSG {group} rule {rule} allows"},
		{To: "drop", Comment: "{rule}", For: "NSG {group} rule {rule} denies"},
		{Comment: "{why}", For: "NSG {group}: {why}"},
	}
	toRule := attribution.Line{To: "rule/{name}", For: "Azure load balancer"}
	balance := []attribution.Line{
		{Comment: NoBackEnd, For: "Azure load balancer rule {name}: " + NoBackEnd},
		{Comment: NoBackEnd + ": {why}", For: "Azure load balancer rule {name}: " + NoBackEnd + ": {why}"},
		{Comment: "{why}", For: "Azure load balancer rule {name}"},
	}
	return attribution.Writer{
		Name: "fabric", File: "internal/azure/vnet/nft.go",
		Words: map[string]string{"why": ".+", "rule": ".+", "vnet": `[^\s/]+`, "peer": `[^\s/]+`, "group": `[^\s/]+`, "name": ".+",
			"direction": "in|out", "pool": "[0-9]+", "frontend": "[0-9]+"},
		Chains: []attribution.Chain{
			table("raw", "a machine's packet: by the routes of its subnet", attribution.Balances, leads...),
			table("routes/{vnet}", "a virtual network's routes", attribution.Balances, leads...),
			table("routes/{vnet}/{table}", "a virtual network's routes with a route table", attribution.Balances, leads...),
			table("vnet/{vnet}", "a virtual network's machines", attribution.Balances, says("Azure: ")),
			table("hop/{nic}", "the virtual appliance that a user-defined route leads to", attribution.Balances, says("Azure: ")),
			table(overlayName, "pods of Azure CNI Overlay, by their nodes", attribution.Balances, says("Azure: ")),
			table("none", "a route that leads nowhere", attribution.Balances, says("Azure: ")),
			table("no-hop", "a route whose next hop does not forward", attribution.Balances, says("Azure: ")),
			table("front-end", "a load balancer's internal front end", attribution.Balances, says("Azure: ")),
			table("late", "packets of no flow that is known: which are reset", attribution.Balances, says("Azure: ")),
			table("inside", "tracks what stays inside virtual networks, for network security groups", attribution.Balances, says("Azure: ")),
			table("untracked", "what stays inside virtual networks and no network security group has to see", attribution.Balances, says("Azure: ")),
			table("lb", "new flows: the sender's network security groups, and the load balancer's rules", attribution.Balances,
				attribution.Line{Comment: "a flow keeps its back end", For: "Azure load balancer: a flow keeps its back end"}, toRule, says("Azure: ")),
			table("rule/{name}", "a load balancer's rule: chooses a back end", attribution.LoadBalancer, balance...),
			table("nat-pre", "public addresses of machines, and load balancers' rules without floating IP", attribution.Balances, toRule,
				says("Azure: ")),
			{
				Table: "azure-idle", Name: "idle", For: "how long new flows are kept while they are idle", Role: attribution.NoRole,
				Rules: []attribution.Line{says("Azure: ")},
			},
			table("egress", "what may leave for the internet", attribution.Balances, says("Azure: ")),
			table("forward", "what may pass", attribution.Balances, says("Azure: "), attribution.Line{
				Text: "policy drop", For: "Azure: no machine has this address, and no rule of the load balancer is for it and this port",
			}),
			table("input", "what Azure's host answers itself", attribution.Balances, says("Azure: "), attribution.Line{
				Text: "policy drop", For: "Azure: its host answers machines' requests to its name server, wire server and metadata service, and nothing else",
			}),
			table("nat-post", "the source of what leaves for the internet", attribution.Outbound, says("Azure outbound: ")),
			table("out-{pool}-{frontend}", "one front end's ports", attribution.Outbound, says("Azure outbound: ")),
			table("nsg-in", "new flows: the receiver's network security groups", attribution.NoRole, says("Azure: ")),
			table("nsg-{direction}/{n}", "two network security groups, the subnet's and the NIC's", attribution.NoRole,
				attribution.Line{To: "nsg/{group}/*", Comment: "{why}", For: "Azure: network security group {group}, {why}"}),
			table("nsg/{group}/{direction}", "a network security group's rules", attribution.Policy, group...),
			table("nsg/{group}/{direction}/{part}", "its further rules, or those of one VNet and route table, on which depends what tags hold",
				attribution.Policy, group...),
			{Table: "mangle", Name: "PREROUTING", For: "gives back the hop that forwarding takes", Rules: []attribution.Line{{Comment: NoHop,
				For: "Azure: " + NoHop}}},
			{Table: "nat", Name: "POSTROUTING", For: "a container group's way to the internet", Rules: []attribution.Line{{Comment: groupsWay,
				For: groupsWay}}},
		},
	}
}
