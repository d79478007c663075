package foreign

import "packetwalk.dev/internal/model/attribution"

// swift returns the writers of the rules for AKS's pod subnets, where pods keep their address except towards Azure's host, which answers
// other addresses of the VM only. Azure CNI writes chain SWIFT (Azure/azure-container-networking, cni/network/invoker_cns.go). With Cilium,
// Azure CNS writes chain SWIFT-POSTROUTING (cns/restserver/internalapi_linux.go).
func swift() []attribution.Writer {
	writer := func(name, chain string) attribution.Writer {
		return attribution.Writer{
			Name: name, File: "internal/answer/explain/foreign/swift.go",
			Words: map[string]string{"port": "[0-9]+", "proto": "tcp|udp"},
			Chains: attribution.In("nat",
				attribution.Chain{Name: "POSTROUTING", For: "where " + name + " begins", Rules: []attribution.Line{
					{To: chain, For: name + ": is it from a pod of the pod subnet to Azure's host?"}}},
				attribution.Chain{Name: chain, For: "gives what pods of the pod subnet send to Azure's host an address that the host answers",
					Rules: []attribution.Line{
						{To: "SNAT", Text: "-s {pods} -d 169.254.169.254/32 *--to-source {address}",
							For: name + ": from a pod of {pods} to the Instance Metadata Service: leaves with {address}"},
						{To: "SNAT", Text: "-s {pods} -d 168.63.129.16/32 -p {proto} *--dport {port} *--to-source {address}",
							For: name + ": from a pod of {pods} to Azure's DNS, {proto} {port}: leaves with {address}"},
					}}),
		}
	}
	return []attribution.Writer{writer("Azure CNI", "SWIFT"), writer("Azure CNS", "SWIFT-POSTROUTING")}
}
