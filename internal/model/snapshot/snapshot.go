package snapshot

import (
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// Source gives hosts by name. A capture has them all; a running lab dumps a host when the walk gets there.
type Source interface {
	// Host returns the state of a host. An error that is fs.ErrNotExist means that there is none.
	Host(name string) (*Host, error)
	// Names lists the hosts there are, sorted.
	Names() []string
	// Objects are the Kubernetes objects that give things their names; the zero value where none are known.
	Objects() Objects
}

// Outliner is a Source that has a host's links, addresses and wires apart from the rest of its state, which takes longer to read.
type Outliner interface {
	Outline(name string) (*Host, error)
}

// Outline returns a host's links, addresses and wires, with the rest of its state where the source does not have them apart.
func Outline(src Source, name string) (*Host, error) {
	if o, ok := src.(Outliner); ok {
		return o.Outline(name)
	}
	return src.Host(name)
}

// LabInternet names the host of a lab at which packets for the internet arrive.
const LabInternet = "internet"

// Host is the state of one network namespace.
type Host struct {
	// Name is the host's, with its kind in front: "node/NAME", "pod/NAMESPACE/NAME", "vm/NAME", "internet/NAME"; "fabric", "internet"
	// and "controlplane" stand alone. A pod on a virtual node is "container-group/NAMESPACE-NAME", and the machine that it runs on, Azure's,
	// "container-host/NAMESPACE-NAME". For a machine that is no part of a lab it is "node/HOSTNAME".
	Name      string
	Taken     time.Time
	Kernel    string // release, as uname -r
	FIB       *fib.State
	Rules     *netfilter.Ruleset
	IPSets    map[string]*netfilter.Set
	Flows     *conntrack.Table
	Sysctls   map[string]string // "net.ipv4.ip_forward" → "1"; keys are made by SysctlKey
	Listeners []Listener
	// VirtualServices are those of IPVS; nil where they were not read.
	VirtualServices []VirtualService
	// RecentLists are those of "-m recent", by name.
	RecentLists map[string]netfilter.RecentList
	// IPsec are the policies of IPsec (xfrm) that may keep packets from going on as they are.
	IPsec []IPsecPolicy
	// Programs are BPF programs that the kernel calls for the host's sockets and packets. Those at links are in FIB.
	Programs []Program
	// Sandbox says why the host's pod may have a separate network stack; "" if it uses the node's kernel, or the host is none of a pod.
	Sandbox string
	// Agents are the packetwalk-nodes in this network namespace, one for each role; nil where they were not read.
	Agents []Agent
	Peers  []Peer
	Beyond []AssumedNetwork // only where no routes are known
	// Forwarders are machines outside the snapshot that forward packets for others, by the links that lead to them.
	Forwarders map[string]Forwarder
	// Missing tells what the snapshot does not show of the host, and why: a text has a part of its state. A walk assumes something of it.
	Missing map[Part]string
	// Unread tells what the host has, or may have, that could not be read, and why. A walk that comes to need it ends there, undecided.
	Unread map[Part]string
	// Partial tells of which parts there may be more than what is known, and why.
	Partial map[Part]string
	// Assumed are the things that reading had to assume ("table nat assumed for the rules before line 12: …").
	Assumed []string
	// Account has the fates of the lines of the text that the host was read from; nil for a host from elsewhere.
	Account Account
	// Redacted are the names of addresses that a text hides, by the unknown addresses that stand for them (packet.Redacted).
	Redacted map[netip.Addr]string
}

// Part is one part of a host's state.
type Part string

// The parts. RulesIPv6 and Bridge are ip6tables' and ebtables' rules.
const (
	Links      Part = "links"
	Addresses  Part = "addresses"
	Routes     Part = "routes"
	Policy     Part = "policy rules"
	Neighbours Part = "neighbours"
	FDB        Part = "forwarding database"
	Rules      Part = "iptables rules"
	RulesIPv6  Part = "ip6tables rules"
	NFT        Part = "nftables rules"
	Bridge     Part = "ebtables rules"
	IPSets     Part = "ipsets"
	Flows      Part = "connections"
	Sysctls    Part = "sysctls"
	Listeners  Part = "listening sockets"
	Wires      Part = "other ends of wires"
	// These are not among Parts: most sources of a state say nothing of them.
	Programs       Part = "programs at links"
	SocketPrograms Part = "programs at sockets"
	IPVS           Part = "services of IPVS"
	IPsec          Part = "policies of IPsec"
	RecentLists    Part = "lists of recent addresses"
	Agents         Part = "roles of packetwalk-node"
)

// Parts are all of them.
var Parts = []Part{
	Links, Addresses, Routes, Policy, Neighbours, FDB, Rules, RulesIPv6, NFT, Bridge, IPSets, Flows, Sysctls, Listeners, Wires,
}

// AssumedNetwork holds the link to a network, concluded from rules where routes are unknown.
type AssumedNetwork struct {
	Prefix netip.Prefix
	Link   string
}

// Forwarder is a firewall or a gateway. It may translate what it forwards, so that the destination sees another source than the forwarder.
type Forwarder struct {
	Name      string       // "appliance 10.13.200.4"
	Addresses []netip.Addr // packets for these end there
	// Stateful says that it drops an answer to a request that did not pass it, unless its rules, which are unknown, allow that as a new flow.
	Stateful bool
}

// Behind finds the interface behind which an address is, by the rules: "" where they do not tell. others are then interfaces that it is not
// behind: those that have a network of their own.
func (h *Host) Behind(a netip.Addr) (link string, others []string) {
	bits := -1
	for _, b := range h.Beyond {
		if b.Prefix.Bits() > bits && b.Prefix.Contains(a) {
			link, bits = b.Link, b.Prefix.Bits()
		}
		if !b.Prefix.IsSingleIP() {
			others = append(others, b.Link)
		}
	}
	return link, others
}

// Listener is a socket that takes packets.
type Listener struct {
	Protocol    packet.Protocol `json:"protocol"`          // by number
	Local       netip.AddrPort  `json:"local"`             // the address is unspecified for any of its family
	Process     string          `json:"process,omitempty"` // name, where known
	Transparent bool            `json:"transparent,omitempty"`
	Owner       *Owner          `json:"owner,omitempty"` // of the process, where known
}

// Owner is whose files and sockets a process makes (credentials(7): the file system user and group ID).
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Program is a BPF program that the kernel calls for sockets or packets, other than at a link.
type Program struct {
	// Attach says where the kernel calls it, as bpftool(8) does: "connect4", "egress", "sk_lookup", "netfilter", "lsm_mac".
	Attach string `json:"attach"`
	ID     uint32 `json:"id"`
	Name   string `json:"name,omitempty"`   // of at most 15 bytes; "" if it has none
	Group  string `json:"cgroup,omitempty"` // the control group that it is attached to, or "" if unknown
	// Some says that some of the host's processes are outside of Group, and that they are the machine's, not a pod's.
	Some bool   `json:"some,omitempty"`
	Hook string `json:"hook,omitempty"` // of netfilter: "prerouting"; of LSM: "socket_connect", or "" if unknown
	IPv6 bool   `json:"ipv6,omitempty"` // with Hook: the program gets IPv6's packets, not IPv4's
}

// String returns "BPF program sock4 (id 7, connect4, control group /)".
func (p *Program) String() string {
	text := "BPF program "
	if p.Name != "" {
		text += p.Name + " "
	}
	text += fmt.Sprintf("(id %d, %s", p.ID, p.Attach)
	if p.Hook != "" {
		text += " " + p.Hook
	}
	if p.Group != "" {
		text += ", control group " + p.Group
	}
	return text + ")"
}

// VirtualService is a service of IPVS: what is for it the kernel takes to one of the service's endpoints.
type VirtualService struct {
	Protocol packet.Protocol `json:"protocol,omitzero"` // by number
	Local    netip.AddrPort  `json:"local,omitzero"`    // port 0 for any
	Mark     uint32          `json:"mark,omitzero"`     // of a service for all packets that have it, instead of the others
}

// String returns "service tcp 10.96.0.10:53", or "service for the mark 0x1".
func (s *VirtualService) String() string {
	if s.Mark != 0 {
		return fmt.Sprintf("service for the mark %#x", s.Mark)
	}
	return fmt.Sprintf("service %s %s", s.Protocol, s.Local)
}

// Agent is a packetwalk-node that keeps rules.
type Agent struct {
	Role string `json:"role"`
}

// ServiceProxy is the role of a packetwalk-node that keeps the rules of Services. The other is "ip-masq-agent".
const ServiceProxy = "service-proxy"

// IPsecPolicy blocks the packets that it selects, or has them encrypted; of those that came in it wants that they were.
type IPsecPolicy struct {
	Direction   string          `json:"dir"` // "out" of what leaves, "in" and "fwd" of what came in, for the host and for others
	Source      netip.Prefix    `json:"src"`
	Destination netip.Prefix    `json:"dst"`
	Protocol    packet.Protocol `json:"protocol,omitzero"` // by number; 0 for any
	Mark        uint32          `json:"mark,omitzero"`
	Mask        uint32          `json:"mask,omitzero"`
}

// String returns "out tcp 10.1.0.0/16 > 10.2.0.0/16 mark 0x1/0xf".
func (p *IPsecPolicy) String() string {
	text := p.Direction
	if p.Protocol != 0 {
		text += " " + p.Protocol.String()
	}
	text += fmt.Sprintf(" %s > %s", p.Source, p.Destination)
	if p.Mask != 0 {
		text += fmt.Sprintf(" mark %#x/%#x", p.Mark, p.Mask)
	}
	return text
}

// Peer is the other end of one of the host's wires.
type Peer struct {
	Link     string // of this host
	Host     string // at the other end
	PeerLink string // of that host
}

// Objects are the Kubernetes objects of a cluster as far as walks use them: who owns an address, a chain, a rule.
type Objects struct {
	Pods []Pod
	// Ended are the pods that have done what they were to do, or failed at it: their addresses are others' by now.
	Ended    []Pod
	Services []Service
	Nodes    []Node
	// Pools are Calico's; ConfigMaps those of the ip-masq-agent.
	Pools      []Pool
	ConfigMaps []ConfigMap
	// NetworkPolicies are those of all namespaces; nil where they were not read.
	NetworkPolicies []NetworkPolicy
}

// Pod is a pod's place.
type Pod struct {
	Namespace, Name, Node string
	IPs                   []netip.Addr
	HostNetwork           bool
	Labels                map[string]string
	// Sandbox says why the pod may have a separate network stack, as in sandboxes of gVisor and Kata Containers: "runtimeClassName gvisor,
	// handler runsc". It is "" if the pod uses the node's kernel.
	Sandbox string
	// Controller is the object that manages the pod: zero where there is none, nil where the pod's owners were not read.
	Controller *Controller
}

// Controller is the kind of an object with its API group, such as "ReplicaSet.apps", and its name.
type Controller struct{ Kind, Name string }

// Service is a service's addresses and the endpoints behind it.
type Service struct {
	Namespace, Name, Type string
	ClusterIPs            []netip.Addr
	External              []netip.Addr // load balancer's and external addresses
	Local                 bool         // externalTrafficPolicy Local
	InternalLocal         bool
	Ports                 []ServicePort
}

// ServicePort is one port of a service.
type ServicePort struct {
	Name           string
	Protocol       packet.Protocol
	Port, NodePort uint16
	Endpoints      []netip.AddrPort
}

// Node is a node's addresses.
type Node struct {
	Name     string
	IPs      []netip.Addr
	PodCIDRs []netip.Prefix
	// ProviderID is the cloud's name for the machine: azure:///subscriptions/…; "" where there is none.
	ProviderID string
}

// Pool is an IPPool of Calico.
type Pool struct {
	Name        string
	CIDR        netip.Prefix
	NATOutgoing bool
	Disabled    bool
}

// ConfigMap is one ConfigMap's data.
type ConfigMap struct {
	Namespace, Name string
	Data            map[string]string
}

// NetworkPolicy is the part of a NetworkPolicy that says which pods of its namespace it selects.
type NetworkPolicy struct {
	Namespace, Name string
	Ingress, Egress bool          // what it is about: traffic to the pods, traffic from them
	Selector        []Requirement // all must hold
}

// Requirement is one condition on a pod's labels.
type Requirement struct {
	Key      string
	Operator LabelOperator
	Values   []string
}

// LabelOperator is the operator of a Requirement (meta/v1, LabelSelectorOperator).
type LabelOperator string

// The operators.
const (
	LabelIn           LabelOperator = "In"
	LabelNotIn        LabelOperator = "NotIn"
	LabelExists       LabelOperator = "Exists"
	LabelDoesNotExist LabelOperator = "DoesNotExist"
)

// Selects reports whether the policy selects a pod.
func (p *NetworkPolicy) Selects(pod *Pod) bool {
	return p.Namespace == pod.Namespace &&
		!slices.ContainsFunc(p.Selector, func(r Requirement) bool { return !r.matches(pod.Labels) })
}

func (r *Requirement) matches(labels map[string]string) bool {
	value, exists := labels[r.Key]
	switch r.Operator {
	case LabelIn:
		return exists && slices.Contains(r.Values, value)
	case LabelNotIn:
		return !exists || !slices.Contains(r.Values, value)
	case LabelExists:
		return exists
	}
	return !exists
}

// Peer finds the other end of a wire; false where it is not known.
func (h *Host) Peer(link string) (Peer, bool) {
	for _, p := range h.Peers {
		if p.Link == link {
			return p, true
		}
	}
	return Peer{}, false
}

// SysctlKey returns the key of a setting in [Host.Sysctls], from the elements of its path: they are joined by dots, and a dot inside an
// element (of an interface "eth0.100") becomes a slash, as sysctl(8) prints it: "net.ipv4.conf.eth0/100.forwarding".
func SysctlKey(elements ...string) string {
	var b strings.Builder
	for i, e := range elements {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strings.ReplaceAll(e, ".", "/"))
	}
	return b.String()
}

// Sysctl returns a setting of the host by the elements of its path, as Sysctl("net", "ipv4", "conf", link, "rp_filter"); false where it is
// not known.
func (h *Host) Sysctl(elements ...string) (string, bool) {
	v, ok := h.Sysctls[SysctlKey(elements...)]
	return v, ok
}

// UnreadError is a Source's error for a host that exists and whose state is not read. A walk that comes to it ends there, undecided.
type UnreadError struct {
	Host string
	Err  error // why
}

func (e *UnreadError) Error() string { return e.Host + " is not read: " + e.Err.Error() }

// Unwrap gives the reason.
func (e *UnreadError) Unwrap() error { return e.Err }

// NotFound returns a Source's error for a host that does not exist; it wraps fs.ErrNotExist.
func NotFound(name string, there []string) error {
	return fmt.Errorf("host %q: %w; there are: %s", name, fs.ErrNotExist, List(there))
}

// List writes some names, sorted and each once, and how many more there are; "none" where there are none.
func List(names []string) string {
	const most = 12
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
