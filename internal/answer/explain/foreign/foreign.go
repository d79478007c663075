// Package foreign says what rules are there for that only programs of others write: a file for each program. The rules of kube-proxy's
// iptables mode, of the ip-masq-agent, of Azure CNI and so on are explained by our writers of the same rules.
package foreign

import (
	"slices"

	"packetwalk.dev/internal/model/attribution"
)

// Writers returns all of them, with what Calico's pools add to felix's reasons.
func Writers(pools []Pool) []attribution.Writer {
	return slices.Concat(localDNS(), swift(), []attribution.Writer{kubeProxy(), felix(pools), felixNFT(pools), kubeRouter(), weave(), npm(),
		docker(), portmap(), istio(), linkerd(), awsCNI(), flannel(), cilium(), guestAgent(), unknownWriter()})
}
