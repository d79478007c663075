package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/session"
)

// probeDrops returns what drops the load balancer's probes of the back ends whose probes fail, or why that is unknown.
func probeDrops(s *session.Session, frontends []session.Frontend) (problems []string) {
	for _, f := range frontends {
		for _, machine := range slices.Sorted(maps.Keys(f.Probed)) {
			to := f.Probed[machine]
			result, err := walk.Walk(s.Source(), walk.Request{Host: armview.Host, OneWay: true, Packet: packet.Packet{Tuple: packet.Tuple{
				Protocol: packet.TCP, Source: vnet.ProbeSource, Destination: to.Addr(), DestinationPort: packet.Port{Number: to.Port()},
			}, TCPFlags: packet.SYN}})
			probe := fmt.Sprintf("the load balancer's probe of %s at %s", machine, to)
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: why it fails is unknown: %v", probe, err))
				continue
			}
			if by := explain.Drop(result, owners(s, result.Hosts())); by != "" {
				problems = append(problems, probe+": "+by)
			}
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

const (
	// mostDNSWalks is how many pods' DNS requests are walked: of pods with the same namespace and labels one.
	mostDNSWalks = 20
	// mostDNSDrops is how many of their drops are told one by one.
	mostDNSDrops = 4
)

// dnsDrops returns what drops pods' requests to the cluster's DNS, or why that is unknown.
func dnsDrops(ctx context.Context, s *session.Session) (drops []string) {
	seen, unseen := map[string]bool{}, map[string]bool{}
	objects := s.Source().Objects()
	for i := range objects.Pods {
		p := &objects.Pods[i]
		like := fmt.Sprint(p.Namespace, p.Labels)
		if p.HostNetwork || len(p.IPs) == 0 || seen[like] {
			continue
		}
		if len(seen) == mostDNSWalks {
			unseen[like] = true
			continue
		}
		seen[like] = true
		pod := endpoint.End{Kind: endpoint.Pod, Namespace: p.Namespace, Name: p.Name}
		if by := dnsDrop(ctx, s, &walk.Request{}, pod); by != "" {
			drops = append(drops, fmt.Sprintf("requests of %s to the cluster's DNS: %s", pod, by))
		}
	}
	if n := len(drops) - mostDNSDrops; n > 0 {
		drops = append(drops[:mostDNSDrops], fmt.Sprintf("requests of %d more pods to the cluster's DNS are dropped", n))
	}
	if n := len(unseen); n > 0 {
		drops = append(drops, fmt.Sprintf("requests to the cluster's DNS were not checked for %d more kinds of pods", n))
	}
	return drops
}

// dnsDrop returns where and by what the requests of an end to the cluster's DNS are dropped, or why that is unknown; "" where they are not,
// and for a cluster without that Service.
func dnsDrop(ctx context.Context, s *session.Session, req *walk.Request, from endpoint.End) string {
	dns := endpoint.End{Kind: endpoint.Service, Namespace: "kube-system", Name: "kube-dns", Port: 53}
	read, err := endpoint.Read(s.World(ctx, ""), from, dns, packet.UDP)
	if err != nil {
		return ""
	}
	read.OneWay = true
	p, of := &read.Packet, &req.Packet // of the same program
	p.HasOwner, p.AssumedGroup, p.UID, p.GID = of.HasOwner, of.AssumedGroup, of.UID, of.GID
	result, err := walk.Walk(s.Source(), read.Request)
	if err != nil {
		return fmt.Sprintf("unknown: %v", err)
	}
	return explain.Drop(result, owners(s, result.Hosts()))
}

// dropNotes returns what a walk does not come to itself: why a front end has no healthy back end, why a name is not resolved, and that a
// network policy engine does not follow its policies.
func dropNotes(ctx context.Context, s *session.Session, req *walk.Request, from, to endpoint.End) (notes []string) {
	if to.Kind == endpoint.DNSName && from.Kind == endpoint.Pod && s.Cluster == nil {
		if by := dnsDrop(ctx, s, req, from); by != "" {
			notes = append(notes, fmt.Sprintf("%s is resolved by the cluster's DNS; requests of %s to it: %s", to.Name, from, by))
		}
	}
	if s.Lab == nil {
		return notes
	}
	for _, f := range s.Lab.Frontends() {
		if f.Address == req.Packet.Destination.String() && f.Port == req.Packet.DestinationPort.Number && f.Healthy == 0 {
			for _, by := range probeDrops(s, []session.Frontend{f}) {
				notes = append(notes, "no healthy back end: "+by)
			}
		}
	}
	for _, p := range s.Lab.Problems() {
		if strings.HasPrefix(p, "calico-felix ") {
			notes = append(notes, p)
		}
	}
	return notes
}
