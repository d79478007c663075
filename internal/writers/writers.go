// Package writers lists the components that write rules, ours and those of others, with what each says about its rules.
package writers

import (
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/explain/foreign"
	"packetwalk.dev/internal/azure/firewall"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/node/cni/ebrules"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// Book returns the writers, with what a cluster's objects add to their reasons. Objects that are empty add nothing.
func Book(objects *snapshot.Objects) *attribution.Book {
	ports := servicePorts(objects.Services)
	var configs []ipmasq.ConfigMap
	for _, c := range objects.ConfigMaps {
		configs = append(configs, ipmasq.ConfigMap{Name: c.Namespace + "/" + c.Name, Data: c.Data})
	}
	var pools []foreign.Pool
	for _, p := range objects.Pools {
		pools = append(pools, foreign.Pool{Name: p.Name, CIDR: p.CIDR, NATOutgoing: p.NATOutgoing})
	}
	return &attribution.Book{Writers: append([]attribution.Writer{
		iptables.Signed(ports), nftables.Signed(ports),
		ipmasq.Signed(configs), noderules.Signed(), ebrules.Signed(), vnet.Signed(), firewall.Signed(),
	}, foreign.Writers(pools)...)}
}

// Orphans returns a sentence for each table of packetwalk-node, on some hosts of a source, that no packetwalk-node keeps. It passes over
// hosts that cannot be read or where it is unknown whether one runs.
func Orphans(source snapshot.Source, hosts []string) (notes []string) {
	for _, name := range hosts {
		if h, err := source.Host(name); err == nil {
			notes = append(notes, orphansOn(h)...)
		}
	}
	return notes
}

func orphansOn(h *snapshot.Host) (notes []string) {
	if h.Agents == nil || h.Rules == nil || slices.Contains(h.Agents, snapshot.Agent{Role: snapshot.ServiceProxy}) {
		return nil
	}
	for _, t := range h.Rules.Tables {
		if t.Dialect == netfilter.NFTables && slices.Contains(nftables.TableNames, t.Name) {
			notes = append(notes, nftables.Orphaned(h.Name, t.Family.String(), t.Name))
		}
	}
	return notes
}

func servicePorts(services []snapshot.Service) (ports []service.Port) {
	for _, s := range services {
		for _, p := range s.Ports {
			port := service.Port{
				Name:     service.Name{Namespace: s.Namespace, Service: s.Name, Port: p.Name},
				Protocol: service.Protocol(strings.ToUpper(p.Protocol.String())),
				Port:     p.Port, NodePort: p.NodePort, ExternalIPs: slices.Concat(s.ClusterIPs, s.External),
			}
			for _, e := range p.Endpoints {
				port.Endpoints = append(port.Endpoints, service.Endpoint{Addr: e})
			}
			ports = append(ports, port)
		}
	}
	return ports
}
