package session

import (
	"context"
	"fmt"
	"strings"

	"packetwalk.dev/internal/answer/diagnosis"
	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/writers"
)

// Owners returns names for the addresses and rules of some hosts.
func (s *Session) Owners(hosts []string) *explain.Owners {
	objects := s.source.Objects()
	o := explain.NewOwners(objects, writers.Book(&objects))
	for _, name := range hosts {
		if h, err := s.source.Host(name); err == nil {
			o.AddHost(h)
		}
	}
	if s.Lab != nil {
		for name, a := range s.Lab.PublicAddresses() {
			o.AddAddress(a, explain.Owner{Kind: "vm", Name: name, Role: "public address"})
		}
	}
	return o
}

// OwnersOfAll returns names for the addresses of all machines of a source, and for the rules of some hosts.
func (s *Session) OwnersOfAll(source snapshot.Source, hosts []string) *explain.Owners {
	o := s.Owners(hosts)
	for _, name := range source.Names() {
		if strings.HasPrefix(name, "pod/") {
			continue // their objects have their addresses
		}
		if h, err := snapshot.Outline(source, name); err == nil {
			o.AddHost(h)
		}
	}
	return o
}

// Network returns the network in which symptoms are diagnosed.
func (s *Session) Network(ctx context.Context) diagnosis.Network {
	return diagnosis.Network{World: s.World(ctx, ""), Owners: s.Owners}
}

// FailingProbes returns the probes of a load balancer that fail.
func FailingProbes(frontends ...Frontend) (probes []diagnosis.Probe) {
	for _, f := range frontends {
		for machine, to := range f.Probed {
			probes = append(probes, diagnosis.Probe{Machine: machine, Host: armview.Host, From: vnet.ProbeSource, To: to})
		}
	}
	return probes
}

// Diagnose returns notes on what a packet's walk does not meet itself: why a front end has no healthy back end, why a name is not resolved,
// and that a network policy engine does not follow its policies.
func (s *Session) Diagnose(ctx context.Context, p *packet.Packet, from, to endpoint.End) (notes []string) {
	network := s.Network(ctx)
	if to.Kind == endpoint.DNSName && from.Kind == endpoint.Pod && s.Cluster == nil && s.Lab == nil { // which has no resolver to ask
		if by := network.DNSDrop(from, p); by != "" {
			notes = append(notes, fmt.Sprintf("%s is resolved by the cluster's DNS; requests of %s to it: %s", to.Name, from, by))
		}
	}
	if s.Lab == nil {
		return notes
	}
	for _, f := range s.Lab.Frontends() {
		if f.Address == p.Destination.String() && f.Port == p.DestinationPort.Number && f.Healthy == 0 {
			for _, by := range network.ProbeDrops(FailingProbes(f)) {
				notes = append(notes, "no healthy back end: "+by)
			}
		}
	}
	for _, problem := range s.Lab.Problems() {
		if strings.HasPrefix(problem, "calico-felix ") {
			notes = append(notes, problem)
		}
	}
	return notes
}
