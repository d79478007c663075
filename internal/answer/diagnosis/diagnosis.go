// Package diagnosis walks packets that the user did not ask about but whose fate explains a symptom: a load balancer's probes of a back
// end that is unhealthy, and pods' requests to the cluster's DNS.
package diagnosis

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// Network is the network that the packets walk through.
type Network struct {
	World endpoint.World
	// Owners returns names for the addresses and rules of some hosts.
	Owners func(hosts []string) *explain.Owners
}

// drop returns where and by what a packet is dropped, or why that is unknown; "" where it may pass.
func (n Network) drop(request walk.Request) string {
	request.OneWay = true
	result, err := walk.Walk(n.World.Source, request)
	if err != nil {
		return fmt.Sprintf("its fate is unknown: %v", err)
	}
	return explain.Drop(result, n.Owners(result.Hosts()))
}

// Probe is a load balancer's probe of a back end, a TCP connection.
type Probe struct {
	Machine string // the back end
	Host    string // where the probe enters the network
	From    netip.Addr
	To      netip.AddrPort
}

// ProbeDrops returns what drops probes, or why that is unknown: a sorted sentence for each machine that it concerns.
func (n Network) ProbeDrops(probes []Probe) (drops []string) {
	for _, p := range probes {
		by := n.drop(walk.Request{Host: p.Host, Packet: packet.Packet{Tuple: packet.Tuple{
			Protocol: packet.TCP, Source: p.From, Destination: p.To.Addr(), DestinationPort: packet.Port{Number: p.To.Port()},
		}, TCPFlags: packet.SYN}})
		if by != "" {
			drops = append(drops, fmt.Sprintf("the load balancer's probe of %s at %s: %s", p.Machine, p.To, by))
		}
	}
	slices.Sort(drops)
	return slices.Compact(drops)
}

const (
	// maxDNSWalks limits the pods whose DNS requests are walked: of pods with the same namespace and labels one.
	maxDNSWalks = 20
	// maxDNSDrops limits the drops that get a sentence each.
	maxDNSDrops = 4
)

// DNSDrops returns what drops pods' requests to the cluster's DNS, or why that is unknown.
func (n Network) DNSDrops() (drops []string) {
	seen, unseen := map[string]bool{}, map[string]bool{}
	objects := n.World.Source.Objects()
	for i := range objects.Pods {
		p := &objects.Pods[i]
		like := fmt.Sprint(p.Namespace, p.Labels)
		if p.HostNetwork || len(p.IPs) == 0 || seen[like] {
			continue
		}
		if len(seen) == maxDNSWalks {
			unseen[like] = true
			continue
		}
		seen[like] = true
		pod := endpoint.End{Kind: endpoint.Pod, Namespace: p.Namespace, Name: p.Name}
		if by := n.DNSDrop(pod, &packet.Packet{}); by != "" {
			drops = append(drops, fmt.Sprintf("requests of %s to the cluster's DNS: %s", pod, by))
		}
	}
	if n := len(drops) - maxDNSDrops; n > 0 {
		drops = append(drops[:maxDNSDrops], fmt.Sprintf("requests of %d more pods to the cluster's DNS are dropped", n))
	}
	if n := len(unseen); n > 0 {
		drops = append(drops, fmt.Sprintf("requests to the cluster's DNS were not checked for %d more kinds of pods", n))
	}
	return drops
}

// DNSDrop returns where and by what requests to the cluster's DNS are dropped, or why that is unknown; "" where they may pass, and for a
// cluster without the Service kube-dns. The requests have the owner of another packet of the same program.
func (n Network) DNSDrop(from endpoint.End, of *packet.Packet) string {
	dns := endpoint.End{Kind: endpoint.Service, Namespace: "kube-system", Name: "kube-dns", Port: 53}
	read, err := endpoint.Read(n.World, from, dns, packet.UDP)
	if err != nil {
		return ""
	}
	p := &read.Packet
	p.HasOwner, p.AssumedGroup, p.UID, p.GID = of.HasOwner, of.AssumedGroup, of.UID, of.GID
	return n.drop(read.Request)
}
