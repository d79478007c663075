package capture

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iproute"
)

// Lazy is a Source that reads a host when it is asked for, once. It is safe for concurrent use.
type Lazy struct {
	origin Origin
	names  []string
	netns  map[NetNS]string
	hosts  map[string]*slot // not changed after NewSource

	held atomic.Int64 // bytes of text of the hosts that were read

	fetchParts func(name string, parts ...snapshot.Part) (*Raw, error)

	once    sync.Once
	known   snapshot.Objects
	problem error
}

// maxHeld bounds what is in memory of all hosts that were read: 80 nodes with 10,000 services.
const maxHeld = 4 << 30

// slot is one host, read or not.
type slot struct {
	once sync.Once
	host *snapshot.Host
	err  error

	outlined   sync.Once
	outline    *snapshot.Host
	outlineErr error
}

// NetNS is a network namespace. Each kernel numbers its own.
type NetNS struct {
	Machine string // as [Raw.Machine]: in a cluster the node's name, "" where all hosts are of one machine
	Inode   uint64 // 0 where not known
}

// Origin is where states come from as raw texts: a lab, this machine, a capture.
type Origin struct {
	// Hosts are the names of the hosts there are, with their namespaces as far as they are known before they are fetched.
	Hosts map[string]NetNS
	// Fetch gives a host's texts. It may be called for several hosts at the same time, and again for the same.
	Fetch func(name string) (*Raw, error)
	// Lists gives the Kubernetes objects by the File of [ObjectLists]; nil for none. It is called once, when they are asked for.
	Lists func() (map[string][]byte, error)
	// Tools gives the versions of the tools, by their names; nil where they are not known.
	Tools func() map[string]string
}

// NewSource makes a Source of an origin.
func NewSource(o Origin) *Lazy {
	s := &Lazy{origin: o, netns: map[NetNS]string{}, hosts: map[string]*slot{}, names: slices.Sorted(maps.Keys(o.Hosts))}
	for name, ns := range o.Hosts {
		s.hosts[name] = &slot{}
		if ns.Inode != 0 {
			s.netns[ns] = name
		}
	}
	return s
}

// ReadPartsBy has Outline read parts of a host's state by a function, where that takes less time than the origin's Fetch. It is called before
// the source is used.
func (s *Lazy) ReadPartsBy(fetch func(name string, parts ...snapshot.Part) (*Raw, error)) {
	s.fetchParts = fetch
}

// Names lists the hosts there are, sorted.
func (s *Lazy) Names() []string { return slices.Clone(s.names) }

// Host returns the state of a host, which it reads the first time. An error that is fs.ErrNotExist means that there is none.
func (s *Lazy) Host(name string) (*snapshot.Host, error) {
	at := s.hosts[name]
	if at == nil {
		return nil, snapshot.NotFound(name, s.names)
	}
	at.once.Do(func() {
		raw, err := s.origin.Fetch(name)
		if err != nil {
			at.err = err
			return
		}
		for _, out := range raw.Outputs {
			s.held.Add(int64(len(out.Data)))
		}
		if s.held.Load() > maxHeld {
			at.err = fmt.Errorf("host %q: with it there are more than %d GiB of text, which is the most that is read", name, maxHeld>>30)
			return
		}
		l := NewLoader(raw.Name)
		l.names, l.at = func(inode uint64) string { return s.netns[NetNS{s.origin.Hosts[name].Machine, inode}] }, s.linkAt
		at.host = l.Load(raw)
		at.host.Sandbox = s.sandboxOf(at.host)
	})
	return at.host, at.err
}

// outlineParts are what Outline reads.
var outlineParts = []snapshot.Part{snapshot.Links, snapshot.Addresses, snapshot.Wires}

// Outline returns a host's links, addresses and wires without the rest of its state, which takes far less time to read.
func (s *Lazy) Outline(name string) (*snapshot.Host, error) {
	at := s.hosts[name]
	if at == nil {
		return nil, snapshot.NotFound(name, s.names)
	}
	at.outlined.Do(func() {
		raw, err := s.parts(name, outlineParts...)
		if err != nil {
			at.outlineErr = err
			return
		}
		l := NewLoader(raw.Name)
		l.names, l.at = func(inode uint64) string { return s.netns[NetNS{s.origin.Hosts[name].Machine, inode}] }, s.linkAt
		at.outline = l.Load(raw)
	})
	return at.outline, at.outlineErr
}

// parts gives the texts of some parts of a host's state.
func (s *Lazy) parts(name string, parts ...snapshot.Part) (*Raw, error) {
	if s.fetchParts != nil {
		return s.fetchParts(name, parts...)
	}
	all, err := s.origin.Fetch(name)
	if err != nil {
		return nil, err
	}
	some := *all
	some.Outputs = map[string]Output{}
	for _, row := range Dumps {
		if out, ok := all.Outputs[row.File]; ok && slices.Contains(parts, row.Part) {
			some.Outputs[row.File] = out
		}
	}
	return &some, nil
}

// sandboxOf returns the sandbox of a host's pod; "" for none, or another host. One whose runtime class does not tell shows by the pod's
// addresses: gVisor takes them away from the network namespace.
func (s *Lazy) sandboxOf(h *snapshot.Host) string {
	name, ok := strings.CutPrefix(h.Name, "pod/")
	if !ok {
		return ""
	}
	pods := s.Objects().Pods
	i := slices.IndexFunc(pods, func(p snapshot.Pod) bool { return p.Namespace+"/"+p.Name == name })
	if i < 0 {
		return ""
	}
	p := &pods[i]
	known := h.Missing[snapshot.Addresses]+h.Unread[snapshot.Addresses] == ""
	has := func(a netip.Addr) bool { return h.FIB.HasAddress(a) != nil }
	if p.Sandbox == "" && known && len(p.IPs) > 0 && !slices.ContainsFunc(p.IPs, has) {
		return "its address is not in its network namespace"
	}
	return p.Sandbox
}

// linkAt names a link of another host by its index. Only that host's links are read: its wires may lead back here.
func (s *Lazy) linkAt(name string, index int) string {
	if s.hosts[name] == nil {
		return ""
	}
	raw, err := s.parts(name, snapshot.Links)
	if err != nil {
		return ""
	}
	links, _ := iproute.ParseLinks(raw.Outputs[linksFile].Data)
	for _, l := range links {
		if l.Index == index {
			return l.Name
		}
	}
	return ""
}

// Objects returns the Kubernetes objects, as far as they can be had: ObjectsError says what is missing, and why.
func (s *Lazy) Objects() snapshot.Objects {
	s.once.Do(func() {
		if s.origin.Lists == nil {
			return
		}
		lists, err := s.origin.Lists()
		var unread error
		s.known, unread = ReadObjects(lists) // some lists are better than none
		s.problem = errors.Join(err, unread)
	})
	return s.known
}

// ObjectsError returns why there are no Kubernetes objects, or not all; nil where there are.
func (s *Lazy) ObjectsError() error {
	s.Objects()
	return s.problem
}
