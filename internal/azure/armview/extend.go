package armview

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/model/snapshot"
)

// Extended is a source whose nodes are wired to Azure's network.
type Extended struct {
	snapshot.Source
	fabric *fabric
	mu     sync.Mutex
	hosts  map[string]*snapshot.Host
	once   sync.Once
}

// Extend wires the nodes of a source, and its other hosts that have an interface's address, to what was read of Azure. A source that
// has a host called "fabric" of its own, a lab's, is not extended: it goes on by that.
func Extend(src snapshot.Source, r *Resources) *Extended {
	e := &Extended{Source: src, hosts: map[string]*snapshot.Host{}}
	if !slices.Contains(src.Names(), Host) {
		e.fabric = compile(r, src.Objects())
	}
	return e
}

// Notes are what was taken for granted, and what could not be read.
func (e *Extended) Notes() []string {
	if e.fabric == nil {
		return []string{"the snapshot has a network of its own beyond its nodes: Azure's resources are not used"}
	}
	notes := slices.Clone(e.fabric.notes)
	for _, u := range e.fabric.Unread {
		notes = append(notes, "Azure: not read: "+u)
	}
	slices.Sort(notes)
	return slices.Compact(notes)
}

// Names lists the hosts, Azure's network among them.
func (e *Extended) Names() []string {
	names := e.Source.Names()
	if e.fabric == nil {
		return names
	}
	names = append(slices.Clone(names), Host)
	slices.Sort(names)
	return names
}

// Host returns a host, with its wires to Azure.
func (e *Extended) Host(name string) (*snapshot.Host, error) {
	if e.fabric == nil {
		return e.Source.Host(name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == Host {
		e.once.Do(e.wireFabric)
		return e.fabric.host, nil
	}
	return e.host(name)
}

// host reads a host and wires it. Held: mu.
func (e *Extended) host(name string) (*snapshot.Host, error) {
	if h := e.hosts[name]; h != nil {
		return h, nil
	}
	h, err := e.Source.Host(name)
	if err != nil {
		return nil, err
	}
	kind, _, _ := strings.Cut(name, "/")
	if h.FIB != nil && (kind == "node" || kind == "vm") {
		wired := *h
		wired.Peers = slices.Clone(h.Peers)
		for _, n := range e.fabric.nics {
			e.wire(&wired, n)
		}
		e.wireUnread(&wired)
		h = &wired
	}
	e.hosts[name] = h
	return h, nil
}

// wire joins a host to an interface, if it has one of its addresses.
func (e *Extended) wire(h *snapshot.Host, n *nic) {
	if n.machine != "" && n.machine != h.Name {
		return
	}
	for _, c := range n.configs {
		a := h.FIB.HasAddress(c.address)
		if a == nil || a.Link == "lo" {
			continue
		}
		link := outer(h, a.Link)
		if _, there := h.Peer(link); there {
			return
		}
		n.machine, n.outside = h.Name, link
		h.Peers = append(h.Peers, snapshot.Peer{Link: link, Host: Host, PeerLink: n.link})
		return
	}
}

// wireUnread joins a node of which no interface was read to where that is said.
func (e *Extended) wireUnread(h *snapshot.Host) {
	link := e.fabric.unreadLinks[h.Name]
	if link == "" {
		return
	}
	for _, node := range e.fabric.objects.Nodes {
		for _, ip := range node.IPs {
			a := h.FIB.HasAddress(ip)
			if "node/"+node.Name != h.Name || a == nil {
				continue
			}
			at := outer(h, a.Link)
			if _, there := h.Peer(at); !there {
				h.Peers = append(h.Peers, snapshot.Peer{Link: at, Host: Host, PeerLink: link})
			}
		}
	}
}

// outer is the interface that leads out where an address is on a link: the link, or of a bridge's ports the one that is the machine's
// own.
func outer(h *snapshot.Host, link string) string {
	l := h.FIB.Link(link)
	if l == nil || l.Kind != "bridge" {
		return link
	}
	for _, port := range h.FIB.Links {
		if port.Master == link && (port.Kind == "" || port.Name == "eth0") {
			return port.Name
		}
	}
	return link
}

// wireFabric joins the fabric to the machines: nodes by what the Kubernetes objects say, others by their addresses. The link of one
// that was not read yet is taken to be eth0, as on every machine in Azure. Held: mu.
func (e *Extended) wireFabric() {
	known := map[string]bool{}
	for _, n := range e.fabric.nics {
		known[n.machine] = true
	}
	for _, node := range e.fabric.objects.Nodes {
		known["node/"+node.Name] = true
	}
	for _, name := range e.Source.Names() {
		kind, _, _ := strings.Cut(name, "/")
		if (kind == "node" || kind == "vm") && !known[name] {
			_, _ = e.host(name) // a host that cannot be read has no wire; whoever comes to it is told why
		}
	}
	for _, n := range e.fabric.nics {
		if n.machine != "" && slices.Contains(e.Source.Names(), n.machine) {
			e.fabric.host.Peers = append(e.fabric.host.Peers,
				snapshot.Peer{Link: n.link, Host: n.machine, PeerLink: cmp.Or(n.outside, "eth0")})
		}
	}
}
