package foreign

import "packetwalk.dev/internal/model/attribution"

// awsCNI returns the VPC CNI plugin of AWS (aws/amazon-vpc-cni-k8s, pkg/networkutils): until 1.15 with a chain for each range of the VPC,
// which leads to the next one; with one chain since. Since 1.23 it marks in a separate table where iptables is that of nftables.
func awsCNI() attribution.Writer {
	chain := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: table, Name: name, For: purpose, Rules: rules}
	}
	const (
		first    = "AWS VPC CNI: does it leave the VPC with the node's address?"
		inVPC    = "AWS VPC CNI: to {range} of the VPC: keeps the pod's address"
		exempt   = "AWS VPC CNI: to {range}, excluded by AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS: keeps the pod's address"
		outside  = "AWS VPC CNI: outside {range}; asks for the next range"
		marked   = "AWS VPC CNI: from a pod to outside the VPC: marked, so that it leaves by the primary interface"
		restored = "AWS VPC CNI: the connection's mark on the packet, which routes it to the primary interface"
		pods     = "AWS VPC CNI: from a pod: does it leave the VPC?"
	)
	return attribution.Writer{
		Name: "AWS VPC CNI", File: "internal/answer/explain/foreign/awscni.go", Words: map[string]string{"number": "[0-9]+"},
		Chains: []attribution.Chain{
			chain("nat", "POSTROUTING", "where the AWS VPC CNI begins", attribution.Line{To: "AWS-SNAT-CHAIN-0", For: first}),
			chain("nat", "PREROUTING", "where the AWS VPC CNI begins", attribution.Line{To: "AWS-CONNMARK-CHAIN-0", For: pods},
				attribution.Line{To: "CONNMARK", Comment: "AWS, CONNMARK", For: restored}),
			chain("nat", "AWS-SNAT-CHAIN-{number}", "gives pods the node's address outside the VPC",
				attribution.Line{To: "AWS-SNAT-CHAIN-{next}", Text: "! -d {range} *", For: outside, Not: inVPC},
				attribution.Line{To: "RETURN", Comment: "AWS SNAT CHAIN EXCLUSION", Text: "-d {range} *", For: exempt},
				attribution.Line{To: "RETURN", Text: "-d {range} *", For: inVPC},
				attribution.Line{To: "SNAT", Text: "--to-source {address}*",
					For: "AWS VPC CNI: to outside the VPC: leaves with {address}, the node's primary address"}),
			chain("nat", "AWS-CONNMARK-CHAIN-{number}", "marks connections of pods that leave the VPC",
				attribution.Line{To: "AWS-CONNMARK-CHAIN-{next}", Text: "! -d {range} *", For: outside, Not: inVPC},
				attribution.Line{To: "RETURN", Text: "-d {range} *", For: "AWS VPC CNI: to {range}: not marked"},
				attribution.Line{To: "CONNMARK", For: marked}),
			chain("mangle", "PREROUTING", "where the AWS VPC CNI marks connections",
				attribution.Line{To: "CONNMARK", Comment: "AWS, primary ENI", Text: "--limit-iface-in *",
					For: "AWS VPC CNI: for an address of the primary interface, a node port: marked, so that answers leave there"},
				attribution.Line{To: "CONNMARK", Comment: "AWS, primary ENI", Text: "--restore-mark *", For: restored}),
			chain("filter", "FORWARD", "what the node forwards",
				attribution.Line{To: "REJECT", Comment: "Block Node Local Pod access via IP{version}",
					For: "AWS VPC CNI: to a pod's address that is only valid on its node (egress of IP{version})"}),
			chain("aws-cni", "nat-prerouting", "where the AWS VPC CNI marks connections",
				attribution.Line{To: "return", Text: "fib daddr type local *", For: "AWS VPC CNI: to the node itself: not marked"},
				attribution.Line{To: "snat-mark", For: pods}, attribution.Line{Text: "meta mark set ct mark *", For: restored}),
			chain("aws-cni", "snat-mark", "marks connections of pods that leave the VPC",
				attribution.Line{To: "return", Text: "ip daddr {range} *", For: "AWS VPC CNI: to {range}: not marked"},
				attribution.Line{Text: "ct mark set *", For: marked}),
		},
	}
}
