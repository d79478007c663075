package walk

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// places are the nodes of a cluster by what its objects say: whose address it is, and on which node what has it runs.
type places struct {
	nodes    map[string]*snapshot.Node
	own      map[netip.Addr]string // a node's addresses
	pods     map[netip.Addr]*snapshot.Pod
	prefixes map[netip.Prefix]string // of a node's pods
	services map[netip.Addr]*snapshot.Service
}

func placesOf(objects *snapshot.Objects) *places {
	p := &places{
		nodes: map[string]*snapshot.Node{}, own: map[netip.Addr]string{}, pods: map[netip.Addr]*snapshot.Pod{},
		prefixes: map[netip.Prefix]string{}, services: map[netip.Addr]*snapshot.Service{},
	}
	for i := range objects.Pods {
		for _, a := range objects.Pods[i].IPs {
			p.pods[a] = &objects.Pods[i]
		}
	}
	for i := range objects.Nodes {
		n := &objects.Nodes[i]
		p.nodes["node/"+n.Name] = n
		for _, a := range n.IPs {
			if pod := p.pods[a]; pod == nil || pod.HostNetwork || pod.Node == n.Name { // a virtual node has its connector's address
				p.own[a] = "node/" + n.Name
			}
		}
		for _, c := range n.PodCIDRs {
			p.prefixes[c.Masked()] = "node/" + n.Name
		}
	}
	for i := range objects.Services {
		one := &objects.Services[i]
		for _, a := range slices.Concat(one.ClusterIPs, one.External) {
			p.services[a] = one
		}
	}
	return p
}

// node returns the node to which what is for an address has to come, "" where the objects do not tell; own says that it is the node's
// address.
func (p *places) node(a netip.Addr) (name string, own bool) {
	if name = p.own[a]; name != "" {
		return name, true
	}
	if pod := p.pods[a]; pod != nil && p.nodes["node/"+pod.Node] != nil {
		return "node/" + pod.Node, false
	}
	for bits := a.BitLen(); bits > 0; bits-- {
		prefix, err := a.Prefix(bits)
		if err == nil && p.prefixes[prefix] != "" {
			return p.prefixes[prefix], false
		}
	}
	return "", false
}

// onward takes a packet from a node to the node that it must reach, where the network between the two is not captured. That is the node of
// the next hop, or else the node of the destination. ok is false where the objects show no such node, or its state is unknown.
func (t transit) onward(l *fib.Link) (p passage, ok bool) {
	known := t.run.places()
	if known.nodes[t.m.Name] == nil {
		return p, false
	}
	if end := t.podHere(known, l); end != nil {
		return t.over(end), true
	}
	at := t.p.Destination // by which the node is found
	if t.route != nil {
		at = t.route.NextHop(at)
	}
	name, own := known.node(at)
	if !own {
		at = t.p.Destination
		name, own = known.node(at)
	}
	if name == "" || name == t.m.Name {
		return p, false
	}
	far, err := t.run.enter(name, t.p)
	if end := t.unread(err); end != nil {
		return t.over(end), true
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, false
	case err != nil:
		return passage{err: err}, true
	}
	in := far.m.entrance(known.nodes[name], t.p.IsIPv6())
	if in == "" || own && far.m.FIB.HasAddress(at) == nil { // an external address is the network's to translate
		return p, false
	}
	t.m.assume(fmt.Sprintf("the network behind %s is unknown; assuming the packet reaches %s, which %s is for, unchanged, and comes in there by %s",
		l.Name, name, t.p.Destination, in))
	t.assumeAccepted(known.nodes[t.m.Name], l)
	far.p.Local, far.p.Frame, far.p.SomeTTL = packet.Local{In: in}, packet.Frame{}, true
	if far.p.Sum == packet.SumLater {
		far.p.Sum = packet.SumUnknown
	}
	far.inReplyTo, far.steps, far.before = t.inReplyTo, t.steps, t.before
	return far.to(transit.receiveFromOutside), true
}

// assumeAccepted assumes that the network takes what leaves a node by a link from an address that is not the node's. A cloud's network
// checks that.
func (t *transit) assumeAccepted(n *snapshot.Node, l *fib.Link) {
	source := t.p.Source
	if own := t.m.FIB.HasAddress(source); !source.IsValid() || slices.Contains(n.IPs, source) ||
		own != nil && (own.Link == l.Name || own.Link == l.Master) {
		return
	}
	t.m.assume(fmt.Sprintf("assuming the network accepts it from %s, which is not an address of %s: "+
		"Azure drops it if the NIC neither has that address nor IP forwarding (enableIPForwarding)", source, t.m.Name))
}

// podHere ends the way of a packet that is for a pod of this very node and would leave as what is for other nodes does: how the pod gets
// it is not known.
func (t *transit) podHere(known *places, l *fib.Link) *End {
	pod := known.pods[t.p.Destination]
	if pod == nil || pod.HostNetwork || "node/"+pod.Node != t.m.Name {
		return nil
	}
	byDefault := t.route != nil && t.route.Route != nil && t.route.Route.Destination.Bits() == 0
	if !byDefault && l.Name != t.m.entrance(known.nodes[t.m.Name], t.p.IsIPv6()) {
		return nil
	}
	return t.end(Undecided, fmt.Sprintf("pod %s/%s is on this node, but its route leads out of it by %s, and whether the packet comes back is not known",
		pod.Namespace, pod.Name, l.Name))
}

// entrance returns the interface by which what comes from other nodes comes in: the one that has the node's address, or a port of the
// bridge that has it. It is "" where there is none such.
func (m *machine) entrance(n *snapshot.Node, ipv6 bool) string {
	for _, a := range n.IPs {
		own := m.FIB.HasAddress(a)
		if a.Is6() != ipv6 || own == nil {
			continue
		}
		if b, ok := m.bridge(own.Link); ok {
			return b.uplink()
		}
		if l := m.FIB.Link(own.Link); l != nil && m.entersBy(l) {
			return l.Name
		}
	}
	return ""
}

// entersBy tells of a link by which packets can come from other machines: one that leads out, or that is made of such.
func (m *machine) entersBy(l *fib.Link) bool {
	return m.leadsOut(l) || l.HasCarrier() && (l.Kind == "bond" || l.Kind == "team" || l.Kind == "vlan")
}

// uplink returns the port of a bridge that leads to other nodes: a card, or else one with the bridge's own address, as the CNI plugin of
// type azure gives it, or the only one that leads out.
func (b bridge) uplink() string {
	var out []*fib.Link
	for _, p := range b.ports() {
		if b.m.entersBy(p) {
			out = append(out, p)
		}
	}
	card := slices.IndexFunc(out, func(p *fib.Link) bool { return p.Kind != "veth" })
	if card < 0 {
		card = slices.IndexFunc(out, func(p *fib.Link) bool { return p.MAC == b.MAC })
	}
	switch {
	case card >= 0:
		return out[card].Name
	case len(out) == 1:
		return out[0].Name
	}
	return ""
}

// places returns the cluster's, which are looked for once.
func (w *walker) places() *places {
	if w.known == nil {
		objects := w.src.Objects()
		w.known = placesOf(&objects)
	}
	return w.known
}
