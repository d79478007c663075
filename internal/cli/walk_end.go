package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// resolver turns the ends of a walk into the packet to walk. What is wrong with an end is the user's to mend.
type resolver struct {
	src     snapshot.Source
	objects snapshot.Objects
	names   []string
	// public are the hosts' public addresses, by the hosts' names; nil where they are not known.
	public func() map[string]netip.Addr
	// unread is why objects are not known; nil where they are, or where there are none to be known.
	unread error
	// at is the host that a packet from elsewhere comes in at; "" where the user named none.
	at    string
	notes []string // what was taken for granted
	ends  []string // the hosts that the ends are, as far as they are at hand
}

// defaultPort is taken where an end names none and there is no service to ask.
const defaultPort = 80

// request makes the packet that --from sends to --to. proto is 0 where the user named none.
func (r *resolver) request(from, to packet.End, proto packet.Protocol) (walk.Request, error) {
	if to.Kind == packet.ServiceEnd && proto == 0 {
		proto = r.onlyProtocol(to)
	}
	proto = cmp.Or(proto, packet.TCP)
	if r.at != "" {
		full, err := r.host(r.at)
		if err != nil {
			return walk.Request{}, err
		}
		r.at = full
	}
	req := walk.Request{Packet: packet.Packet{Tuple: packet.Tuple{Protocol: proto}}}
	v6, certain := r.family(from)
	target, err := r.target(from, to, &req.Packet, v6, certain)
	if err != nil {
		return req, fmt.Errorf("--to %s: %w", to, err)
	}
	req.Packet.Destination = target
	if err := r.sender(from, &req); err != nil {
		return req, fmt.Errorf("--from %s: %w", from, err)
	}
	if s := req.Packet.Source; s.IsValid() && s.Is4() != target.Is4() {
		return req, fmt.Errorf("--from %s and --to %s are of different address families", from, to)
	}
	finish(&req.Packet)
	return req, nil
}

// finish fills in what depends on the protocol.
func finish(p *packet.Packet) {
	switch p.Protocol {
	case packet.TCP:
		p.TCPFlags = packet.SYN
	case packet.ICMP, packet.ICMPv6:
		p.DestinationPort = packet.Port{}
		p.Protocol, p.Type = packet.ICMP, 8
		if p.IsIPv6() {
			p.Protocol, p.Type = packet.ICMPv6, 128
		}
	}
}

// family tells whether an end speaks IPv6, as far as its own words say.
func (r *resolver) family(e packet.End) (v6, certain bool) {
	return e.Address.Is6(), e.Kind == packet.AddressEnd
}

// pick takes the address of the wanted family, IPv4 first where none is wanted.
func pick(all []netip.Addr, v6, certain bool) (netip.Addr, error) {
	for _, a := range all {
		if a.Is6() == v6 {
			return a, nil
		}
	}
	if len(all) > 0 && !certain {
		return all[0], nil
	}
	if len(all) > 0 {
		return netip.Addr{}, fmt.Errorf("it has no address of the sender's family; it has %s", join(all))
	}
	return netip.Addr{}, errors.New("its address is not known")
}

func join[T fmt.Stringer](all []T) string {
	words := make([]string, len(all))
	for i, a := range all {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}

// target finds the address that is sent to, and sets the destination port.
func (r *resolver) target(from, to packet.End, p *packet.Packet, v6, certain bool) (netip.Addr, error) {
	if to.Kind == packet.ServiceEnd {
		return r.service(from, to, p, v6, certain)
	}
	port := to.Port
	if port == 0 && p.Protocol.HasPorts() {
		port = defaultPort
		r.notes = append(r.notes, fmt.Sprintf("assumed: port %d, because --to names none (write %s)", port, withPort(to)))
	}
	if to.Port != 0 && !p.Protocol.HasPorts() {
		return netip.Addr{}, fmt.Errorf("%s has no ports; leave out :%d", p.Protocol, to.Port)
	}
	p.DestinationPort = packet.Exactly(port)
	if to.Kind == packet.AddressEnd {
		return to.Address, nil
	}
	host, addresses, err := r.place(to)
	if err != nil {
		return netip.Addr{}, err
	}
	r.ends = append(r.ends, host)
	if from.Kind == packet.InternetEnd && to.Kind == packet.VMEnd && r.public != nil {
		if a, ok := r.public()[to.Name]; ok {
			return a, nil
		}
		return netip.Addr{}, errors.New("it has no public address, and private ones are not reached from the internet")
	}
	if len(addresses) == 0 {
		addresses = r.addresses(host)
	}
	return pick(addresses, v6, certain)
}

// withPort is how an end is written with a port.
func withPort(e packet.End) string {
	if e.Kind == packet.AddressEnd && e.Address.Is6() {
		return "[" + e.String() + "]:PORT"
	}
	return e.String() + ":PORT"
}

// place is the host of an end that names one, and its addresses where the objects have them.
func (r *resolver) place(e packet.End) (host string, addresses []netip.Addr, err error) {
	switch e.Kind {
	case packet.PodEnd:
		return r.pod(e)
	case packet.NodeEnd:
		for _, n := range r.objects.Nodes {
			if n.Name == e.Name {
				return r.node(n.Name), n.IPs, nil
			}
		}
	case packet.InternetEnd:
		if e.Name == "" {
			if i := slices.IndexFunc(r.names, func(n string) bool { return strings.HasPrefix(n, "internet/") }); i >= 0 {
				return r.names[i], nil, nil
			}
			return "", nil, errors.New("no host of the internet is known here; write its address")
		}
	}
	host = string(e.Kind) + "/" + e.Name
	if slices.Contains(r.names, host) {
		return host, nil, nil
	}
	return "", nil, fmt.Errorf("there is none; there are: %s", r.known(string(e.Kind)+"/"))
}

// known lists the hosts of a kind, for errors.
func (r *resolver) known(kind string) string {
	var names []string
	for _, n := range r.names {
		if strings.HasPrefix(n, kind) {
			names = append(names, n)
		}
	}
	if kind == "pod/" {
		for _, p := range r.objects.Pods {
			if n := "pod/" + p.Namespace + "/" + p.Name; !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return list(names)
}

// list writes some names, and how many more there are.
func list(names []string) string {
	const most = 12
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

func (r *resolver) pod(e packet.End) (host string, addresses []netip.Addr, err error) {
	namespace := cmp.Or(e.Namespace, "default")
	for _, p := range r.objects.Pods {
		if p.Namespace != namespace || p.Name != e.Name {
			continue
		}
		if p.HostNetwork {
			return r.node(p.Node), p.IPs, nil
		}
		host = r.podHost(namespace, p.Name)
		if !slices.Contains(r.names, host) {
			// Where names are redacted, a pod's and its group's do not fit together.
			host = cmp.Or(r.hostWith("container-group/", p.IPs), host)
		}
		if node := r.node(p.Node); !slices.Contains(r.names, host) && r.at == "" && slices.Contains(r.names, node) {
			r.at = node // the pod's own namespace is not at hand: it comes in at its node
		}
		return host, p.IPs, nil
	}
	host = r.podHost(namespace, e.Name)
	if slices.Contains(r.names, host) {
		return host, nil, nil
	}
	for _, p := range r.objects.Ended {
		if p.Namespace == namespace && p.Name == e.Name {
			return "", nil, errors.New("the pod has ended, and its address may be another's by now")
		}
	}
	if len(r.objects.Pods) == 0 && r.known("pod/") == "none" {
		return "", nil, r.blind("pods", "write its address")
	}
	return "", nil, fmt.Errorf("there is no such pod; there are: %s", r.known("pod/"))
}

// podHost is the host that a pod is: its namespace on its node, or the container group that it is on a virtual node.
func (r *resolver) podHost(namespace, name string) string {
	host, group := "pod/"+namespace+"/"+name, "container-group/"+namespace+"-"+name
	if !slices.Contains(r.names, host) && slices.Contains(r.names, group) {
		return group
	}
	return host
}

// node is the host that a Kubernetes node is: the one of its name, or else the one that has its address, as the host name of a machine need
// not be its node's name.
func (r *resolver) node(name string) string {
	host := "node/" + name
	if slices.Contains(r.names, host) {
		return host
	}
	for _, n := range r.objects.Nodes {
		if n.Name == name {
			return cmp.Or(r.hostWith("node/", n.IPs), host)
		}
	}
	return host
}

// hostWith is the host of a kind that has one of the addresses, "" where none or several have.
func (r *resolver) hostWith(kind string, addresses []netip.Addr) string {
	found := ""
	for _, n := range r.names {
		if !strings.HasPrefix(n, kind) || !slices.ContainsFunc(r.addresses(n), func(a netip.Addr) bool { return slices.Contains(addresses, a) }) {
			continue
		}
		if found != "" {
			return ""
		}
		found = n
	}
	return found
}

// addresses are a host's own, from its state: those of the primary ones of its interfaces that are not local to the link or the host.
func (r *resolver) addresses(host string) []netip.Addr {
	h, err := r.src.Host(host)
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

// service finds the address and port of a service: the load balancer's for who comes from the internet, the cluster's for all others.
func (r *resolver) service(from, to packet.End, p *packet.Packet, v6, certain bool) (netip.Addr, error) {
	s, err := r.findService(to)
	if err != nil {
		return netip.Addr{}, err
	}
	if s.Type == "ExternalName" {
		return netip.Addr{}, errors.New("it is of type ExternalName, another name for a host elsewhere: it has no address; write that host's")
	}
	if !p.Protocol.HasPorts() {
		return netip.Addr{}, fmt.Errorf("services answer no %s; write --proto tcp or udp", p.Protocol)
	}
	port, err := servicePort(s, to.Port, p.Protocol)
	if err != nil {
		return netip.Addr{}, err
	}
	if !slices.ContainsFunc(s.Ports, func(of snapshot.ServicePort) bool { return of.Port == port && of.Protocol == p.Protocol }) {
		r.notes = append(r.notes, fmt.Sprintf("svc/%s/%s has no port %d/%s; it has %s", s.Namespace, s.Name, port, p.Protocol, ports(s)))
	}
	if r.deserted(s, port, p.Protocol) {
		r.notes = append(r.notes, fmt.Sprintf("svc/%s/%s has no ready endpoint for port %d/%s", s.Namespace, s.Name, port, p.Protocol))
	}
	p.DestinationPort = packet.Exactly(port)
	addresses := s.ClusterIPs
	switch {
	case r.stranger(from) && len(s.External) > 0:
		addresses = s.External
	case from.Kind == packet.InternetEnd:
		if addresses = s.External; len(addresses) == 0 {
			return netip.Addr{}, fmt.Errorf("it is of type %s and has no load balancer address, so the internet does not reach it",
				cmp.Or(s.Type, "ClusterIP"))
		}
	}
	if len(addresses) == 0 {
		return netip.Addr{}, errors.New("it has no cluster IP (a headless service): its name resolves to its pods; write pod/NAME")
	}
	return pick(addresses, v6, certain)
}

// deserted tells that nobody stands behind a port of a service. Where endpoints of no service are known, those of this one are not either.
func (r *resolver) deserted(s *snapshot.Service, port uint16, proto packet.Protocol) bool {
	known := slices.ContainsFunc(r.objects.Services, func(other snapshot.Service) bool {
		return slices.ContainsFunc(other.Ports, func(p snapshot.ServicePort) bool { return len(p.Endpoints) > 0 })
	})
	return known && slices.ContainsFunc(s.Ports, func(p snapshot.ServicePort) bool {
		return p.Port == port && p.Protocol == proto && len(p.Endpoints) == 0
	})
}

// stranger tells whether an end is a public address that no host here has: somebody on the internet.
func (r *resolver) stranger(e packet.End) bool {
	return e.Kind == packet.AddressEnd && e.Address.IsGlobalUnicast() && !e.Address.IsPrivate() && r.owner(e.Address) == ""
}

func (r *resolver) findService(e packet.End) (*snapshot.Service, error) {
	namespace := cmp.Or(e.Namespace, "default")
	var names []string
	for i := range r.objects.Services {
		s := &r.objects.Services[i]
		if s.Namespace == namespace && s.Name == e.Name {
			return s, nil
		}
		names = append(names, "svc/"+s.Namespace+"/"+s.Name)
	}
	if len(names) == 0 {
		return nil, r.blind("Kubernetes objects", "write the service's address and port")
	}
	return nil, fmt.Errorf("there is no such service; there are: %s", list(names))
}

// blind says that nothing of a kind is known, why where there is a reason, and what can be written instead.
func (r *resolver) blind(what, instead string) error {
	if r.unread != nil {
		return fmt.Errorf("no %s are known: %w; 'packetwalk status' says how the lab is; or %s", what, r.unread, instead)
	}
	return fmt.Errorf("no %s are known here; %s", what, instead)
}

// onlyProtocol is the protocol of the service's port that is meant, 0 where that leaves a choice.
func (r *resolver) onlyProtocol(e packet.End) packet.Protocol {
	s, err := r.findService(e)
	if err != nil {
		return 0
	}
	var proto packet.Protocol
	for _, p := range s.Ports {
		if e.Port != 0 && p.Port != e.Port {
			continue
		}
		if p.Protocol == packet.TCP {
			return packet.TCP
		}
		proto = p.Protocol
	}
	return proto
}

func servicePort(s *snapshot.Service, port uint16, proto packet.Protocol) (uint16, error) {
	if port != 0 {
		return port, nil
	}
	var fit []uint16
	for _, p := range s.Ports {
		if p.Protocol == proto {
			fit = append(fit, p.Port)
		}
	}
	switch len(fit) {
	case 0:
		return 0, fmt.Errorf("it has no %s port; it has %s", proto, ports(s))
	case 1:
		return fit[0], nil
	}
	return 0, fmt.Errorf("it has several ports (%s); write svc/%s/%s:PORT", ports(s), s.Namespace, s.Name)
}

// ports are a service's, in words: "80/tcp, 53/udp".
func ports(s *snapshot.Service) string {
	words := make([]string, len(s.Ports))
	for i, p := range s.Ports {
		words[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// sender finds the host that sends, or where the packet of one that is not at hand comes in.
func (r *resolver) sender(from packet.End, req *walk.Request) error {
	p := &req.Packet
	if from.Port != 0 {
		if !p.Protocol.HasPorts() {
			return fmt.Errorf("%s has no ports; leave out :%d", p.Protocol, from.Port)
		}
		p.SourcePort = packet.Exactly(from.Port)
	}
	var host string
	var addresses []netip.Addr
	switch from.Kind {
	case packet.ServiceEnd:
		return errors.New("a service sends nothing; write one of its pods, pod/NAME")
	case packet.AddressEnd:
		p.Source = from.Address
		host = r.owner(from.Address)
	default:
		var err error
		if host, addresses, err = r.place(from); err != nil {
			return err
		}
	}
	if host != "" && slices.Contains(r.names, host) && (r.at == "" || r.at == host) {
		req.Host = host
		return nil
	}
	return r.arriving(req, host, addresses)
}

// arriving is a packet of a host that is not at hand: it comes in where --at says.
func (r *resolver) arriving(req *walk.Request, host string, addresses []netip.Addr) error {
	p := &req.Packet
	if !p.Source.IsValid() {
		if len(addresses) == 0 && host != "" {
			addresses = r.addresses(host)
		}
		var err error
		if p.Source, err = pick(addresses, p.Destination.Is6(), true); err != nil {
			return err
		}
	}
	at := r.at
	if at == "" && len(r.names) == 1 {
		at = r.names[0]
	}
	if at == "" {
		return fmt.Errorf("no host here has it; say with --at where its packets come in: %s", list(slices.Clone(r.names)))
	}
	req.Host, req.Forwarded = at, true
	p.TTL = 64
	if p.Protocol.HasPorts() && p.SourcePort == (packet.Port{}) {
		p.SourcePort = packet.OneOf(32768, 60999, 40000) // net.ipv4.ip_local_port_range as Linux sets it
	}
	return nil
}

// host completes a host's name: "aks-0" is "node/aks-0" where only one host is called so.
func (r *resolver) host(name string) (string, error) {
	if slices.Contains(r.names, name) {
		return name, nil
	}
	var found []string
	for _, n := range r.names {
		if strings.HasSuffix(n, "/"+name) {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		if node := r.node(strings.TrimPrefix(name, "node/")); slices.Contains(r.names, node) {
			return node, nil
		}
		return "", fmt.Errorf("--at %s: no such host; there are: %s", name, list(slices.Clone(r.names)))
	}
	return "", fmt.Errorf("--at %s: several hosts are called so: %s", name, list(found))
}

// owner finds the host that has an address: a pod or node by the objects, any other by its own state.
func (r *resolver) owner(a netip.Addr) string {
	// Pods first: a virtual node has the address of its connector's pod.
	for _, p := range r.objects.Pods {
		if !p.HostNetwork && slices.Contains(p.IPs, a) {
			return r.podHost(p.Namespace, p.Name)
		}
	}
	for _, n := range r.objects.Nodes {
		if slices.Contains(n.IPs, a) {
			return r.node(n.Name)
		}
	}
	for _, n := range r.names {
		if !strings.HasPrefix(n, "pod/") && slices.Contains(r.addresses(n), a) {
			return n
		}
	}
	return ""
}
