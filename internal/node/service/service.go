package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Family is an IP family. A service port belongs to one; a dual-stack service makes ports for each.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String gives the name that the Kubernetes API and kube-proxy's metrics use.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Of reports whether an address is of the family.
func (f Family) Of(a netip.Addr) bool {
	return a.IsValid() && a.Is4() == (f == IPv4)
}

// Name is a service port's name.
type Name struct {
	Namespace, Service string
	Port               string // empty for a service's single, unnamed port
}

// String returns ns/name:port, and ns/name for an unnamed port, as kube-proxy writes it since 1.20.
func (n Name) String() string {
	if n.Port == "" {
		return n.Namespace + "/" + n.Service
	}
	return n.Namespace + "/" + n.Service + ":" + n.Port
}

// Protocol is a transport protocol as the API names it.
type Protocol string

// The protocols of a service port.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// Lower returns the protocol's name in rules.
func (p Protocol) Lower() string { return strings.ToLower(string(p)) }

// Policy is a traffic policy.
type Policy uint8

// Cluster sends to every endpoint, Local only to those on this node.
const (
	Cluster Policy = iota
	Local
)

// Port is one port of one service in one family, seen from one node.
type Port struct {
	Name
	Protocol        Protocol
	ClusterIP       netip.Addr
	Port            uint16
	NodePort        uint16 // 0: none
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr // of ingress points in VIP mode only
	// SourceRanges restricts who may reach the load balancer's addresses; empty: everyone.
	SourceRanges        []netip.Prefix
	ExternalPolicy      Policy
	InternalPolicy      Policy
	AffinitySeconds     int    // how long a client stays with its endpoint; 0: no session affinity
	HealthCheckNodePort uint16 // 0: none
	// LocalReady is filled for ports with a health check node port: the distinct addresses of the service's ready endpoints on this node,
	// sorted. They are those of all ports of the service's slices, also of ones that the service no longer has, as kube-proxy counts them.
	LocalReady []netip.Addr

	// Endpoints are all of the port, whatever their state, sorted by their text.
	Endpoints []Endpoint
	// ForCluster and ForLocal are what each policy chooses: the ready endpoints, and if there are none those that still serve while they
	// terminate, each of the two by itself. ForCluster honours topology hints. It is empty only when the service can be reached nowhere.
	ForCluster, ForLocal []Endpoint
}

// External reports whether the port answers anywhere but at its cluster IP.
func (p *Port) External() bool {
	return p.NodePort != 0 || len(p.LoadBalancerIPs) > 0 || len(p.ExternalIPs) > 0
}

// LeadsInside reports whether the port's cluster IP leads to an endpoint.
func (p *Port) LeadsInside() bool {
	return len(p.ForCluster) > 0 && (p.InternalPolicy == Cluster || len(p.ForLocal) > 0)
}

// Endpoint is one address and port behind a service port.
type Endpoint struct {
	Addr  netip.AddrPort
	Local bool // on this node
	Ready bool
	// Serving is readiness without regard to termination.
	Serving     bool
	Terminating bool
	ZoneHints   []string
	NodeHints   []string
}

// String returns ip:port, with brackets around an IPv6 address.
func (e Endpoint) String() string { return e.Addr.String() }

// ComparePorts orders service ports by name and protocol.
func ComparePorts(a, b *Port) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Service, b.Service),
		cmp.Compare(a.Name.Port, b.Name.Port),
		cmp.Compare(a.Protocol, b.Protocol),
	)
}

// SameRules reports whether two service ports of one name need the same rules.
func SameRules(a, b *Port) bool {
	addr := func(a, b Endpoint) bool { return a.Addr == b.Addr }
	return a.ClusterIP == b.ClusterIP && a.Port == b.Port && a.NodePort == b.NodePort && a.AffinitySeconds == b.AffinitySeconds &&
		a.HealthCheckNodePort == b.HealthCheckNodePort && a.ExternalPolicy == b.ExternalPolicy && a.InternalPolicy == b.InternalPolicy &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) && slices.EqualFunc(a.ForCluster, b.ForCluster, addr) &&
		slices.EqualFunc(a.ForLocal, b.ForLocal, addr)
}

// Node is what the choice of endpoints asks of the node.
type Node struct {
	Name string
	Zone string // label topology.kubernetes.io/zone
}

// Key names a service.
type Key struct{ Namespace, Service string }

// String returns ns/name.
func (k Key) String() string { return k.Namespace + "/" + k.Service }

// HealthCheck is a service's health check node port.
type HealthCheck struct {
	Key
	Port           uint16
	LocalEndpoints int // distinct addresses of ready endpoints on this node, over all ports of the service's slices
}

// HealthChecks lists the health check node ports of all families together, by service. Ports of one service share one.
func HealthChecks(families ...[]Port) []HealthCheck {
	addresses := map[Key]map[netip.Addr]bool{}
	var checks []HealthCheck
	for _, ports := range families {
		for i := range ports {
			p := &ports[i]
			if p.HealthCheckNodePort == 0 {
				continue
			}
			key := Key{p.Namespace, p.Service}
			if addresses[key] == nil {
				addresses[key] = map[netip.Addr]bool{}
				checks = append(checks, HealthCheck{Key: key, Port: p.HealthCheckNodePort})
			}
			for _, a := range p.LocalReady {
				addresses[key][a] = true
			}
		}
	}
	for i := range checks {
		checks[i].LocalEndpoints = len(addresses[checks[i].Key])
	}
	return checks
}
