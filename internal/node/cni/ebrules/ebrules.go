// Package ebrules has the ebtables rules of the CNI plugin's kinds of networks, Azure CNI's bridge mode and kubenet. It is pure.
package ebrules

import (
	"fmt"
	"net"
	"net/netip"

	"packetwalk.dev/internal/model/attribution"
)

// Rule is a rule as ebtables' own command line has it, chain first, and the table that it stands in.
type Rule struct{ Table, Text string }

func (r Rule) String() string { return "-t " + r.Table + " -A " + r.Text }

func natRule(format string, args ...any) Rule { return Rule{"nat", fmt.Sprintf(format, args...)} }

// Dedup is the chain of the filter table that kubelet's kubenet had. DedupAKS is that of AKS's nodes since containerd has CNI's bridge in
// its place (AgentBaker: ensure-no-dup.sh).
const (
	Dedup    = "KUBE-DEDUP"
	DedupAKS = "AKS-DEDUP-PROMISC"
)

// Node returns the rules that all pods of a node share, in Azure CNI's order: frames leave by the NIC with the NIC's address (Azure drops
// any other), the node answers for its own addresses, and answers to ARP go to every pod, because the pods share the NIC's address.
func Node(master string, mac net.HardwareAddr, hosts []netip.Addr) []Rule {
	rules := []Rule{natRule("POSTROUTING -s Unicast -o %s -j snat --to-src %s --snat-arp --snat-target ACCEPT", master, mac)}
	for _, host := range hosts {
		rules = append(rules, arpReply(host, mac))
	}
	return append(rules, natRule("PREROUTING -p ARP -i %s --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT", master))
}

// Pod returns a pod's own: the node answers ARP for it, and what comes in by the NIC for its address goes to its interface.
func Pod(master string, pod netip.Addr, mac net.HardwareAddr) []Rule {
	return []Rule{
		arpReply(pod, mac),
		natRule("PREROUTING -p IPv4 -i %s --ip-dst %s -j dnat --to-dst %s --dnat-target ACCEPT", master, pod, mac),
	}
}

func arpReply(addr netip.Addr, mac net.HardwareAddr) Rule {
	return natRule("PREROUTING -p ARP --arp-op Request --arp-ip-dst %s -j arpreply --arpreply-mac %s --arpreply-target DROP", addr, mac)
}

// Deduplicate returns what keeps a promiscuous bridge from giving pods packets twice (kubenet_linux.go upstream, syncEbtablesDedupRules): a
// packet to a service that turns round on the bridge also goes up to the node, which routes a copy back with the bridge's MAC address.
// Interfaces of pods begin with veth. The jump comes first.
func Deduplicate(chain string, bridge net.HardwareAddr, veth string, gateway netip.Addr, pods netip.Prefix) []Rule {
	frame := fmt.Sprintf("%s -p IPv4 -s %s -o %s+ --ip-src ", chain, bridge, veth)
	return []Rule{
		{"filter", "OUTPUT -j " + chain},
		{"filter", frame + gateway.String() + " -j ACCEPT"},
		{"filter", frame + pods.String() + " -j DROP"},
	}
}

// Signed says what the rules are there for, of Azure CNI (azure-container-networking, network/ebtables) and kubenet as well as ours.
func Signed() attribution.Writer {
	table := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Family: attribution.Bridge, Table: table, Name: name, For: purpose, Rules: rules}
	}
	dedup := func(chain string) attribution.Chain {
		return table("filter", chain, "kubenet: one copy of what its promiscuous bridge sends twice",
			attribution.Line{To: "ACCEPT", Text: "--ip-src {gateway}", For: "kubenet: from the bridge's own address, which is no copy"},
			attribution.Line{To: "DROP", Text: "--ip-src {pods}", For: "kubenet: one copy of what its promiscuous bridge sends twice"})
	}
	return attribution.Writer{
		Name: "CNI plugin", File: "internal/node/cni/ebrules/ebrules.go",
		Words: map[string]string{"chain": Dedup + "|" + DedupAKS},
		Chains: []attribution.Chain{
			table("nat", "POSTROUTING", "Azure CNI: the link-layer source of what leaves by the NIC",
				attribution.Line{To: "snat", Text: "-s Unicast -o {nic} -j snat", For: "Azure CNI: frames leave with the NIC's own address"}),
			table("nat", "PREROUTING", "Azure CNI: the link-layer destination of what comes in, and answers to ARP",
				attribution.Line{To: "arpreply", Text: "--arp-ip-dst {address}", For: "Azure CNI: the node answers ARP for itself and its pods"},
				attribution.Line{To: "dnat", Text: "--arp-op Reply", For: "Azure CNI: answers to ARP go to every pod"},
				attribution.Line{To: "dnat", Text: "--ip-dst {address}", For: "Azure CNI: frames for a pod go to its own address"}),
			table("filter", "OUTPUT", "kubenet: where its chain begins",
				attribution.Line{To: "{chain}", For: "kubenet: is it a copy that its promiscuous bridge sends twice?"}),
			dedup(Dedup), dedup(DedupAKS),
		},
	}
}
