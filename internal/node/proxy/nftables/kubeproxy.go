//go:build linux

package nftables

import (
	"context"
	"fmt"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// Names of kube-proxy with nftables (k8s.io/kubernetes pkg/proxy/nftables/proxier.go): its table, and the map of the service ports that
// have endpoints, whose keys have the form of ours.
const (
	kubeProxyTable    = "kube-proxy"
	kubeProxyServices = "service-ips"
)

// RemoveKubeProxys removes the table of kube-proxy with nftables, if it exists.
func RemoveKubeProxys(ctx context.Context, k Kernel, f service.Family) error {
	return remove(ctx, k, tableOf(f, kubeProxyTable))
}

// KubeProxyServes reports whether kube-proxy's table exists and translates to the cluster IPs of all ports, which have endpoints. kube-proxy
// writes the table with all that it knows in one transaction.
func KubeProxyServes(ctx context.Context, k Kernel, f service.Family, ports []service.Port) (bool, error) {
	answers, err := k.Ask(ctx, tableOf(f, kubeProxyTable).ListElements(kubeProxyServices))
	if isOneOf(err, unknown...) {
		return false, nil
	}
	elements, err2 := nf.Elements(answers)
	if err == nil {
		err = err2
	}
	if err != nil {
		return false, fmt.Errorf("read table %s: %w", kubeProxyTable, err)
	}
	served := make(map[string]bool, len(elements))
	for i := range elements {
		served[elements[i].Key] = true
	}
	for i := range ports {
		p := &ports[i]
		if !served[addressField(p.ClusterIP)+protocolField(p.Protocol)+portField(p.Port)] {
			return false, nil
		}
	}
	return true, nil
}

// chainIPTablesServices is the chain by which kube-proxy's rules begin in iptables' table nat.
const chainIPTablesServices = "KUBE-SERVICES"

// HasIPTables reports whether the kernel holds the chain by which kube-proxy's rules with iptables-nft begin, ours included.
func HasIPTables(ctx context.Context, k Kernel, f service.Family) (bool, error) {
	table := tableOf(f, iptables.NAT)
	answers, err := k.Ask(ctx, table.ListChains())
	if isOneOf(err, unknown...) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list chains: %w", err)
	}
	chains, err := table.Hooks(answers)
	_, there := chains[chainIPTablesServices]
	return there, err
}

func tableOf(f service.Family, name string) nf.Table {
	table := newWriter(proxy.Config{Family: f}).table()
	table.Name = name
	return table
}
