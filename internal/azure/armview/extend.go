package armview

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/model/snapshot"
)

// AzureSource is a source whose nodes are wired to Azure's network.
type AzureSource struct {
	snapshot.Source
	fabric *fabric
	mu     sync.Mutex
	hosts  map[string]*snapshot.Host
	// assumed says of hosts whose interfaces only an address tells which one that is.
	assumed map[string]string
	once    sync.Once
}

// Extend wires the nodes of a source, and its other hosts that have an interface's address, to what was read of Azure. A source that
// has a host called "fabric" of its own, a lab's, is not extended: it goes on by that. The error is a [MismatchError]; where only a host's
// own state shows it, Host returns it.
func Extend(src snapshot.Source, r *Resources) (*AzureSource, error) {
	e := &AzureSource{Source: src, hosts: map[string]*snapshot.Host{}, assumed: map[string]string{}}
	if slices.Contains(src.Names(), Host) {
		return e, nil
	}
	e.fabric = compile(r, src.Objects())
	return e, e.fabric.checkNodes()
}

// Unmatched returns an error where no interface that was read is one of the snapshot's machines, so that no walk goes on.
func (e *AzureSource) Unmatched() error {
	if e.fabric == nil || slices.ContainsFunc(e.fabric.nics, func(n *nic) bool { return n.isNode() }) {
		return nil
	}
	nodes := e.fabric.objects.Nodes
	if len(nodes) > 0 {
		return fmt.Errorf("no network interface of the snapshot's nodes was read%s", e.fabric.remedy(machineID(nodes[0])+"/networkInterfaces/x"))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range e.Source.Names() {
		h, err := e.host(name)
		if _, other := errors.AsType[*MismatchError](err); other {
			return err
		}
		if h != nil && slices.ContainsFunc(h.Peers, func(p snapshot.Peer) bool { return p.Host == Host }) {
			return nil
		}
	}
	return fmt.Errorf("no network interface that was read has an address of %s; save what \"ip addr\" prints there, "+
		"and the interfaces of its cluster", snapshot.List(e.Source.Names()))
}

// Notes returns what was taken for granted, and what could not be read.
func (e *AzureSource) Notes() []string {
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
func (e *AzureSource) Names() []string {
	names := e.Source.Names()
	if e.fabric == nil {
		return names
	}
	names = append(slices.Clone(names), Host)
	slices.Sort(names)
	return names
}

// Host returns a host, with its wires to Azure.
func (e *AzureSource) Host(name string) (*snapshot.Host, error) {
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
func (e *AzureSource) host(name string) (*snapshot.Host, error) {
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
		isLost := func(p snapshot.Peer) bool { return p.Host == Host } // a lab's own, which the snapshot does not have
		wired.Peers = slices.DeleteFunc(slices.Clone(h.Peers), isLost)
		if err := e.wire(&wired); err != nil {
			return nil, err
		}
		e.wireUnread(&wired)
		h = &wired
	}
	e.hosts[name] = h
	return h, nil
}

// Assumed returns what was assumed about a host's interface when the host was read; "" for nothing.
func (e *AzureSource) Assumed(host string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.assumed[host]
}

// wire joins a host to its interfaces: those that have one of its addresses and the MAC address of one of its links. Held: mu.
func (e *AzureSource) wire(h *snapshot.Host) error {
	var other error
	var links []string
	found := map[string][]*nic{} // by the host's links
	for _, n := range e.fabric.nics {
		link := n.linkOf(h)
		if _, known := h.Peer(link); link == "" || known {
			continue
		}
		if err := n.checkMAC(h); err != nil {
			other = err
			continue
		}
		if found[link] == nil {
			links = append(links, link)
		}
		found[link] = append(found[link], n)
	}
	for _, link := range links {
		n, confirmed, err := e.fabric.oneOfSeveral(found[link], h)
		if err != nil {
			return err
		}
		if !confirmed {
			e.assumed[h.Name] = fmt.Sprintf("assuming interface %s belongs to the machine, because both have %s: no MAC address or providerID "+
				"confirms it", n.title, n.configs[0].address)
		}
		n.machine, n.outside = h.Name, link
		h.Peers = append(h.Peers, snapshot.Peer{Link: link, Host: Host, PeerLink: n.link})
	}
	if len(links) > 0 {
		return nil
	}
	return other
}

// linkOf returns the link of a host by which an interface's address leaves it, "" where the interface is not the host's.
func (n *nic) linkOf(h *snapshot.Host) string {
	if n.other || n.machine != "" && n.machine != h.Name {
		return ""
	}
	for _, c := range n.configs {
		if a := h.FIB.HasAddress(c.address); a != nil && a.Link != "lo" {
			return outer(h, a.Link)
		}
	}
	return ""
}

// wireUnread joins a node of which no interface was read to where that is said.
func (e *AzureSource) wireUnread(h *snapshot.Host) {
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

// outer returns the interface that leads out where an address is on a link: the link, or of a bridge's ports the one that is the machine's
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
// that was not read yet is assumed to be eth0, as on every machine in Azure. Held: mu.
func (e *AzureSource) wireFabric() {
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
			_, _ = e.host(name) // a host that cannot be read has no wire; the walk that comes to it returns the error
		}
	}
	for _, n := range e.fabric.nics {
		if n.machine != "" && slices.Contains(e.Source.Names(), n.machine) {
			e.fabric.host.Peers = append(e.fabric.host.Peers,
				snapshot.Peer{Link: n.link, Host: n.machine, PeerLink: cmp.Or(n.outside, "eth0")})
		}
	}
}
