package cni

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
)

// network is one kind of pod network, seen from a node. All methods work in the namespace of the [node], and can be repeated after a call
// that failed or was killed.
type network interface {
	nodeNetwork
	attacher
	describer
}

// nodeNetwork sets up the part of a network that a node's pods share.
type nodeNetwork interface {
	// Ready is a quick look whether that part is still in place, once set up completely.
	Ready() (bool, error)
	// Ensure sets the part up, and returns how to remove it when it made it.
	Ensure() (undo, error)
}

// attacher attaches pods to the network.
type attacher interface {
	// Attach joins a pod to the network. When it fails it has taken back what it did.
	Attach(a *attachment, pod *os.File) error
	// Detach removes what Attach made. What is gone already is no error.
	Detach(a *attachment) error
	// Check compares what the node has with what Attach and Ensure make, and returns every difference. The pod's side is
	// [describer.PodWants].
	Check(a *attachment) []error
	// Recover finds the attachments that the kernel has, for a state that is lost.
	Recover() ([]attachment, error)
}

// describer describes an attachment.
type describer interface {
	// PodWants is what the pod's side has.
	PodWants(a *attachment) podSide
	// Interfaces are the node's interfaces of a result, the pod's own left out.
	Interfaces(a *attachment) ([]hostInterface, error)
}

// podSide is what a pod's namespace has.
type podSide struct {
	Address netip.Prefix
	Routes  []podRoute
	// NoSubnetRoute: the kernel's own route to the address's subnet is removed, so that everything goes by way of the node.
	NoSubnetRoute bool
	// Neighbours are permanent entries on the pod's interface.
	Neighbours map[netip.Addr]net.HardwareAddr
}

// podRoute is a route by the pod's interface; without a gateway it is on the link.
type podRoute struct {
	Dst     netip.Prefix
	Gateway netip.Addr
}

// hostInterface is an interface of the node, in a result.
type hostInterface struct{ Name, MAC string }

// node is a node's side: its namespace and the network's configuration.
type node struct {
	*netlink.Handle
	*config
	ebtables ebtables
}

// kinds are the kinds of network by mode.
var kinds map[netMode]func(*node) network

func init() { // not at the declaration: the configuration's check reads the table
	kinds = map[netMode]func(*node) network{
		modeBridge:      newBridge,
		modeKubenet:     newKubenet,
		modeTransparent: func(n *node) network { return &transparentMode{n} },
	}
}

func modeNames() []string {
	var names []string
	for _, m := range slices.Sorted(maps.Keys(kinds)) {
		names = append(names, string(m))
	}
	return names
}
