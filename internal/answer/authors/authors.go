// Package authors owns the list of all who write rules, and sign them.
package authors

import (
	"packetwalk.dev/internal/answer/explain/foreign"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/node/cni/ebrules"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// Book asks all of them, with what a cluster's objects add to their reasons; nothing where there is no cluster.
func Book(ports []service.Port, configs []ipmasq.ConfigMap, pools []foreign.Pool) *attribution.Book {
	return &attribution.Book{Writers: append([]attribution.Writer{
		iptables.Signed(ports), nftables.Signed(ports),
		ipmasq.Signed(configs), noderules.Signed(), ebrules.Signed(), vnet.Signed(),
	}, foreign.Writers(pools)...)}
}
