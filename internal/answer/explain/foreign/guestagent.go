package foreign

import "packetwalk.dev/internal/model/attribution"

// guestAgent describes the rules of the guest agent on Azure's Linux VMs (Azure/WALinuxAgent). Some keep users other than root from the wire
// server, by iptables or by nft (azurelinuxagent/ga/firewall_manager.py). One accepts answers to DHCP
// (azurelinuxagent/common/osutil/default.py, allow_dhcp_broadcast).
func guestAgent() attribution.Writer {
	const wireServer = "168.63.129.16"
	return attribution.Writer{
		Name: "Azure guest agent", File: "internal/answer/explain/foreign/guestagent.go",
		Words: map[string]string{"port": "[0-9]+"},
		Chains: []attribution.Chain{
			{Table: "security", Name: "OUTPUT", For: "which processes of a VM reach Azure's wire server", Rules: []attribution.Line{
				{To: "ACCEPT", Text: "-d " + wireServer + "/32 *--dport {port}", For: "Azure guest agent: every user's DNS queries reach Azure's host, port {port}"},
				{To: "ACCEPT", Text: "-d " + wireServer + "/32 *--uid-owner *", For: "Azure guest agent: root's processes reach the wire server"},
				{To: "DROP", Text: "-d " + wireServer + "/32 *", For: "Azure guest agent: other users' processes do not reach the wire server"},
			}},
			{Table: "filter", Name: "INPUT", For: "what the node receives", Rules: []attribution.Line{
				{To: "ACCEPT", Text: "-p udp *--dport 68", For: "Azure guest agent: answers to DHCP are accepted"}}},
			{Table: "walinuxagent", Name: "output", For: "which processes of a VM reach Azure's wire server", Rules: []attribution.Line{
				{To: "drop", Text: "ip daddr " + wireServer + " *", For: "Azure guest agent: other users' processes than root's do not reach the wire server"}}},
		},
	}
}
