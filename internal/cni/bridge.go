package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridge is Azure CNI's bridge mode: the node's NIC and the pods' veths are ports of one bridge, which has the NIC's MAC address and its IP addresses. Azure lets only
// the NIC's own MAC address out and answers every ARP itself, hence the ebtables rules.
type bridge struct{ *Node }

// Ensure makes the bridge and lets it take over from the master. The quick look at the links runs at every ADD; the rules are listed only when
// something was missing or the state says that it never was complete.
func (b *bridge) Ensure(intact bool) (undo, error) {
	master, err := b.masterLink()
	if err != nil {
		return nil, err
	}
	br, err := link(b.Handle, b.Bridge)
	if err != nil {
		return nil, err
	}
	if br != nil && br.Type() != "bridge" {
		return nil, coded(types.ErrInvalidNetworkConfig, fmt.Errorf("set up the bridge: %s is there as a %s; name another one in the field bridge", b.Bridge, br.Type()))
	}
	if intact && br != nil && br.Attrs().Flags&net.FlagUp != 0 && master.Attrs().MasterIndex == br.Attrs().Index {
		if left, err := addrs(b.Handle, master); err == nil && len(left) == 0 {
			return nil, nil
		}
	}
	var done undo
	if err := b.setUp(master, br, &done); err != nil {
		return nil, joined([]error{err, done.run()})
	}
	if br != nil { // it was there: others may use it
		return nil, nil
	}
	return done, nil
}

func (b *bridge) setUp(master, br netlink.Link, done *undo) error {
	if err := b.sysctls(done); err != nil {
		return err
	}
	var err error
	if br == nil {
		if br, err = b.create(master, done); err != nil {
			return err
		}
	}
	hosts, err := b.hostAddrs(master, br)
	if err != nil {
		return err
	}
	rules, err := b.ebtables.missing(nodeRules(b.Master, master.Attrs().HardwareAddr, hosts))
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

// sysctls sets what services need on a bridge: iptables sees bridged packets (where br_netfilter is loaded), and the node forwards.
func (b *bridge) sysctls(done *undo) error {
	for _, s := range []struct {
		key    string
		needed bool
	}{{"net.ipv4.ip_forward", true}, {"net.bridge.bridge-nf-call-iptables", false}} {
		back, err := setSysctl(s.key, "1", s.needed)
		if err != nil {
			return err
		}
		done.add(back)
	}
	return nil
}

func (b *bridge) create(master netlink.Link, done *undo) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Flags = b.Bridge, master.Attrs().MTU, master.Attrs().HardwareAddr, net.FlagUp
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := b.LinkAdd(br); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", b.Bridge, err)
	}
	done.add(func() error { return deleteLink(b.Handle, b.Bridge) })
	return br, nil
}

// release gives the addresses back to the master.
func (b *bridge) release(master, br netlink.Link) error {
	if err := b.LinkSetNoMaster(master); err != nil {
		return fmt.Errorf("take %s out of %s: %w", b.Master, b.Bridge, err)
	}
	return moveLayer3(b.Handle, br, master)
}

// hostAddrs are the node's own IPv4 addresses, wherever the move from one link to the other stands.
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

// Attach makes the pod's veth a port of the bridge with hairpin (a pod may reach itself through a service), its neighbour entry and its rules.
func (b *bridge) Attach(a *Attachment, pod *os.File) (err error) {
	br, err := link(b.Handle, b.Bridge)
	if err != nil || br == nil {
		return joined([]error{fmt.Errorf("look up bridge %s: it is gone", b.Bridge), err})
	}
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return err
	}
	host, err := b.addVeth(a, pod, nil, br.Attrs().MTU)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = joined([]error{err, b.Detach(a)})
		}
	}()
	if err = b.LinkSetMaster(host, br); err != nil {
		return fmt.Errorf("make %s a port of %s: %w", a.HostIf, b.Bridge, err)
	}
	if err = b.LinkSetHairpin(host, true); err != nil {
		return fmt.Errorf("set hairpin on %s: %w", a.HostIf, err)
	}
	if err = b.LinkSetUp(host); err != nil {
		return fmt.Errorf("set %s up: %w", a.HostIf, err)
	}
	if err = setNeighbour(b.Handle, br, a.Address, mac); err != nil {
		return err
	}
	return b.ebtables.add(podRules(b.Master, a.Address, mac))
}

// Detach removes the rules, the neighbour entry and the veth.
func (b *bridge) Detach(a *Attachment) error {
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return fmt.Errorf("detach %s: %w", a.HostIf, err)
	}
	return joined([]error{b.ebtables.delete(podRules(b.Master, a.Address, mac)), b.deleteNeighbour(a), deleteLink(b.Handle, a.HostIf)})
}

func (b *bridge) deleteNeighbour(a *Attachment) error {
	br, err := link(b.Handle, b.Bridge)
	if br == nil {
		return err
	}
	err = b.NeighDel(&netlink.Neigh{LinkIndex: br.Attrs().Index, IP: a.Address.AsSlice()})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return wrap(fmt.Sprintf("delete neighbour %s on %s", a.Address, b.Bridge), err)
}

// PodWants: an address of the subnet, whose gateway Azure's network plays; ARP does the rest.
func (b *bridge) PodWants(a *Attachment) PodSide {
	return PodSide{
		Address: netip.PrefixFrom(a.Address, b.Subnet.Bits()),
		Routes:  []PodRoute{{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: b.Gateway}},
	}
}

func (b *bridge) Interfaces(a *Attachment) ([]hostInterface, error) {
	var out []hostInterface
	for _, name := range []string{b.Bridge, a.HostIf} {
		l, err := link(b.Handle, name)
		if err != nil || l == nil {
			return nil, joined([]error{fmt.Errorf("look up interface %s: it is gone", name), err})
		}
		out = append(out, hostInterface{name, l.Attrs().HardwareAddr.String()})
	}
	return out, nil
}

func (b *bridge) Check(a *Attachment) []error {
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
		bad = append(bad, fmt.Errorf("bridge %s has MAC address %s, %s has %s", b.Bridge, br.Attrs().HardwareAddr, b.Master, master.Attrs().HardwareAddr))
	}
	if left, err := addrs(b.Handle, master); err != nil || len(left) > 0 {
		bad = append(bad, err, fmt.Errorf("%d addresses are on %s instead of %s", len(left), b.Master, b.Bridge))
	}
	hosts, err := b.hostAddrs(br)
	if err != nil || len(hosts) == 0 {
		bad = append(bad, err, fmt.Errorf("bridge %s has no address", b.Bridge))
	}
	bad = append(bad, b.checkPort(br, b.Master), b.checkPort(br, a.HostIf))
	known, err := neighbours(b.Handle, br)
	if err != nil || known[a.Address] != a.MAC {
		bad = append(bad, err, fmt.Errorf("neighbour %s on %s is %q, not permanent %s", a.Address, b.Bridge, known[a.Address], a.MAC))
	}
	mac, _ := net.ParseMAC(a.MAC)
	missing, err := b.ebtables.missing(append(nodeRules(b.Master, master.Attrs().HardwareAddr, hosts), podRules(b.Master, a.Address, mac)...))
	bad = append(bad, err)
	for _, r := range missing {
		bad = append(bad, fmt.Errorf("ebtables rule is missing: -t nat -A %s", r))
	}
	return bad
}

// checkPort says what is wrong with a port of the bridge.
func (b *bridge) checkPort(br netlink.Link, name string) error {
	port, err := link(b.Handle, name)
	if err != nil || port == nil {
		return joined([]error{fmt.Errorf("interface %s is missing", name), err})
	}
	if port.Attrs().MasterIndex != br.Attrs().Index {
		return fmt.Errorf("interface %s is no port of %s", name, b.Bridge)
	}
	if port.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %s is down", name)
	}
	info, err := dump(func() (netlink.Protinfo, error) { return b.LinkGetProtinfo(port) })
	if err != nil {
		return fmt.Errorf("read the port settings of %s: %w", name, err)
	}
	if !info.Hairpin {
		return fmt.Errorf("hairpin is off on %s", name)
	}
	return nil
}

// Recover pairs the bridge's veths with its permanent neighbours: a pod's MAC address follows from its veth's name.
func (b *bridge) Recover() ([]Attachment, error) {
	br, err := link(b.Handle, b.Bridge)
	if br == nil {
		return nil, err
	}
	known, err := neighbours(b.Handle, br)
	if err != nil {
		return nil, err
	}
	byMAC := map[string]netip.Addr{}
	for addr, mac := range known {
		byMAC[mac] = addr
	}
	return b.recoverVeths(func(l netlink.Link, mac string) (netip.Addr, bool) {
		addr, ok := byMAC[mac]
		return addr, ok && l.Attrs().MasterIndex == br.Attrs().Index
	})
}

// recoverVeths makes an attachment of every pod's veth whose address is found.
func (n *Node) recoverVeths(address func(l netlink.Link, mac string) (netip.Addr, bool)) ([]Attachment, error) {
	links, err := dump(n.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []Attachment
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() != "veth" || !strings.HasPrefix(name, "azv") {
			continue
		}
		mac := podMAC(name).String()
		if addr, ok := address(l, mac); ok {
			out = append(out, Attachment{IfName: "eth0", HostIf: name, MAC: mac, Address: addr})
		}
	}
	return out, nil
}
