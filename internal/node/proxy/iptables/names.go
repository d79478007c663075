package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"packetwalk.dev/internal/node/service"
)

// The chains that stand in every rule set, and the prefixes of those made for a service port or an endpoint
// (k8s.io/kubernetes pkg/proxy/iptables/proxier.go).
const (
	chainServices    = "KUBE-SERVICES"
	chainExternal    = "KUBE-EXTERNAL-SERVICES"
	chainNodePorts   = "KUBE-NODEPORTS"
	chainPostrouting = "KUBE-POSTROUTING"
	chainForward     = "KUBE-FORWARD"
	chainMarkMasq    = "KUBE-MARK-MASQ"
	chainMarkDrop    = "KUBE-MARK-DROP"
	chainProxyFW     = "KUBE-PROXY-FIREWALL"
	chainFirewall    = "KUBE-FIREWALL"
	chainCanary      = "KUBE-PROXY-CANARY"

	prefixCluster  = "KUBE-SVC-"
	prefixLocal    = "KUBE-SVL-"
	prefixExternal = "KUBE-EXT-"
	prefixFirewall = "KUBE-FW-"
	prefixXLB      = "KUBE-XLB-"
	prefixEndpoint = "KUBE-SEP-"
)

// ChainServices is where the rules of every version begin, in table nat.
const ChainServices = chainServices

// isServiceChain reports whether a chain was made for a service port or an endpoint, by this proxy or by kube-proxy of any version: if the
// desired state does not have it, it is stale.
func isServiceChain(name string) bool { return rank(name) >= 0 }

// isTopChain reports whether a chain is the service proxy's alone and jumped to from a built-in chain, in any version. KUBE-FIREWALL and
// KUBE-MARK-DROP are the kubelet's too and never removed.
func isTopChain(name string) bool {
	switch name {
	case chainServices, chainExternal, chainNodePorts, chainPostrouting, chainForward, chainProxyFW:
		return true
	}
	return false
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// portName returns the name in comments and hashes.
func (a *ruleSetVersion) portName(n service.Name) string {
	if n.Port == "" && a.unnamedColon {
		return n.String() + ":"
	}
	return n.String()
}
