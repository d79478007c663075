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
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// World is what ends are read against.
type World struct {
	Source snapshot.Source
	// Public are the hosts' public addresses, by the hosts' names; nil where they are not known.
	Public func() map[string]netip.Addr
	// Unread is why objects are not known; nil where they are, or where there are none to be known.
	Unread error
	// At is the host that a packet from elsewhere comes in at; "" where the user named none.
	At string
	// Far says that hosts are read one by one at a cost: who has an address is told by the objects alone.
	Far bool
	// LookUp asks the resolver of a host for a name; nil where there is none to ask. host is "" where the sender's is unknown.
	LookUp func(host, name string) (witness.Lookup, error)
}

// Resolution is what two ends mean.
type Resolution struct {
	walk.Request
	Notes []string // what was taken for granted
	Hosts []string // that the ends are, as far as they are at hand
	// Query is the DNS query by which the sender looks the destination up; nil where it asks no name server, or which one is unknown.
	Query *Query
}

// Query is a DNS query of the sender.
type Query struct {
	walk.Request
	Name       string // that it asks for
	Resolved   bool   // the name has addresses
	Unanswered string // why some or all of the addresses are unknown; "" where all questions were answered
}

// defaultPort is taken where an end names none and there is no service to ask.
const defaultPort = 80

// Read makes the packet that from sends to to. proto is 0 where the user named none. What is wrong with an end is the user's to mend. With
// an error, the resolution has the query for a name that was not resolved.
func Read(w World, from, to End, proto packet.Protocol) (Resolution, error) {
	r := &reader{World: w, written: from, places: w.places()}
	err := r.read(to, proto)
	return r.Resolution, err
}

func (w World) places() places {
	return places{src: w.Source, objects: w.Source.Objects(), names: w.Source.Names(), far: w.Far, lookUp: w.LookUp}
}

// reader is a reading as it is made.
type reader struct {
	World
	places
	Resolution
	written End // the sender as the user names it
	from    End // what that stands for
}

func (r *reader) read(to End, proto packet.Protocol) error {
	if r.At != "" {
		full, err := r.complete(r.At)
		if err != nil {
			return err
		}
		r.At = full
	}
	to, err := r.resolveBoth(to)
	r.query()
	if err != nil {
		return err
	}
	if to.Kind == Service && proto == 0 {
		proto = r.onlyProtocol(to)
	}
	p := &r.Packet
	p.Protocol = cmp.Or(proto, packet.TCP)
	if p.Destination, err = r.target(to); err != nil {
		return fmt.Errorf("--to %s: %w", to, err)
	}
	if err := r.sender(); err != nil {
		return fmt.Errorf("--from %s: %w", r.written, err)
	}
	if p.Source.IsValid() && p.Source.Is4() != p.Destination.Is4() {
		return fmt.Errorf("--from %s and --to %s are of different address families", r.written, to)
	}
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
	return nil
}

// resolveBoth sets the sender, and returns the receiver that an end stands for.
func (r *reader) resolveBoth(to End) (End, error) {
	var err error
	if r.from, err = r.senderOf(r.written); err != nil {
		return End{}, fmt.Errorf("--from %s: %w", r.written, r.explain(err, "pods", "write its address"))
	}
	if r.from != r.written {
		r.note("%s stands for %s", r.written, r.from)
	}
	receiver, how, err := r.resolve(to, r.from)
	if err != nil {
		return End{}, fmt.Errorf("--to %s: %w", to, r.explain(err, "pods", "write its address"))
	}
	if receiver != to {
		r.note("%s stands for %s%s", to, receiver, how)
	}
	return receiver, nil
}

// query sets the query for a name that a name server was asked for, where the sender is at hand.
func (r *reader) query() {
	host, found := r.asked.host, &r.asked.Lookup
	server, err := netip.ParseAddr(found.Server)
	if err != nil || !slices.Contains(r.names, host) || r.At != "" && r.At != host {
		return
	}
	q := Query{Request: walk.Request{Host: host}, Name: found.Name, Resolved: len(found.Addresses) > 0, Unanswered: found.Unanswered}
	q.Packet.Protocol, q.Packet.Destination, q.Packet.DestinationPort = packet.UDP, server, packet.Exactly(53)
	if found.OverTCP {
		q.Packet.Protocol, q.Packet.TCPFlags = packet.TCP, packet.SYN
	}
	if a := r.from.Address; r.from.Kind == Address && a.Is4() == server.Is4() {
		q.Packet.Source = a
	}
	r.Query = &q
}

func (r *reader) note(format string, values ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, values...))
}

// target finds the address that is sent to, and sets the destination port.
func (r *reader) target(to End) (netip.Addr, error) {
	p := &r.Packet
	if to.Kind == Service {
		return r.service(to)
	}
	port := to.Port
	if port == 0 && p.Protocol.HasPorts() {
		port = defaultPort
		r.note("assumed: port %d, because --to names none (write %s)", port, to.withPort())
	}
	if to.Port != 0 && !p.Protocol.HasPorts() {
		return netip.Addr{}, fmt.Errorf("%s has no ports; leave out :%d", p.Protocol, to.Port)
	}
	p.DestinationPort = packet.Exactly(port)
	if to.Kind == Address {
		if host := r.machine(to.Address); host != "" {
			r.Hosts = append(r.Hosts, host)
		}
		return to.Address, nil
	}
	host, addresses, err := r.place(to)
	if err != nil {
		return netip.Addr{}, err
	}
	r.Hosts = append(r.Hosts, host)
	if to.Kind == VM && r.Public != nil && (r.from.Kind == Internet || r.isStranger()) {
		public := r.Public()
		if a, ok := public[to.Name]; ok {
			return a, nil
		}
		if public == nil {
			return netip.Addr{}, errors.New("its public address is unknown, because the lab's process does not answer; 'packetwalk status' says more")
		}
		if r.from.Kind == Internet {
			return netip.Addr{}, errors.New("it has no public address, and private ones are not reached from the internet")
		}
	}
	if len(addresses) == 0 {
		addresses = r.addresses(host)
	}
	if len(addresses) == 0 && r.from.Kind == Address && r.hidesAddresses(host) {
		return packet.UnknownAddress(r.from.Address.Is6()), nil
	}
	return r.pick(addresses)
}

// hidesAddresses tells of a host whose state is at hand and does not show its addresses.
func (r *reader) hidesAddresses(host string) bool {
	h, err := r.src.Host(host)
	return err == nil && h.Missing[snapshot.Addresses]+h.Unread[snapshot.Addresses] != ""
}

// pick takes the address of the sender's family, as far as its own words tell that, and IPv4 first where they do not.
func (r *reader) pick(all []netip.Addr) (netip.Addr, error) {
	return pick(all, r.from.Address.Is6(), r.from.Kind == Address)
}

// place returns the host of an end that names one, and its addresses where the objects have them. Packets of a sending pod whose own
// namespace is not at hand come in at its node.
func (r *reader) place(e End) (host string, addresses []netip.Addr, err error) {
	if e.Kind != Pod {
		return r.places.place(e)
	}
	host, node, addresses, err := r.pod(e)
	err = r.explain(err, "pods", "write its address")
	if e == r.from && r.At == "" && err == nil && !slices.Contains(r.names, host) && slices.Contains(r.names, node) {
		r.At = node
	}
	return host, addresses, err
}

// explain replaces errBlind.
func (r *reader) explain(err error, what, instead string) error {
	if errors.Is(err, errBlind) {
		return r.blind(what, instead)
	}
	return err
}

// blind says that nothing of a kind is known, why where there is a reason, and what can be written instead.
func (r *reader) blind(what, instead string) error {
	if r.Unread != nil {
		if r.Far || strings.Contains(r.Unread.Error(), "packetwalk status") { // it names the remedy already
			return fmt.Errorf("no %s are known: %w; or %s", what, r.Unread, instead)
		}
		return fmt.Errorf("no %s are known: %w; 'packetwalk status' says how the lab is; or %s", what, r.Unread, instead)
	}
	return fmt.Errorf("no %s are known here; %s", what, instead)
}

// Sender returns who sends where an end is the sender: of a service its first endpoint that is ready and a pod, as the objects list them;
// of a Deployment and the like one of its pods; of a DNS name the host that has it.
func Sender(objects snapshot.Objects, from End) (End, error) {
	w := &places{objects: objects, far: true}
	return w.senderOf(from)
}

func (w *places) senderOf(from End) (End, error) {
	from, _, err := w.resolve(from, End{})
	if err != nil || from.Kind != Service {
		return from, err
	}
	if from.PortName != "" {
		return End{}, errors.New("the port of a sender is a number; leave out :" + from.PortName)
	}
	s, err := w.findService(from)
	if err != nil {
		return End{}, fmt.Errorf("%w; write what sends, pod/NAME", err)
	}
	for _, port := range s.Ports {
		for _, e := range port.Endpoints {
			has := func(p snapshot.Pod) bool { return slices.Contains(p.IPs, e.Addr()) }
			if i := slices.IndexFunc(w.objects.Pods, has); i >= 0 {
				return End{Kind: Pod, Namespace: w.objects.Pods[i].Namespace, Name: w.objects.Pods[i].Name, Port: from.Port}, nil
			}
		}
	}
	return End{}, errors.New("none of its pods is ready; write what sends, pod/NAME")
}

// sender finds the host that sends, or where the packet of one that is not at hand comes in.
func (r *reader) sender() error {
	p, from := &r.Packet, r.from
	if from.Port != 0 {
		if !p.Protocol.HasPorts() {
			return fmt.Errorf("%s has no ports; leave out :%d", p.Protocol, from.Port)
		}
		p.SourcePort = packet.Exactly(from.Port)
	}
	var host string
	var addresses []netip.Addr
	var err error
	switch from.Kind {
	case Address:
		p.Source = from.Address
		if host = r.owner(from.Address); slices.Contains(r.names, host) {
			r.Hosts = append(r.Hosts, host)
		}
	default:
		if host, addresses, err = r.place(from); err != nil {
			return err
		}
	}
	if host != "" && slices.Contains(r.names, host) && (r.At == "" || r.At == host) {
		r.Host = host
		return nil
	}
	return r.arriving(host, addresses)
}

// isStranger reports whether the sender is a public address that no host here has.
func (r *reader) isStranger() bool {
	a := r.from.Address
	return r.from.Kind == Address && a.IsGlobalUnicast() && !a.IsPrivate() && r.owner(a) == ""
}

// arriving requests a packet of a host that is not at hand: it comes in where --at says.
func (r *reader) arriving(host string, addresses []netip.Addr) error {
	p := &r.Packet
	if !p.Source.IsValid() {
		if len(addresses) == 0 && host != "" {
			addresses = r.addresses(host)
		}
		var err error
		if p.Source, err = pick(addresses, p.Destination.Is6(), true); err != nil {
			return err
		}
	}
	at := r.At
	if at == "" && len(r.names) == 1 {
		at = r.names[0]
	}
	if at == "" && r.isStranger() && slices.Contains(r.names, snapshot.LabInternet) {
		at = snapshot.LabInternet
		r.note("assumed: packets of %s come in at the lab's internet, where no host has that address: replies end there", p.Source)
	}
	if at == "" {
		return fmt.Errorf("no host here has it; say with --at where its packets come in: %s", snapshot.List(r.names))
	}
	r.Host, r.Forwarded = at, true
	p.TTL = 64
	if p.Protocol.HasPorts() && p.SourcePort == (packet.Port{}) {
		p.SourcePort = packet.OneOf(32768, 60999, 40000) // net.ipv4.ip_local_port_range as Linux sets it
	}
	return nil
}

// service finds the address and port of a service: the load balancer's for who comes from the internet, the cluster's for all others.
func (r *reader) service(to End) (netip.Addr, error) {
	s, err := r.findService(to)
	if err != nil {
		return netip.Addr{}, r.explain(err, "Kubernetes objects", "write the service's address and port")
	}
	p := &r.Packet
	if s.Type == "ExternalName" {
		return netip.Addr{}, errors.New("it is of type ExternalName, another name for a host elsewhere: it has no address; write that host's")
	}
	if !p.Protocol.HasPorts() {
		return netip.Addr{}, fmt.Errorf("services answer no %s; write --proto tcp or udp", p.Protocol)
	}
	port, err := servicePort(s, to, p.Protocol)
	if err != nil {
		return netip.Addr{}, err
	}
	if r.hasNoEndpoints(s, port, p.Protocol) {
		r.note("svc/%s/%s has no ready endpoint for port %d/%s", s.Namespace, s.Name, port, p.Protocol)
	}
	p.DestinationPort = packet.Exactly(port)
	// Who comes from the internet: a host of it, or a public address that no host here has.
	switch {
	case r.from.Kind == Internet && len(s.External) == 0:
		return netip.Addr{}, fmt.Errorf("it is of type %s and has no load balancer address, so the internet does not reach it",
			cmp.Or(s.Type, "ClusterIP"))
	case r.from.Kind == Internet, len(s.External) > 0 && r.isStranger():
		return r.pick(s.External)
	case len(s.ClusterIPs) == 0:
		return netip.Addr{}, errors.New("it has no cluster IP (a headless service): its name resolves to its pods; write pod/NAME")
	}
	return r.pick(s.ClusterIPs)
}

// pick takes the address of the wanted family; IPv4 first, and any, where the family is not certain.
func pick(all []netip.Addr, v6, certain bool) (netip.Addr, error) {
	for _, a := range all {
		if a.Is6() == v6 {
			return a, nil
		}
	}
	switch {
	case len(all) == 0:
		return netip.Addr{}, errors.New("its address is unknown")
	case certain:
		return netip.Addr{}, fmt.Errorf("it has no address of the sender's family; it has %s", join(all))
	}
	return all[0], nil
}
