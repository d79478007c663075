package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Owner is whose an address is.
type Owner struct {
	Kind string `json:"kind"`           // "pod", "service", "node", "vm", "internet", "container group", "container host"
	Name string `json:"name"`           // "default/whereami-1"
	Role string `json:"role,omitempty"` // of a service's address: "cluster IP", "load balancer IP", "node port 30064"
}

// String returns "pod default/whereami-1" or "service default/whereami: cluster IP".
func (o Owner) String() string {
	switch {
	case o.Kind == o.Name || o.Kind == "":
		return o.Name
	case o.Role == "":
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Name + ": " + o.Role
}

const clusterIP = "cluster IP"

// Owners knows the owners of addresses and chains. The zero value and nil know no owner.
type Owners struct {
	objects  snapshot.Objects
	book     *attribution.Book    // of those who write rules; nil where none is known
	hosts    map[netip.Addr]Owner // pods, nodes and hosts
	services map[netip.Addr][]serviceAddress
	nodes    map[netip.Addr]bool
	// States are the machines' states, which tell what sets hold; nil where they are not at hand.
	States snapshot.Source

	once   sync.Once
	signed *signatures
}

// noOwners knows no object.
var noOwners Owners

// signatures returns those of the writers of rules.
func (o *Owners) signatures() *signatures {
	if o == nil {
		o = &noOwners
	}
	o.once.Do(func() { o.signed = sign(o) })
	return o.signed
}

type serviceAddress struct {
	owner   Owner
	service *snapshot.Service
}

// NewOwners takes the names from Kubernetes objects, and from a book of writers what rules are there for.
func NewOwners(objects snapshot.Objects, book *attribution.Book) *Owners {
	o := &Owners{objects: objects, book: book, hosts: map[netip.Addr]Owner{}, services: map[netip.Addr][]serviceAddress{}, nodes: map[netip.Addr]bool{}}
	for _, p := range objects.Pods {
		for _, a := range p.IPs {
			if !p.HostNetwork {
				o.hosts[a] = Owner{Kind: "pod", Name: p.Namespace + "/" + p.Name}
			}
		}
	}
	for _, n := range objects.Nodes {
		for _, a := range n.IPs {
			if _, pod := o.hosts[a]; !pod { // a virtual node has the address of its connector's pod
				o.hosts[a], o.nodes[a] = Owner{Kind: "node", Name: n.Name}, true
			}
		}
	}
	for i := range objects.Services {
		s := &o.objects.Services[i]
		name := s.Namespace + "/" + s.Name
		for _, a := range s.ClusterIPs {
			o.services[a] = append(o.services[a], serviceAddress{Owner{"service", name, clusterIP}, s})
		}
		for _, a := range s.External {
			o.services[a] = append(o.services[a], serviceAddress{Owner{"service", name, "load balancer IP"}, s})
		}
	}
	return o
}

// AddHost adds the addresses of a machine that Kubernetes does not know: a VM, an internet host. Names that are known stay.
func (o *Owners) AddHost(h *snapshot.Host) {
	if h.FIB == nil {
		return
	}
	kind, name, cut := strings.Cut(h.Name, "/")
	if !cut {
		name = kind
	}
	for _, a := range h.FIB.Addresses {
		ip := a.Prefix.Addr()
		if _, known := o.hosts[ip]; !known && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			o.hosts[ip] = Owner{Kind: kindName(kind), Name: name}
		}
	}
}

// AddAddress adds one address of an owner; what is known stays.
func (o *Owners) AddAddress(a netip.Addr, owner Owner) {
	if _, known := o.hosts[a]; !known {
		o.hosts[a] = owner
	}
}

// Address returns the owner of an address, or with a port the service that it belongs to. The second result is false where no owner is
// known.
func (o *Owners) Address(a netip.Addr, proto packet.Protocol, port uint16) (Owner, bool) {
	if o == nil {
		return Owner{}, false
	}
	var first *Owner
	for _, s := range o.services[a] {
		for _, p := range s.service.Ports {
			if p.Port == port && p.Protocol == proto {
				return s.owner, true
			}
		}
		if first == nil {
			first = &s.owner
		}
	}
	if first != nil {
		return *first, true
	}
	if o.nodes[a] && port != 0 {
		if s, ok := o.nodePort(proto, port); ok {
			return Owner{"service", s.Namespace + "/" + s.Name, fmt.Sprintf("node port %d of %s", port, o.hosts[a].Name)}, true
		}
	}
	owner, ok := o.hosts[a]
	return owner, ok
}

// addService adds to what is known of a rule which Service the packet is for, by its address or node port, and which traffic policy of the
// Service is for that.
func (o *Owners) addService(r *attribution.Rule) {
	if o == nil {
		return
	}
	protocol := func(p snapshot.ServicePort) bool { return strings.ToLower(p.Protocol.String()) == r.Protocol }
	add := func(s *snapshot.Service, traffic string, isPort func(snapshot.ServicePort) bool) {
		r.Known["owning"], r.Known["traffic"] = s.Namespace+"/"+s.Name, traffic
		if i := slices.IndexFunc(s.Ports, func(p snapshot.ServicePort) bool { return protocol(p) && isPort(p) }); i >= 0 {
			r.Known["serviceport"] = strings.TrimSuffix(s.Namespace+"/"+s.Name+":"+s.Ports[i].Name, ":")
		}
	}
	for _, a := range o.services[r.Destination] {
		traffic := "externalTrafficPolicy"
		if a.owner.Role == clusterIP {
			traffic = "internalTrafficPolicy"
		}
		if r.Known["serviceport"] == "" { // several Services may share an address
			add(a.service, traffic, func(p snapshot.ServicePort) bool { return p.Port == r.Port })
		}
	}
	if !o.nodes[r.Destination] || r.Port == 0 {
		return
	}
	isPort := func(p snapshot.ServicePort) bool { return p.NodePort == r.Port }
	for i := range o.objects.Services {
		s := &o.objects.Services[i]
		if slices.ContainsFunc(s.Ports, func(p snapshot.ServicePort) bool { return protocol(p) && isPort(p) }) {
			add(s, "externalTrafficPolicy", isPort)
		}
	}
}

func (o *Owners) nodePort(proto packet.Protocol, port uint16) (*snapshot.Service, bool) {
	for i := range o.objects.Services {
		for _, p := range o.objects.Services[i].Ports {
			if p.NodePort == port && p.Protocol == proto {
				return &o.objects.Services[i], true
			}
		}
	}
	return nil, false
}

// name returns the owner in words, "" for none.
func (o *Owners) name(a netip.Addr, proto packet.Protocol, port packet.Port) string {
	if owner, ok := o.Address(a, proto, port.Number); ok {
		return owner.String()
	}
	return ""
}

// kindName returns a kind of hosts for people: "container group" for container-group.
func kindName(kind string) string { return strings.ReplaceAll(kind, "-", " ") }

// hostName returns a host of a walk for people: "pod default/whereami-1", "node aks-nodepool1-0", "fabric", and "the node" for the node
// that a text shows without its name.
func hostName(host string) string {
	kind, rest, cut := strings.Cut(host, "/")
	if !cut {
		return cmp.Or(host, "?")
	}
	if host == nameless {
		return "the node"
	}
	return kindName(kind) + " " + rest
}

// nameless is the host of a text that does not name it.
const nameless = "node/node"
