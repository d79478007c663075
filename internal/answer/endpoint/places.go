package endpoint

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
)

// places are the hosts and objects that ends name.
type places struct {
	src     snapshot.Source
	objects snapshot.Objects
	names   []string                                        // of hosts
	far     bool                                            // hosts are not searched: World.Far
	lookUp  func(host, name string) (witness.Lookup, error) // World.LookUp
	asked   lookup                                          // the last
}

// lookup is a question to a host's resolver, and what it found.
type lookup struct {
	host string
	witness.Lookup
}

// errBlind says that nothing of the kind is known.
var errBlind = errors.New("none are known")

// place returns the host of an end that names one, other than a pod, and its addresses where the objects have them.
func (w *places) place(e End) (host string, addresses []netip.Addr, err error) {
	switch {
	case e.Kind == Node:
		if n := w.findNode(e.Name); n != nil {
			return w.node(n.Name), n.IPs, nil
		}
	case e.Kind == Internet && e.Name == "":
		if i := slices.IndexFunc(w.names, func(n string) bool { return strings.HasPrefix(n, "internet/") }); i >= 0 {
			return w.names[i], nil, nil
		}
		return "", nil, errors.New("no host of the internet is known here; write its address")
	}
	host = string(e.Kind) + "/" + e.Name
	if slices.Contains(w.names, host) {
		return host, nil, nil
	}
	return "", nil, fmt.Errorf("there is none; there are: %s", snapshot.List(w.of(string(e.Kind)+"/")))
}

// of lists the hosts of a kind.
func (w *places) of(kind string) []string {
	return slices.DeleteFunc(slices.Clone(w.names), func(n string) bool { return !strings.HasPrefix(n, kind) })
}

// pod returns the host that a pod is, that of its node, and the pod's addresses.
func (w *places) pod(e End) (host, node string, addresses []netip.Addr, err error) {
	namespace := cmp.Or(e.Namespace, "default")
	named := func(p snapshot.Pod) bool { return p.Namespace == namespace && p.Name == e.Name }
	if i := slices.IndexFunc(w.objects.Pods, named); i >= 0 {
		p := &w.objects.Pods[i]
		node = w.node(p.Node)
		if p.HostNetwork {
			return node, node, p.IPs, nil
		}
		host = w.podHost(namespace, p.Name)
		if !slices.Contains(w.names, host) {
			// Where names are redacted, a pod's and its group's do not fit together.
			host = cmp.Or(w.hostWith("container-group/", p.IPs), host)
		}
		return host, node, p.IPs, nil
	}
	if host = w.podHost(namespace, e.Name); slices.Contains(w.names, host) {
		return host, "", nil, nil
	}
	if slices.ContainsFunc(w.objects.Ended, named) {
		return "", "", nil, errors.New("the pod has ended, and its address may be another's by now")
	}
	there := w.of("pod/")
	for _, p := range w.objects.Pods {
		there = append(there, "pod/"+p.Namespace+"/"+p.Name)
	}
	if len(there) == 0 {
		return "", "", nil, errBlind
	}
	return "", "", nil, fmt.Errorf("there is no such pod; there are: %s", snapshot.List(there))
}

// podHost returns the host that a pod is: its namespace on its node, or the container group that it is on a virtual node.
func (w *places) podHost(namespace, name string) string {
	host, group := "pod/"+namespace+"/"+name, "container-group/"+namespace+"-"+name
	if !slices.Contains(w.names, host) && slices.Contains(w.names, group) {
		return group
	}
	return host
}

func (w *places) findNode(name string) *snapshot.Node {
	i := slices.IndexFunc(w.objects.Nodes, func(n snapshot.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &w.objects.Nodes[i]
}

// node returns the host that a Kubernetes node is: the one of its name, or else the one that has its address, as the host name of a machine
// need not be its node's name.
func (w *places) node(name string) string {
	host := "node/" + name
	if n := w.findNode(name); n != nil && !slices.Contains(w.names, host) {
		return cmp.Or(w.hostWith("node/", n.IPs), host)
	}
	return host
}

// hostWith returns the host of a kind that has one of the addresses, "" where none or several have.
func (w *places) hostWith(kind string, addresses []netip.Addr) string {
	if w.far {
		return ""
	}
	found := slices.DeleteFunc(w.of(kind), func(n string) bool {
		return !slices.ContainsFunc(w.addresses(n), func(a netip.Addr) bool { return slices.Contains(addresses, a) })
	})
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// addresses returns a host's own, from its state: those of the primary ones of its interfaces that are not local to the link or the host.
func (w *places) addresses(host string) []netip.Addr {
	h, err := w.src.Host(host)
	if err != nil || h.FIB == nil {
		return nil
	}
	var all []netip.Addr
	for _, a := range h.FIB.Addresses {
		ip := a.Prefix.Addr()
		if !a.Secondary && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && (a.Scope == "" || a.Scope == "global") {
			all = append(all, ip)
		}
	}
	return all
}

// complete completes a host's name: "aks-0" is "node/aks-0" where only one host is called so.
func (w *places) complete(name string) (string, error) {
	if slices.Contains(w.names, name) {
		return name, nil
	}
	found := slices.DeleteFunc(slices.Clone(w.names), func(n string) bool { return !strings.HasSuffix(n, "/"+name) })
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		if node := w.node(strings.TrimPrefix(name, "node/")); slices.Contains(w.names, node) {
			return node, nil
		}
		if host := w.hostOf(name); slices.Contains(w.names, host) {
			return host, nil
		}
		return "", fmt.Errorf("--at %s: no such host; there are: %s", name, snapshot.List(w.names))
	}
	return "", fmt.Errorf("--at %s: several hosts are called so: %s", name, snapshot.List(found))
}

// hostOf returns the host that an end without a port stands for, as --from takes it; "" for none. It looks up no DNS names.
func (w *places) hostOf(name string) string {
	e, err := Parse(name)
	if err != nil || e.Port != 0 || e.PortName != "" || e.Kind == DNSName || e.Kind == HostName {
		return ""
	}
	if e.Kind == Address {
		return w.owner(e.Address)
	}
	if e, err = w.senderOf(e); err != nil {
		return ""
	}
	if e.Kind != Pod {
		host, _, _ := w.place(e)
		return host
	}
	host, node, _, _ := w.pod(e)
	if !slices.Contains(w.names, host) { // the node stands for a pod whose namespace is not at hand
		return node
	}
	return host
}

// owner finds the host that has an address: a pod or node by the objects, any other by its own state.
func (w *places) owner(a netip.Addr) string {
	// Pods first: a virtual node has the address of its connector's pod.
	for _, p := range w.objects.Pods {
		if !p.HostNetwork && slices.Contains(p.IPs, a) {
			return w.podHost(p.Namespace, p.Name)
		}
	}
	for _, n := range w.objects.Nodes {
		if slices.Contains(n.IPs, a) {
			return w.node(n.Name)
		}
	}
	return w.find(a, "pod/")
}

// machine finds the host that has an address and that the objects do not name: a VM, an internet host. It reads hosts only for addresses
// that no object has, and nodes only where no Node is known.
func (w *places) machine(a netip.Addr) string {
	isPod := func(p snapshot.Pod) bool { return !p.HostNetwork && slices.Contains(p.IPs, a) }
	isNode := func(n snapshot.Node) bool { return slices.Contains(n.IPs, a) }
	isService := func(s snapshot.Service) bool {
		return slices.Contains(s.ClusterIPs, a) || slices.Contains(s.External, a)
	}
	switch {
	case slices.ContainsFunc(w.objects.Pods, isPod), slices.ContainsFunc(w.objects.Nodes, isNode),
		slices.ContainsFunc(w.objects.Services, isService):
		return ""
	case len(w.objects.Nodes) > 0:
		return w.find(a, "pod/", "node/")
	}
	return w.find(a, "pod/")
}

// find finds the host that has an address by reading the hosts, except those of some kinds.
func (w *places) find(a netip.Addr, except ...string) string {
	for _, n := range w.names {
		excepted := slices.ContainsFunc(except, func(kind string) bool { return strings.HasPrefix(n, kind) })
		if !w.far && !excepted && slices.Contains(w.addresses(n), a) {
			return n
		}
	}
	return ""
}

func (w *places) findService(e End) (*snapshot.Service, error) {
	namespace := cmp.Or(e.Namespace, "default")
	var names []string
	for i := range w.objects.Services {
		s := &w.objects.Services[i]
		if s.Namespace == namespace && s.Name == e.Name {
			return s, nil
		}
		names = append(names, "svc/"+s.Namespace+"/"+s.Name)
	}
	if len(names) == 0 {
		return nil, errBlind
	}
	return nil, fmt.Errorf("there is no such service; there are: %s", snapshot.List(names))
}

// hasNoEndpoints reports whether a port of a service has no endpoints. It returns false if the objects show no endpoint
// of any service.
func (w *places) hasNoEndpoints(s *snapshot.Service, port uint16, proto packet.Protocol) bool {
	known := slices.ContainsFunc(w.objects.Services, func(other snapshot.Service) bool {
		return slices.ContainsFunc(other.Ports, func(p snapshot.ServicePort) bool { return len(p.Endpoints) > 0 })
	})
	return known && slices.ContainsFunc(s.Ports, func(p snapshot.ServicePort) bool {
		return p.Port == port && p.Protocol == proto && len(p.Endpoints) == 0
	})
}

// onlyProtocol returns the protocol of the service's port that is meant, 0 where that leaves a choice.
func (w *places) onlyProtocol(e End) packet.Protocol {
	s, err := w.findService(e)
	if err != nil {
		return 0
	}
	var proto packet.Protocol
	for _, p := range s.Ports {
		if e.Port != 0 && p.Port != e.Port || e.PortName != "" && p.Name != e.PortName {
			continue
		}
		if p.Protocol == packet.TCP {
			return packet.TCP
		}
		proto = p.Protocol
	}
	return proto
}

// servicePort returns the port of a service that an end means.
func servicePort(s *snapshot.Service, e End, proto packet.Protocol) (uint16, error) {
	fit := slices.DeleteFunc(slices.Clone(s.Ports), func(p snapshot.ServicePort) bool {
		return p.Protocol != proto || e.PortName != "" && p.Name != e.PortName || e.Port != 0 && p.Port != e.Port
	})
	switch {
	case e.Port != 0 && len(fit) == 0:
		return 0, fmt.Errorf("it has no port %d/%s; it has %s; to send to that port, write the service's address", e.Port, proto, ports(s))
	case len(fit) == 1:
		return fit[0].Port, nil
	case e.PortName != "":
		return 0, fmt.Errorf("it has no %s port named %s; it has %s", proto, e.PortName, ports(s))
	case len(fit) == 0:
		return 0, fmt.Errorf("it has no %s port; it has %s", proto, ports(s))
	}
	return 0, fmt.Errorf("it has several ports (%s); write svc/%s/%s:PORT", ports(s), s.Namespace, s.Name)
}

// ports returns a service's, in words: "80/tcp, dns 53/udp".
func ports(s *snapshot.Service) string {
	words := make([]string, len(s.Ports))
	for i, p := range s.Ports {
		words[i] = strings.TrimPrefix(fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol), " ")
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

func join[T fmt.Stringer](all []T) string {
	words := make([]string, len(all))
	for i, a := range all {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}
