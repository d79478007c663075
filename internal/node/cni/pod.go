package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// openPod opens a pod's namespace and a netlink socket in it.
func openPod(path string) (*os.File, *netlink.Handle, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would have us wait for its other end
	if err != nil {
		return nil, nil, coded(types.ErrInvalidNetNS, fmt.Errorf("open the container's network namespace: %w", err))
	}
	var mine, theirs unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &theirs), unix.Stat("/proc/self/ns/net", &mine)); err != nil {
		f.Close()
		return nil, nil, coded(types.ErrInvalidNetNS, fmt.Errorf("compare network namespaces: %w", err))
	}
	if mine.Dev == theirs.Dev && mine.Ino == theirs.Ino {
		f.Close()
		return nil, nil, coded(types.ErrInvalidNetNS,
			fmt.Errorf("open the container's network namespace: %s is the node's own; CNI_NETNS names the container's", path))
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(int(f.Fd())), unix.NETLINK_ROUTE)
	if err != nil {
		f.Close()
		return nil, nil, coded(types.ErrInvalidNetNS, fmt.Errorf("enter network namespace %s: %w", path, err))
	}
	return f, h, nil
}

// configurePod brings the pod's interface up with its address, routes and neighbours.
func configurePod(h *netlink.Handle, ifName string, want podSide) error {
	l, err := link(h, ifName)
	if err != nil || l == nil {
		return joined([]error{fmt.Errorf("look up the pod's interface %s: it is gone", ifName), err})
	}
	// zero: none, as upstream; nil would make the library derive one
	addr := &netlink.Addr{IPNet: ipNet(want.Address), Broadcast: net.IPv4zero.To4()}
	if err := h.AddrAdd(l, addr); err != nil {
		return fmt.Errorf("add %s to the pod's %s: %w", want.Address, ifName, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set the pod's %s up: %w", ifName, err)
	}
	if want.NoSubnetRoute {
		subnet := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(want.Address.Masked()), Scope: unix.RT_SCOPE_LINK}
		if err := h.RouteDel(subnet); err != nil {
			return fmt.Errorf("delete the pod's route to %s: %w", want.Address.Masked(), err)
		}
	}
	for addr, mac := range want.Neighbours {
		if err := setNeighbour(h, l, addr, mac); err != nil {
			return err
		}
	}
	for _, r := range want.Routes {
		route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(r.Dst), Scope: unix.RT_SCOPE_LINK}
		if r.Gateway.IsValid() {
			route.Gw, route.Scope = r.Gateway.AsSlice(), unix.RT_SCOPE_UNIVERSE
		}
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("add route %s to the pod: %w", r.Dst, err)
		}
	}
	return nil
}

// checkPod compares a pod's side with what it should have.
func checkPod(path string, a *attachment, want podSide) []error {
	f, h, err := openPod(path)
	if err != nil {
		return []error{err}
	}
	defer f.Close()
	defer h.Close()
	l, err := link(h, a.IfName)
	if err != nil || l == nil {
		return []error{fmt.Errorf("the pod's interface %s is missing", a.IfName), err}
	}
	var bad []error
	if l.Attrs().Flags&net.FlagUp == 0 {
		bad = append(bad, fmt.Errorf("the pod's interface %s is down", a.IfName))
	}
	if got := l.Attrs().HardwareAddr.String(); got != a.MAC {
		bad = append(bad, fmt.Errorf("the pod's interface %s has MAC address %s, not %s", a.IfName, got, a.MAC))
	}
	bad = append(bad, checkPodAddress(h, l, want), checkPodNeighbours(h, l, want))
	return append(bad, checkPodRoutes(h, l, want)...)
}

func checkPodAddress(h *netlink.Handle, l netlink.Link, want podSide) error {
	list, err := addrs(h, l)
	if err != nil {
		return err
	}
	for _, a := range list {
		if a.IPNet.String() == want.Address.String() {
			return nil
		}
	}
	return fmt.Errorf("the pod's interface %s lacks address %s", l.Attrs().Name, want.Address)
}

func checkPodNeighbours(h *netlink.Handle, l netlink.Link, want podSide) error {
	known, err := neighbours(h, l)
	if err != nil {
		return err
	}
	for addr, mac := range want.Neighbours {
		if known[addr] != mac.String() {
			return fmt.Errorf("the pod's neighbour %s is %q, not permanent %s", addr, known[addr], mac)
		}
	}
	return nil
}

func checkPodRoutes(h *netlink.Handle, l netlink.Link, want podSide) []error {
	all, err := dump(func() ([]netlink.Route, error) { return h.RouteList(l, netlink.FAMILY_V4) })
	if err != nil {
		return []error{fmt.Errorf("list the pod's routes: %w", err)}
	}
	have := map[podRoute]bool{}
	for _, r := range all {
		route := podRoute{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
		if r.Dst != nil {
			ip, _ := netip.AddrFromSlice(r.Dst.IP.To4())
			ones, _ := r.Dst.Mask.Size()
			route.Dst = netip.PrefixFrom(ip, ones)
		}
		route.Gateway, _ = netip.AddrFromSlice(r.Gw.To4())
		have[route] = true
	}
	var bad []error
	for _, r := range want.Routes {
		if !have[r] {
			bad = append(bad, fmt.Errorf("the pod's route %s is missing", r))
		}
	}
	if want.NoSubnetRoute && have[podRoute{Dst: want.Address.Masked()}] {
		bad = append(bad, fmt.Errorf("the pod has a route to %s, which goes past the node", want.Address.Masked()))
	}
	return bad
}

// String returns the route as ip route prints it.
func (r podRoute) String() string {
	if r.Gateway.IsValid() {
		return fmt.Sprintf("%s via %s", r.Dst, r.Gateway)
	}
	return r.Dst.String()
}
