package vnet

import (
	"fmt"
	"net/netip"
	"slices"
)

// Azure CNI Overlay gives pods addresses that no virtual network has. Azure gives each node a part of their range, and delivers packets
// between the cluster's nodes and their pods without a route and without encapsulation that a machine would see ("Azure CNI Overlay
// networking", learn.microsoft.com). Others reach pods only by a user-defined route to the pod's node (Azure/AKS issue 4871). Undocumented,
// and chosen here: the overlay comes before user-defined routes of the nodes' subnet, and what a pod sends with its own address beyond the
// cluster arrives inside virtual networks and leaves for nowhere else.

// AllocateOverlay gives a NIC the lowest free part of the overlay, as long as bits say. A NIC that has one keeps it.
func (n *Network) AllocateOverlay(nic string, bits int) error {
	i := slices.IndexFunc(n.NICs, func(o NIC) bool { return o.Name == nic })
	if i < 0 || !n.Overlay.IsValid() || bits < n.Overlay.Bits() {
		return fmt.Errorf("allocate a /%d of the pods' range %s for NIC %s: no such NIC or range", bits, n.Overlay, nic)
	}
	if n.NICs[i].Overlay.IsValid() {
		return nil
	}
	for p := netip.PrefixFrom(n.Overlay.Masked().Addr(), bits); n.Overlay.Contains(p.Addr()); p = netip.PrefixFrom(LastOf(p).Next(), bits) {
		if !slices.ContainsFunc(n.NICs, func(o NIC) bool { return o.Overlay.IsValid() && o.Overlay.Overlaps(p) }) {
			n.NICs[i].Overlay = p
			return nil
		}
	}
	return fmt.Errorf("allocate a /%d of the pods' range for NIC %s: all of %s is in use", bits, nic, n.Overlay)
}

// takes returns the NIC that a user-defined route to an address leads to, seen from a virtual network: a [Network.Forwarder], or a node of
// the overlay, which takes packets for its own pods.
func (n *Network) takes(vnet string, a netip.Addr) (NIC, bool) {
	if nic, ok := n.Forwarder(vnet, a); ok {
		return nic, true
	}
	nic, ok := n.at(a)
	return nic, ok && nic.Overlay.IsValid() && (nic.VNet == vnet || peered(*n, vnet, nic.VNet))
}

// Names of the overlay's chain and sets in the fabric's table.
const (
	overlayName = "overlay"       // the chain for packets to pods, and the set of the nodes' parts
	nodesName   = "overlay-nodes" // the links of nodes
	podsName    = "pods"          // which pods' addresses a node's NIC may send
)

// overlaySets writes the nodes, their parts of the overlay, and which of their NICs may send which pods' addresses.
func (w *nftWriter) overlaySets(n Network) {
	if !n.Overlay.IsValid() {
		return
	}
	var nodes, parts, pods []string
	for _, nic := range n.NICs {
		if nic.Overlay.IsValid() {
			nodes = append(nodes, fmt.Sprintf("%q", nic.Link()))
			parts = append(parts, nic.Overlay.String())
			pods = append(pods, fmt.Sprintf("%q . %s", nic.Link(), nic.Overlay))
		}
	}
	w.set("set", nodesName, "ifname", "", nodes)
	w.set("set", overlayName, "ipv4_addr", "interval", parts)
	w.set("set", podsName, "ifname . ipv4_addr", "interval", pods)
}

// overlay writes the chain for packets to pods.
func (w *nftWriter) overlay(n Network, f *firewall) {
	if n.Overlay.IsValid() {
		w.chain(overlayName, "", slices.Concat([]string{because("ip daddr != @"+overlayName+" drop", "no node has this part of the overlay's range")},
			f.answers, f.toOwner())...)
	}
}

// toOverlay returns the rule that sends nodes' packets for pods there; "" without an overlay.
func toOverlay(n Network) string {
	if !n.Overlay.IsValid() {
		return ""
	}
	return because(fmt.Sprintf("iifname @%s ip daddr %s goto %s", nodesName, n.Overlay, overlayName),
		"Azure delivers it to the node that has the pod's range")
}

// fromPods returns the rule for what a node's pods send; "" without an overlay.
func fromPods(n Network, verdict, more string) string {
	if !n.Overlay.IsValid() {
		return ""
	}
	return because("iifname . ip saddr @"+podsName+" "+verdict, "the address of a pod on the sender"+more)
}

// ownPods returns the rule of a user-defined route to a node that does not forward: the node takes what is for its own pods.
func ownPods(nic NIC) []string {
	if nic.IPForwarding || !nic.Overlay.IsValid() {
		return nil
	}
	return []string{because(fmt.Sprintf("ip daddr != %s drop", nic.Overlay), "the route's next hop has no such pod, and does not forward")}
}

// podsStay returns the rule that keeps pods' own addresses from the internet; "" without an overlay.
func podsStay(n Network) string {
	if !n.Overlay.IsValid() {
		return ""
	}
	return because("iifname . ip saddr @"+podsName+" ct original ip daddr != @vnets drop",
		"a pod's own address of the overlay has no way to the internet")
}

func (v *validator) overlay(n Network) {
	if !n.Overlay.IsValid() {
		return
	}
	v.check(n.Overlay.Addr().Is4() && n.Overlay == n.Overlay.Masked(), "overlay %s: not an aligned IPv4 range", n.Overlay)
	for _, net := range n.VNets {
		for _, p := range net.AddressPrefixes {
			v.check(!p.Overlaps(n.Overlay), "overlay %s: overlaps virtual network %s", n.Overlay, net.Name)
		}
	}
}

// overlayPart checks that a NIC's part lies in the overlay, and apart from those of other NICs.
func (v *validator) overlayPart(n Network, nic NIC) {
	p := nic.Overlay
	if !p.IsValid() {
		return
	}
	v.check(n.Overlay.IsValid() && p.Bits() >= n.Overlay.Bits() && n.Overlay.Contains(p.Addr()) && p == p.Masked(),
		"NIC %s: %s is outside the overlay %s", nic.Name, p, n.Overlay)
	for _, o := range n.NICs {
		v.check(o.Name == nic.Name || !o.Overlay.IsValid() || !o.Overlay.Overlaps(p), "NIC %s: %s overlaps %s of NIC %s", nic.Name, p, o.Overlay, o.Name)
	}
}
