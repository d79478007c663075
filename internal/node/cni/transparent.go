package cni

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sysctl"
)

// Azure CNI's fixed values of transparent mode (network/transparent_endpointclient_linux.go upstream).
var (
	virtualGateway = netip.MustParseAddr("169.254.1.1")
	hostVethMAC    = net.HardwareAddr{0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}
)

// transparentMode is Azure CNI's transparent mode: no bridge; the node routes to each pod by its veth, and the pod sends everything to
// 169.254.1.1, which is the veth's
// other end. Networks beyond the node must send pods' packets to the node's own MAC address: nothing here answers ARP for pods on the NIC.
type transparentMode struct{ *node }

// Ready: the sysctl is written again each time, which costs no more than looking at it.
func (t *transparentMode) Ready() (bool, error) { return false, nil }

// Ensure lets the node forward.
func (t *transparentMode) Ensure() (undo, error) {
	if _, err := t.masterLink(); err != nil {
		return nil, err
	}
	back, err := enableSysctl("net/ipv4/ip_forward")
	var u undo
	u.add(back)
	return u, err
}

// Attach makes the veth, proxy ARP on it, and the route and neighbour entry for the pod.
func (t *transparentMode) Attach(a *attachment, pod *os.File) (err error) {
	master, err := t.masterLink()
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return err
	}
	host, err := t.addVeth(a, pod, hostVethMAC, master.Attrs().MTU)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = joined([]error{err, t.Detach(a)})
		}
	}()
	if _, err = enableSysctl("net/ipv4/conf/" + a.HostIf + "/proxy_arp"); err != nil {
		return err
	}
	if err = t.LinkSetUp(host); err != nil {
		return fmt.Errorf("set %s up: %w", a.HostIf, err)
	}
	route := &netlink.Route{LinkIndex: host.Attrs().Index, Dst: ipNet(hostPrefix(a.Address)), Scope: unix.RT_SCOPE_LINK}
	if err = t.RouteAdd(route); err != nil {
		return fmt.Errorf("add route %s by %s: %w", hostPrefix(a.Address), a.HostIf, err)
	}
	return setNeighbour(t.Handle, host, a.Address, mac)
}

// Detach removes the veth; its routes, entries and settings go with it.
func (t *transparentMode) Detach(a *attachment) error { return deleteLink(t.Handle, a.HostIf) }

func (t *transparentMode) PodWants(a *attachment) podSide {
	return podSide{
		Address:       netip.PrefixFrom(a.Address, t.Subnet.Bits()),
		NoSubnetRoute: true,
		Routes: []podRoute{
			{Dst: hostPrefix(virtualGateway)},
			{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: virtualGateway},
		},
		Neighbours: map[netip.Addr]net.HardwareAddr{virtualGateway: hostVethMAC},
	}
}

func (t *transparentMode) Interfaces(a *attachment) ([]hostInterface, error) {
	return []hostInterface{{a.HostIf, hostVethMAC.String()}}, nil
}

func (t *transparentMode) Check(a *attachment) []error {
	host, err := link(t.Handle, a.HostIf)
	if err != nil || host == nil {
		return []error{fmt.Errorf("interface %s is missing", a.HostIf), err}
	}
	var bad []error
	if host.Attrs().Flags&net.FlagUp == 0 {
		bad = append(bad, fmt.Errorf("interface %s is down", a.HostIf))
	}
	if got := host.Attrs().HardwareAddr.String(); got != hostVethMAC.String() {
		bad = append(bad, fmt.Errorf("interface %s has MAC address %s, not %s", a.HostIf, got, hostVethMAC))
	}
	routed, err := t.routed()
	if err != nil || routed[a.Address] != host.Attrs().Index {
		bad = append(bad, err, fmt.Errorf("route %s by %s is missing", hostPrefix(a.Address), a.HostIf))
	}
	for _, key := range []string{"conf/" + a.HostIf + "/proxy_arp", "ip_forward"} {
		if v, err := sysctl.Read("net/ipv4/" + key); err != nil || v != "1" {
			bad = append(bad, err, fmt.Errorf("sysctl net/ipv4/%s is not 1", key))
		}
	}
	return bad
}

// routed returns the host routes of the main table: address to interface index.
func (t *transparentMode) routed() (map[netip.Addr]int, error) {
	all, err := dump(func() ([]netlink.Route, error) { return t.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := map[netip.Addr]int{}
	for _, r := range all {
		if r.Dst == nil {
			continue
		}
		if ip, ok := netip.AddrFromSlice(r.Dst.IP.To4()); ok {
			if ones, _ := r.Dst.Mask.Size(); ones == 32 {
				out[ip] = r.LinkIndex
			}
		}
	}
	return out, nil
}

// Recover takes the address of each veth from its route.
func (t *transparentMode) Recover() ([]attachment, error) {
	routed, err := t.routed()
	if err != nil {
		return nil, err
	}
	byLink := map[int]netip.Addr{}
	for addr, index := range routed {
		byLink[index] = addr
	}
	return t.recoverVeths(func(l netlink.Link, _ string) (netip.Addr, bool) {
		addr, ok := byLink[l.Attrs().Index]
		return addr, ok
	})
}
