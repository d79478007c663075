package cni

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/cni/ebrules"
)

// kubenet is kubelet's network plugin of that name (pkg/kubelet/dockershim/network/kubenet upstream, until Kubernetes 1.23): a bridge,
// cbr0, that is its pods' gateway and
// holds the first address of the node's pod range. The node's NIC stays as it is; the node routes between the two.
//
// A pod that reaches itself through a service sends a frame that has to leave by the port it came in by. Kubenet's way is a promiscuous
// bridge: a copy of the frame goes up to the node, which routes it back; the chain KUBE-DEDUP drops the copies that did not need that. AKS's
// nodes with containerd have CNI's reference bridge in kubenet's place, also promiscuous, and the same rules in the chain AKS-DEDUP-PROMISC.
// Since Linux 6.9 such copies have no connection ("br_netfilter: skip conntrack input hook for promisc packets"), so that only hairpin
// ports still do it. Both are settings, under the names that CNI's reference bridge has for them, which refuses to have them together.
type kubenet struct{ ports }

func newKubenet(n *node) network { return &kubenet{ports{node: n, hairpin: n.Hairpin}} }

// Ready looks at the bridge.
func (k *kubenet) Ready() (bool, error) {
	_, br, err := k.links()
	if err != nil || br == nil || br.Attrs().Flags&net.FlagUp == 0 || promiscuous(br) != k.Promiscuous {
		return false, err
	}
	has, err := v4Addrs(k.Handle, br)
	return err == nil && slices.Equal(has, []netip.Addr{k.Gateway}), nil
}

// Ensure makes the bridge with the gateway's address, promiscuous and with the rules that go with it.
func (k *kubenet) Ensure() (undo, error) {
	master, br, err := k.links()
	if err != nil {
		return nil, err
	}
	return k.made(br, func(done *undo) error { return k.setUp(br, master.Attrs().MTU, done) })
}

func (k *kubenet) setUp(br netlink.Link, mtu int, done *undo) error {
	if err := k.sysctls(done); err != nil {
		return err
	}
	if br == nil {
		made, err := k.create(addressMAC(k.Gateway), mtu, done)
		if err != nil {
			return err
		}
		br = made
	}
	if err := k.address(br); err != nil {
		return err
	}
	if !k.Promiscuous {
		return wrap("set promiscuous mode of "+k.Bridge, k.SetPromiscOff(br))
	}
	if err := k.SetPromiscOn(br); err != nil {
		return fmt.Errorf("set promiscuous mode of %s: %w", k.Bridge, err)
	}
	rules := k.nodeRules()
	done.add(func() error { return k.ebtables.removeDedup(k.DedupChain, rules[0]) })
	return k.ebtables.dedup(k.DedupChain, rules)
}

// promiscuous reports whether the mode was set on the link explicitly. A capture on the link, which sets it too, does not show here.
func promiscuous(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_PROMISC != 0 }

// address gives the bridge the gateway's addresses, sets it up, and takes away any other address: of a pod range that the node had before.
func (k *kubenet) address(br netlink.Link) error {
	if mac := addressMAC(k.Gateway); br.Attrs().HardwareAddr.String() != mac.String() {
		if err := k.LinkSetHardwareAddr(br, mac); err != nil {
			return fmt.Errorf("set the MAC address of %s: %w", k.Bridge, err)
		}
	}
	if err := k.LinkSetUp(br); err != nil {
		return fmt.Errorf("set %s up: %w", k.Bridge, err)
	}
	want := ipNet(netip.PrefixFrom(k.Gateway, k.Subnet.Bits()))
	if err := k.AddrReplace(br, &netlink.Addr{IPNet: want, Broadcast: net.IPv4zero.To4()}); err != nil {
		return fmt.Errorf("add %s to %s: %w", want, k.Bridge, err)
	}
	list, err := addrs(k.Handle, br)
	if err != nil {
		return err
	}
	for _, a := range list {
		if a.IP.To4() == nil || a.IPNet.String() == want.String() {
			continue
		}
		if err := k.AddrDel(br, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return fmt.Errorf("delete %s from %s: %w", a.IPNet, k.Bridge, err)
		}
	}
	return nil
}

// nodeRules returns the rules that all pods of the node share; none where the bridge is not promiscuous.
func (k *kubenet) nodeRules() []ebRule {
	if !k.Promiscuous {
		return nil
	}
	return ebrules.Deduplicate(k.DedupChain, addressMAC(k.Gateway), kubenetVeth, k.Gateway, k.Subnet)
}

// PodWants: the bridge is the gateway. Its neighbour entry is permanent, because the kernel's table is one for all namespaces.
func (k *kubenet) PodWants(a *attachment) podSide {
	want := k.ports.PodWants(a)
	want.Neighbours = map[netip.Addr]net.HardwareAddr{k.Gateway: addressMAC(k.Gateway)}
	return want
}

func (k *kubenet) Check(a *attachment) []error {
	br, err := link(k.Handle, k.Bridge)
	if err != nil || br == nil {
		return []error{fmt.Errorf("bridge %s is missing", k.Bridge), err}
	}
	var bad []error
	if got := br.Attrs().HardwareAddr.String(); got != addressMAC(k.Gateway).String() {
		bad = append(bad, fmt.Errorf("bridge %s has MAC address %s, not %s", k.Bridge, got, addressMAC(k.Gateway)))
	}
	if has, err := v4Addrs(k.Handle, br); err != nil || !slices.Equal(has, []netip.Addr{k.Gateway}) {
		bad = append(bad, err, fmt.Errorf("bridge %s has addresses %v, not %s", k.Bridge, has, k.Gateway))
	}
	if got := promiscuous(br); got != k.Promiscuous {
		bad = append(bad, fmt.Errorf("bridge %s: promiscuous mode is %v, not %v", k.Bridge, got, k.Promiscuous))
	}
	return append(bad, k.checkPod(br, a, k.nodeRules())...)
}
