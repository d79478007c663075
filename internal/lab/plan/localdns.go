package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/lab/cluster"
)

// LocalDNS's addresses on each node: processes of the node and pods with dnsPolicy Default ask the node's, other pods the cluster's
// (AgentBaker: localdns.sh).
var (
	NodeListener    = netip.AddrFrom4([4]byte{169, 254, 10, 10})
	ClusterListener = netip.AddrFrom4([4]byte{169, 254, 10, 11})
)

// HasLocalDNS reports whether a node runs LocalDNS.
func HasLocalDNS(c *cluster.Cluster, n cluster.Node) bool {
	return c.Spec.NodeOptions.LocalDNS && n.Runtime == cluster.RuntimeContainerd
}

// NodeResolver returns the name server that a node's processes ask.
func NodeResolver(c *cluster.Cluster, n cluster.Node) netip.Addr {
	if HasLocalDNS(c, n) {
		return NodeListener
	}
	return AzureResolver
}

// PodResolver returns the name server that a node's pods ask with dnsPolicy ClusterFirst.
func PodResolver(c *cluster.Cluster, n cluster.Node) netip.Addr {
	if HasLocalDNS(c, n) {
		return ClusterListener
	}
	return c.Spec.Network.DNSServiceIP
}

// Corefile returns LocalDNS's configuration with AKS's defaults for the domains . and cluster.local (learn.microsoft.com, "Configure
// LocalDNS in Azure Kubernetes Service"; AgentBaker: its template). Answers are kept for an hour, and served for another one while the
// upstream servers do not answer. Queries for the cluster's names go upstream by TCP.
func Corefile(c *cluster.Cluster) []byte {
	var b strings.Builder
	both := NodeListener.String() + " " + ClusterListener.String()
	fmt.Fprintf(&b, "health-check.localdns.local:53 {\n    bind %s\n    whoami\n}\n", both)
	kubeDNS := c.Spec.Network.DNSServiceIP
	for _, s := range []struct {
		domain             string
		listener, upstream netip.Addr
		id                 string
	}{
		{".", NodeListener, AzureResolver, "localdns"},
		{ClusterDomain, NodeListener, kubeDNS, "localdns"},
		{".", ClusterListener, kubeDNS, "localdns-pod"},
		{ClusterDomain, ClusterListener, kubeDNS, "localdns-pod"},
	} {
		protocol := ""
		if s.domain == ClusterDomain {
			protocol = "        force_tcp\n"
		}
		fmt.Fprintf(&b, "%s:53 {\n    errors\n    bind %s\n    forward . %s {\n%s        policy sequential\n        max_concurrent 1000\n    }\n",
			s.domain, s.listener, s.upstream, protocol)
		if s.listener == NodeListener {
			fmt.Fprintf(&b, "    ready %s:%d\n", NodeListener, LocalDNSReadyPort)
		}
		fmt.Fprintf(&b, "    cache 3600 {\n        success 9984\n        denial 9984\n        serve_stale 3600s immediate\n        servfail 0\n    }\n"+
			"    loop\n    nsid %s\n    prometheus :9253\n", s.id)
		if s.domain == "." { // search domains of Azure's VMs, which exist only for whole names
			b.WriteString("    template ANY ANY internal.cloudapp.net {\n        match \"^(?:[^.]+\\.){4,}internal\\.cloudapp\\.net\\.$\"\n" +
				"        rcode NXDOMAIN\n        fallthrough\n    }\n    template ANY ANY reddog.microsoft.com {\n        rcode NXDOMAIN\n    }\n")
		}
		b.WriteString("}\n")
	}
	return []byte(b.String())
}

// LocalDNSReadyPort is where LocalDNS answers /ready, at NodeListener.
const LocalDNSReadyPort = 8181

// ClusterDomain is the domain of the cluster's names; AKS has no other.
const ClusterDomain = "cluster.local"
