package serviceproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
)

// nodeIP returns the node's internal address of a family, else any of that family, else invalid.
func nodeIP(f service.Family, n *corev1.Node) netip.Addr {
	var found netip.Addr
	if n == nil {
		return found
	}
	for _, address := range n.Status.Addresses {
		ip, err := netip.ParseAddr(address.Address)
		if err != nil || !f.Of(ip) {
			continue
		}
		if address.Type == corev1.NodeInternalIP {
			return ip
		}
		if !found.IsValid() {
			found = ip
		}
	}
	return found
}

// serviceCIDRs returns the ranges of cluster IPs of a family, sorted.
func serviceCIDRs(f service.Family, objects []*networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, o := range objects {
		for _, text := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && f.Of(p.Addr()) {
				all = append(all, p.Masked())
			}
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// toBeDeleted is the taint of the cluster autoscaler on a node that it is about to delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// eligible reports whether load balancers may send to the node. They may not send to a node that is missing in the API.
func eligible(n *corev1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeleted })
}

// configure finds what the family's rules depend on beside the services: the ranges of cluster IPs, and of the node its address, its pods'
// range, and the addresses that node ports answer on.
func (f *family) configure(delta kube.Delta) error {
	n := delta.Node
	f.config.ServiceCIDRs = serviceCIDRs(f.Family, delta.ServiceCIDRs)
	if f.Family.Of(f.NodeIP) {
		f.config.NodeIP = f.NodeIP
	} else if n != nil { // without its object the node has the address that it had
		f.config.NodeIP = nodeIP(f.Family, n)
	}
	if f.PodsOfNode {
		pods, err := podRange(f.Family, n)
		switch {
		case err == nil:
			f.config.Detector.CIDR = pods
		case f.triggered == nil: // else there are rules by what it was, and it stays that
			return err
		}
	}
	return f.nodePortIPs(n)
}

// podRange returns the range of a family that the node's object has for its pods, invalid when there is one of the other only.
func podRange(f service.Family, n *corev1.Node) (netip.Prefix, error) {
	if n == nil || n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0 {
		return netip.Prefix{}, errors.New("the node has no range for its pods yet (spec.podCIDRs), as detectLocalMode NodeCIDR needs it")
	}
	for _, text := range append(slices.Clone(n.Spec.PodCIDRs), n.Spec.PodCIDR) {
		if r, err := netip.ParsePrefix(text); err == nil && f.Of(r.Addr()) {
			return r, nil
		}
	}
	return netip.Prefix{}, nil
}

// nodePortIPs finds the addresses that node ports answer on, when only some are wanted.
func (f *family) nodePortIPs(n *corev1.Node) (err error) {
	cidrs := slices.DeleteFunc(slices.Clone(f.NodePortCIDRs), func(c netip.Prefix) bool { return !f.Family.Of(c.Addr()) })
	switch own := f.config.NodeIP; {
	case f.NodePortPrimary && own.IsValid():
		f.config.NodePortIPs = []netip.Addr{own}
	case f.NodePortPrimary && n == nil:
		f.config.NodePortIPs = []netip.Addr{} // nowhere until the node's own address is known
	case len(cidrs) == 0 || slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Bits() == 0 }):
		f.config.NodePortIPs = nil
	default:
		f.config.NodePortIPs, err = localAddresses(cidrs)
	}
	return err
}

// localAddresses returns those of the node's addresses that are in one of the ranges.
func localAddresses(ranges []netip.Prefix) ([]netip.Addr, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	in := []netip.Addr{} // empty is none, where nil is all
	for _, address := range addresses {
		n, ok := address.(*net.IPNet)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(ip) }) {
			in = append(in, ip)
		}
	}
	slices.SortFunc(in, netip.Addr.Compare)
	return slices.Compact(in), nil
}
