package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sysctl"
)

// dump repeats a kernel dump that a change interrupted (NLM_F_DUMP_INTR: the result may be incomplete).
func dump[T any](f func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := f()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == 20 {
			return v, err
		}
	}
}

// link returns an interface of the namespace by name; nil without an error when there is none.
func link(h *netlink.Handle, name string) (netlink.Link, error) {
	l, err := h.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return l, nil
}

// masterLink returns the node's NIC, which must be there.
func (n *node) masterLink() (netlink.Link, error) {
	l, err := link(n.Handle, n.Master)
	if err == nil && l == nil {
		err = coded(types.ErrLimitedConnectivity,
			fmt.Errorf("look up the master: the node has no interface %s; name the node's NIC in the field master", n.Master))
	}
	return l, err
}

// addrs returns an interface's addresses except the link-local ones that the kernel makes by itself.
func addrs(h *netlink.Handle, l netlink.Link) ([]netlink.Addr, error) {
	all, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
	}
	var list []netlink.Addr
	for _, a := range all {
		if a.IP.To4() != nil || !a.IP.IsLinkLocalUnicast() {
			list = append(list, a)
		}
	}
	return list, nil
}

// v4Addrs returns the IPv4 addresses of an interface.
func v4Addrs(h *netlink.Handle, l netlink.Link) ([]netip.Addr, error) {
	list, err := addrs(h, l)
	var out []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			out = append(out, ip)
		}
	}
	return out, err
}

// moveLayer3 moves addresses and routes from one interface to the other without a moment in which the node has no address or no default
// route: the addresses are added before the routes change over, each by one replacement, and before the old ones go. Run again after it was
// killed anywhere, it does the rest.
func moveLayer3(h *netlink.Handle, from, to netlink.Link) error {
	list, err := addrs(h, from)
	if err != nil {
		return err
	}
	for _, a := range list {
		moved := netlink.Addr{IPNet: a.IPNet, Scope: a.Scope, Broadcast: a.Broadcast, Peer: a.Peer}
		if moved.Broadcast == nil && a.IP.To4() != nil {
			moved.Broadcast = net.IPv4zero.To4() // it had none: nil would make the library derive one
		}
		if a.IP.To4() == nil {
			moved.Flags = unix.IFA_F_NODAD // it is in use on this node: waiting for duplicates would only stop traffic
		}
		if err := h.AddrReplace(to, &moved); err != nil {
			return fmt.Errorf("add %s to %s: %w", a.IPNet, to.Attrs().Name, err)
		}
	}
	if err := moveRoutes(h, from, to); err != nil {
		return err
	}
	for _, a := range list {
		if err := h.AddrDel(from, &netlink.Addr{IPNet: a.IPNet, Peer: a.Peer}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete %s from %s: %w", a.IPNet, from.Attrs().Name, err)
		}
	}
	return nil
}

// moveRoutes points the routes by one interface to the other. The kernel's own (local, broadcast, the subnets of addresses) follow the
// addresses.
func moveRoutes(h *netlink.Handle, from, to netlink.Link) error {
	all, err := dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	// On-link routes first: routes by a gateway need them.
	for _, onLink := range []bool{true, false} {
		for _, r := range all {
			if r.Protocol == unix.RTPROT_KERNEL || r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST ||
				(r.Gw == nil && len(r.MultiPath) == 0) != onLink {
				continue
			}
			if !repoint(&r, from.Attrs().Index, to.Attrs().Index) {
				continue
			}
			if err := h.RouteReplace(&r); err != nil {
				return fmt.Errorf("move route %s to %s: %w", r, to.Attrs().Name, err)
			}
		}
	}
	return nil
}

func repoint(r *netlink.Route, from, to int) (changed bool) {
	if r.LinkIndex == from {
		r.LinkIndex, changed = to, true
	}
	for _, hop := range r.MultiPath {
		if hop.LinkIndex == from {
			hop.LinkIndex, changed = to, true
		}
	}
	r.Flags &= int(netlink.FLAG_ONLINK) // the other flags are the kernel's answers, not settings
	return changed
}

// deleteLink removes an interface; one that is gone is no error.
func deleteLink(h *netlink.Handle, name string) error {
	l, err := link(h, name)
	if l == nil {
		return err
	}
	if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}

// addVeth makes a pair whose other end is in the pod's namespace, under its final name, from the start. It gives back the node's end.
func (n *node) addVeth(a *attachment, pod *os.File, hostMAC net.HardwareAddr, mtu int) (netlink.Link, error) {
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return nil, fmt.Errorf("make veth %s: %w", a.HostIf, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = a.HostIf, mtu, hostMAC
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: a.IfName, PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(int(pod.Fd())),
		PeerTxQLen: -1}
	if err := n.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make veth %s with peer %s in %s: %w", a.HostIf, a.IfName, a.Netns, err)
	}
	return veth, nil
}

// enableSysctl sets a setting of the process's network namespace to 1, and returns how to restore the old value, nil when nothing changed.
func enableSysctl(name string) (restore func() error, err error) {
	old, err := sysctl.Ensure(name, "1")
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; set it on the node before pods start", err)
	case old == "":
		return nil, nil
	}
	return func() error { _, err := sysctl.Ensure(name, old); return err }, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// setNeighbour makes a permanent neighbour entry. Permanent ones do not count against the kernel's table, which all namespaces share.
func setNeighbour(h *netlink.Handle, l netlink.Link, addr netip.Addr, mac net.HardwareAddr) error {
	err := h.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac})
	return wrap(fmt.Sprintf("set neighbour %s on %s", addr, l.Attrs().Name), err)
}

// neighbours returns the permanent entries on an interface.
func neighbours(h *netlink.Handle, l netlink.Link) (map[netip.Addr]string, error) {
	list, err := dump(func() ([]netlink.Neigh, error) { return h.NeighList(l.Attrs().Index, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours of %s: %w", l.Attrs().Name, err)
	}
	out := map[netip.Addr]string{}
	for _, e := range list {
		if ip, ok := netip.AddrFromSlice(e.IP.To4()); ok && e.State&netlink.NUD_PERMANENT != 0 {
			out[ip] = e.HardwareAddr.String()
		}
	}
	return out, nil
}
