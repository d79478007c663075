package cluster

import (
	"fmt"
	"net/netip"
)

// IsOverlay reports whether the network is Azure CNI Overlay.
func (n Network) IsOverlay() bool { return n.Plugin == PluginAzure && n.Mode == ModeOverlay }

// HasNodeAddressesOnly reports whether only nodes have addresses of their subnet, and pods have a range of their own.
func (n Network) HasNodeAddressesOnly() bool {
	return n.Plugin == PluginKubenet || n.Plugin == PluginNone || n.IsOverlay()
}

// defaultMaxPods returns AKS's maximum of pods of a node.
func (n Network) defaultMaxPods() int {
	switch {
	case n.IsOverlay():
		return MaxMaxPods
	case n.HasNodeAddressesOnly():
		return 110 // kubelet's own default
	}
	return 30
}

// notForAKS are the ranges that AKS keeps from clusters' services, pods and virtual networks, besides the link-local one ("Azure CNI Overlay
// networking", IP address planning, learn.microsoft.com).
var notForAKS = []netip.Prefix{
	netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("192.0.2.0/24"),
}

// overlay checks what AKS refuses of a cluster with Azure CNI Overlay.
func (v *validator) overlay() {
	s := v.c.Spec
	if !s.Network.IsOverlay() {
		return
	}
	if s.VirtualNode.Enabled {
		v.errs.add("spec.virtualNode.enabled", "write spec.network.mode: transparent, or leave spec.virtualNode out",
			"AKS has no virtual nodes with network mode overlay")
	}
	own := []namedRange{{"spec.network.podCIDR", s.Network.PodCIDR}, {"spec.network.serviceCIDR", s.Network.ServiceCIDR}}
	for i, n := range s.Azure.VNets {
		for j, p := range n.AddressPrefixes {
			if s.hasNodes(n.Name) {
				own = append(own, namedRange{fmt.Sprintf("spec.azure.vnets[%d].addressPrefixes[%d]", i, j), p})
			}
		}
	}
	for _, r := range own {
		for _, p := range notForAKS {
			if usable(r.prefix) && r.prefix.Overlaps(p) {
				v.errs.add(r.path, "write another private range (RFC 1918)", "%s overlaps %s, which AKS keeps from clusters", r.prefix, p)
			}
		}
	}
}
