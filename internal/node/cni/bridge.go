package cni

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"packetwalk.dev/internal/node/cni/ebrules"
)

// bridge is Azure CNI's bridge mode: the node's NIC and the pods' veths are ports of one bridge, which has the NIC's MAC address and its IP
// addresses. Azure lets only the NIC's own MAC address out and answers every ARP itself, hence the ebtables rules.
type bridge struct{ ports }

func newBridge(n *node) network {
	return &bridge{ports{node: n, hairpin: true,
		rules: func(a *attachment, mac net.HardwareAddr) []ebRule { return ebrules.Pod(n.Master, a.Address, mac) }}}
}

// Ready looks at the links; the rules are listed only by Ensure.
func (b *bridge) Ready() (bool, error) {
	master, br, err := b.links()
	if err != nil || br == nil || br.Attrs().Flags&net.FlagUp == 0 || master.Attrs().MasterIndex != br.Attrs().Index {
		return false, err
	}
	left, err := addrs(b.Handle, master)
	return err == nil && len(left) == 0, nil
}

// Ensure makes the bridge and lets it take over from the master.
func (b *bridge) Ensure() (undo, error) {
	master, br, err := b.links()
	if err != nil {
		return nil, err
	}
	return b.made(br, func(done *undo) error { return b.setUp(master, br, done) })
}

func (b *bridge) setUp(master, br netlink.Link, done *undo) error {
	if err := b.sysctls(done); err != nil {
		return err
	}
	var err error
	if br == nil {
		if br, err = b.create(master.Attrs().HardwareAddr, master.Attrs().MTU, done); err != nil {
			return err
		}
	}
	hosts, err := b.hostAddrs(master, br)
	if err != nil {
		return err
	}
	rules, err := b.ebtables.missing(ebrules.Node(b.Master, master.Attrs().HardwareAddr, hosts))
	if err != nil {
		return err
	}
	if err := b.ebtables.add(rules); err != nil {
		return err
	}
	done.add(func() error { return b.ebtables.delete(rules) })
	done.add(func() error { return b.release(master, br) })
	if err := b.LinkSetMaster(master, br); err != nil {
		return fmt.Errorf("make %s a port of %s: %w", b.Master, b.Bridge, err)
	}
	// Traffic to a service's address that turns round here leaves by the port it came in by.
	if err := b.LinkSetHairpin(master, true); err != nil {
		return fmt.Errorf("set hairpin on %s: %w", b.Master, err)
	}
	return moveLayer3(b.Handle, master, br)
}

// release gives the addresses back to the master.
func (b *bridge) release(master, br netlink.Link) error {
	if err := b.LinkSetNoMaster(master); err != nil {
		return fmt.Errorf("take %s out of %s: %w", b.Master, b.Bridge, err)
	}
	return moveLayer3(b.Handle, br, master)
}

// hostAddrs returns the node's own IPv4 addresses, wherever the move from one link to the other stands.
func (b *bridge) hostAddrs(links ...netlink.Link) ([]netip.Addr, error) {
	var all []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, l := range links {
		list, err := v4Addrs(b.Handle, l)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			if !seen[a] {
				seen[a], all = true, append(all, a)
			}
		}
	}
	return all, nil
}

func (b *bridge) Check(a *attachment) []error {
	master, err := b.masterLink()
	if err != nil {
		return []error{err}
	}
	br, err := link(b.Handle, b.Bridge)
	if err != nil || br == nil {
		return []error{fmt.Errorf("bridge %s is missing", b.Bridge), err}
	}
	var bad []error
	if br.Attrs().HardwareAddr.String() != master.Attrs().HardwareAddr.String() {
		bad = append(bad, fmt.Errorf("bridge %s has MAC address %s, %s has %s", b.Bridge, br.Attrs().HardwareAddr, b.Master,
			master.Attrs().HardwareAddr))
	}
	if left, err := addrs(b.Handle, master); err != nil || len(left) > 0 {
		bad = append(bad, err, fmt.Errorf("%d addresses are on %s instead of %s", len(left), b.Master, b.Bridge))
	}
	hosts, err := b.hostAddrs(br)
	if err != nil || len(hosts) == 0 {
		bad = append(bad, err, fmt.Errorf("bridge %s has no address", b.Bridge))
	}
	bad = append(bad, b.checkPort(br, b.Master))
	return append(bad, b.checkPod(br, a, ebrules.Node(b.Master, master.Attrs().HardwareAddr, hosts))...)
}
