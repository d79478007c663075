package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureVeth joins two namespaces by a veth pair with these ends, both up, with this MTU in bytes. A pair that is there already,
// by its names, is left as it is, unless its second end is bare: whoever made it may have been killed before it was up. A link of one of
// the names that is not the pair's is replaced.
func EnsureVeth(a, b LinkEnd, mtu int) error {
	if err := ensureVeth(a, b, mtu); err != nil {
		return fmt.Errorf("join %s in %s and %s in %s: %w", a.Name, a.Namespace.path, b.Name, b.Namespace.path, err)
	}
	return nil
}

func ensureVeth(a, b LinkEnd, mtu int) error {
	joined, err := joined(a, b)
	if err != nil {
		return err
	}
	if joined {
		bare, err := b.Namespace.Bare(b.Name)
		if err != nil || !bare {
			return err
		}
		return bringUpBoth(a, b)
	}
	for _, end := range []LinkEnd{a, b} {
		if err := end.Namespace.DeleteLink(end.Name); err != nil {
			return err
		}
	}
	if err := addVeth(a, b, mtu); err != nil {
		_ = a.Namespace.DeleteLink(a.Name)
		return err
	}
	return nil
}

func addVeth(a, b LinkEnd, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = a.Name, mtu, net.FlagUp
	var err error
	if attrs.HardwareAddr, err = parseMAC(a.MAC); err != nil {
		return err
	}
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(b.Namespace.file.Fd())}
	if veth.PeerHardwareAddr, err = parseMAC(b.MAC); err != nil {
		return err
	}
	h, err := a.Namespace.Handle()
	if err != nil {
		return err
	}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	return bringUpBoth(a, b)
}

func bringUpBoth(a, b LinkEnd) error {
	for _, end := range []LinkEnd{b, a} {
		if err := end.Namespace.bringUp(end.Name, end.Alias); err != nil {
			return err
		}
	}
	return nil
}

func parseMAC(s string) (net.HardwareAddr, error) {
	if s == "" {
		return nil, nil
	}
	return net.ParseMAC(s)
}

func (n *Namespace) bringUp(name, alias string) error {
	h, err := n.Handle()
	if err != nil {
		return err
	}
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if alias != "" {
		if err := h.LinkSetAlias(l, alias); err != nil {
			return fmt.Errorf("set alias of %s: %w", name, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// joined reports whether the two ends are there and are one veth pair.
func joined(a, b LinkEnd) (bool, error) {
	la, err := a.Namespace.link(a.Name)
	if err != nil || la == nil {
		return false, err
	}
	lb, err := b.Namespace.link(b.Name)
	if err != nil || lb == nil {
		return false, err
	}
	return la.Type() == "veth" && lb.Type() == "veth" &&
		la.Attrs().ParentIndex == lb.Attrs().Index && lb.Attrs().ParentIndex == la.Attrs().Index, nil
}

// HasVeth reports whether two namespaces are joined by a veth pair with these ends, both up.
func HasVeth(a, b LinkEnd) (bool, error) {
	if is, err := joined(a, b); err != nil || !is {
		return false, err
	}
	for _, end := range []LinkEnd{a, b} {
		l, err := end.Namespace.link(end.Name)
		if err != nil || l == nil || l.Attrs().Flags&net.FlagUp == 0 {
			return false, err
		}
	}
	return true, nil
}

// RepairVeth joins two namespaces as EnsureVeth does, and sets both ends up. Where an address that the second end should have is on a
// bridge of its namespace, which a CNI plugin has made, the second end becomes a port of that bridge. It returns the link that has the
// address, or is to have it.
func RepairVeth(a, b LinkEnd, mtu int, address netip.Addr) (string, error) {
	if err := EnsureVeth(a, b, mtu); err != nil {
		return "", err
	}
	if err := bringUpBoth(a, b); err != nil {
		return "", err
	}
	holder, err := b.Namespace.LinkOf(address)
	if err != nil || holder == "" || holder == b.Name {
		return b.Name, err
	}
	h, err := b.Namespace.Handle()
	if err != nil {
		return "", err
	}
	port, err := b.Namespace.link(b.Name)
	if err != nil {
		return "", err
	}
	bridge, err := b.Namespace.link(holder)
	if err != nil || port == nil || bridge == nil || bridge.Type() != "bridge" || port.Attrs().MasterIndex == bridge.Attrs().Index {
		return holder, err
	}
	if err := h.LinkSetMaster(port, bridge); err != nil {
		return "", fmt.Errorf("make %s in %s a port of %s: %w", b.Name, b.Namespace.path, holder, err)
	}
	if err := h.LinkSetHairpin(port, true); err != nil { // as the plugin does
		return "", fmt.Errorf("set hairpin of %s in %s: %w", b.Name, b.Namespace.path, err)
	}
	return holder, nil
}

// LinkOf returns the name of the link that has an address, "" for none.
func (n *Namespace) LinkOf(address netip.Addr) (string, error) {
	h, err := n.Handle()
	if err != nil {
		return "", err
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("list addresses in %s: %w", n.path, err)
	}
	for _, a := range addrs {
		if toAddr(a.IP) == address {
			l, err := h.LinkByIndex(a.LinkIndex)
			if err != nil {
				return "", fmt.Errorf("find the link of %s in %s: %w", address, n.path, err)
			}
			return l.Attrs().Name, nil
		}
	}
	return "", nil
}

// LinkTowards returns the name of the link by which the namespace's routes send a packet to an address, "" where they send it nowhere.
func (n *Namespace) LinkTowards(address netip.Addr) (string, error) {
	h, err := n.Handle()
	if err != nil {
		return "", err
	}
	routes, err := h.RouteGet(address.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(routes) == 0 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look up the route to %s in %s: %w", address, n.path, err)
	}
	l, err := h.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("find the link towards %s in %s: %w", address, n.path, err)
	}
	return l.Attrs().Name, nil
}

// link returns nil when there is no such link.
func (n *Namespace) link(name string) (netlink.Link, error) {
	h, err := n.Handle()
	if err != nil {
		return nil, err
	}
	l, err := h.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s in %s: %w", name, n.path, err)
	}
	return l, nil
}

// DeleteLink takes a link, and the peer of a veth, away. One that is not there is no error.
func (n *Namespace) DeleteLink(name string) error {
	l, err := n.link(name)
	if err != nil || l == nil {
		return err
	}
	h, err := n.Handle()
	if err != nil {
		return err
	}
	if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s in %s: %w", name, n.path, err)
	}
	return nil
}

// LinkNames lists the links of the namespace.
func (n *Namespace) LinkNames() ([]string, error) {
	h, err := n.Handle()
	if err != nil {
		return nil, err
	}
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", n.path, err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return names, nil
}

// Bare reports whether a link exists and is not set up yet. It has no addresses but link-local ones, and is not a bridge port.
func (n *Namespace) Bare(name string) (bool, error) {
	l, err := n.link(name)
	if err != nil || l == nil || l.Attrs().MasterIndex != 0 {
		return false, err
	}
	h, err := n.Handle()
	if err != nil {
		return false, err
	}
	addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list addresses of %s in %s: %w", name, n.path, err)
	}
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			return false, nil
		}
	}
	return true, nil
}
