package netns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Loopback is lo's address.
var Loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// LostRoutes returns, in the words of ip(8), what the namespace lacks although the kernel made it: the routes to its IPv4
// addresses and to their prefixes, and lo's state UP. It looks at the addresses that the function chooses, on whatever link; lo's is [Loopback].
func (n *Namespace) LostRoutes(isChosen func(netip.Addr) bool) ([]string, error) {
	isUp, lost, err := n.lostRoutes(isChosen)
	if err != nil {
		return nil, fmt.Errorf("compare the kernel's routes of %s: %w", n.path, err)
	}
	var texts []string
	if !isUp && isChosen(Loopback) {
		texts = append(texts, "state UP of link lo")
	}
	for _, r := range lost {
		texts = append(texts, r.text)
	}
	return texts, nil
}

// RestoreRoutes makes what LostRoutes returns, as the kernel makes it.
func (n *Namespace) RestoreRoutes(isChosen func(netip.Addr) bool) error {
	if err := n.loopbackUp(); err != nil { // with it come the routes to its addresses
		return err
	}
	_, lost, err := n.lostRoutes(isChosen)
	if err != nil {
		return fmt.Errorf("restore the kernel's routes of %s: %w", n.path, err)
	}
	h, err := n.Handle()
	if err != nil {
		return err
	}
	for _, r := range lost {
		if err := h.RouteReplace(&r.route); err != nil {
			return fmt.Errorf("restore %s in %s: %w", r.text, n.path, err)
		}
	}
	return nil
}

// A kernelRoute is a route that the kernel made with an address.
type kernelRoute struct {
	route netlink.Route
	text  string
}

// lostRoutes reports whether lo is up, and returns the lost routes: of lo's addresses only where it is up.
func (n *Namespace) lostRoutes(isChosen func(netip.Addr) bool) (isLoopbackUp bool, lost []kernelRoute, err error) {
	h, err := n.Handle()
	if err != nil {
		return false, nil, err
	}
	links, err := h.LinkList()
	if err != nil {
		return false, nil, fmt.Errorf("list links: %w", err)
	}
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return false, nil, fmt.Errorf("list routes: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp == 0 {
			continue // the kernel removes the routes of a link that goes down
		}
		isLoopback := l.Attrs().Flags&net.FlagLoopback != 0
		isLoopbackUp = isLoopbackUp || isLoopback
		list, err := h.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return false, nil, fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range list {
			if !isChosen(toAddr(a.IP)) {
				continue
			}
			for _, want := range kernelRoutes(l, a, isLoopback) {
				if !slices.ContainsFunc(routes, want.isMadeBy) {
					lost = append(lost, want)
				}
			}
		}
	}
	return isLoopbackUp, lost, nil
}

// kernelRoutes returns the routes that the kernel makes with an address of a link that is up, except broadcast ones (fib_add_ifaddr in
// net/ipv4/fib_frontend.c).
func kernelRoutes(l netlink.Link, a netlink.Addr, isLoopback bool) []kernelRoute {
	prefix, link := toPrefix(a.IPNet), l.Attrs().Name
	made := func(table, kind int, scope netlink.Scope, to netip.Prefix, text string) kernelRoute {
		return kernelRoute{netlink.Route{Table: table, Type: kind, Scope: scope, Protocol: unix.RTPROT_KERNEL, LinkIndex: l.Attrs().Index,
			Dst: toIPNet(to), Src: a.IP}, text}
	}
	own := netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen())
	all := []kernelRoute{made(unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, unix.RT_SCOPE_HOST, own,
		fmt.Sprintf("route local %s dev %s", prefix.Addr(), link))}
	hasPrefixRoute := prefix != own && a.Flags&(unix.IFA_F_SECONDARY|unix.IFA_F_NOPREFIXROUTE) == 0
	switch {
	case hasPrefixRoute && isLoopback:
		all = append(all, made(unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, unix.RT_SCOPE_HOST, prefix.Masked(),
			fmt.Sprintf("route local %s dev %s", prefix.Masked(), link)))
	case hasPrefixRoute:
		all = append(all, made(unix.RT_TABLE_MAIN, unix.RTN_UNICAST, unix.RT_SCOPE_LINK, prefix.Masked(),
			fmt.Sprintf("route %s dev %s", prefix.Masked(), link)))
	}
	return all
}

// isMadeBy reports whether a route of the kernel's tables leads where the lost one led, whoever made it.
func (k kernelRoute) isMadeBy(r netlink.Route) bool {
	return r.Table == k.route.Table && r.Type == k.route.Type && r.LinkIndex == k.route.LinkIndex && r.Gw == nil &&
		toPrefix(r.Dst) == toPrefix(k.route.Dst)
}
