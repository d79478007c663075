package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ports are pods' veths on a bridge, which Azure CNI's bridge mode and kubenet have in common: each a port of the bridge, with a permanent
// neighbour entry on it.
type ports struct {
	*node
	hairpin bool
	// rules are a pod's own ebtables rules; nil for none.
	rules func(a *attachment, mac net.HardwareAddr) []ebRule
}

// bridgeLink returns the bridge; nil before it is made.
func (b *ports) bridgeLink() (netlink.Link, error) {
	br, err := link(b.Handle, b.Bridge)
	if err == nil && br != nil && br.Type() != "bridge" {
		err = coded(types.ErrInvalidNetworkConfig, fmt.Errorf("set up the bridge: %s is there as a %s; name another one in the field bridge",
			b.Bridge, br.Type()))
	}
	return br, err
}

// links returns the node's NIC, and the bridge; nil before it is made.
func (b *ports) links() (master, br netlink.Link, err error) {
	if master, err = b.masterLink(); err != nil {
		return nil, nil, err
	}
	br, err = b.bridgeLink()
	return master, br, err
}

// made sets the bridge up. What failed is taken back; what succeeded can be, unless br was there: others may use it.
func (b *ports) made(br netlink.Link, setUp func(*undo) error) (undo, error) {
	var done undo
	if err := setUp(&done); err != nil {
		return nil, joined([]error{err, done.run()})
	}
	if br != nil {
		return nil, nil
	}
	return done, nil
}

// sysctls sets what services need on a bridge: iptables sees bridged packets (where br_netfilter is loaded), and the node forwards.
func (b *ports) sysctls(done *undo) error {
	for _, s := range []struct {
		name   string
		needed bool
	}{{"net/ipv4/ip_forward", true}, {"net/bridge/bridge-nf-call-iptables", false}} {
		back, err := enableSysctl(s.name)
		if errors.Is(err, fs.ErrNotExist) && !s.needed {
			continue
		}
		if err != nil {
			return err
		}
		done.add(back)
	}
	return nil
}

// create makes the bridge, up.
func (b *ports) create(mac net.HardwareAddr, mtu int, done *undo) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Flags = b.Bridge, mtu, mac, net.FlagUp
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := b.LinkAdd(br); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", b.Bridge, err)
	}
	done.add(func() error { return deleteLink(b.Handle, b.Bridge) })
	return br, nil
}

// Attach makes the pod's veth a port of the bridge, with hairpin where a pod may reach itself through a service, its neighbour entry and
// its rules.
func (b *ports) Attach(a *attachment, pod *os.File) (err error) {
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
	if err = b.LinkSetHairpin(host, b.hairpin); err != nil {
		return fmt.Errorf("set hairpin on %s: %w", a.HostIf, err)
	}
	if err = b.LinkSetUp(host); err != nil {
		return fmt.Errorf("set %s up: %w", a.HostIf, err)
	}
	if err = setNeighbour(b.Handle, br, a.Address, mac); err != nil {
		return err
	}
	return b.ebtables.add(b.podRules(a, mac))
}

func (b *ports) podRules(a *attachment, mac net.HardwareAddr) []ebRule {
	if b.rules == nil {
		return nil
	}
	return b.rules(a, mac)
}

// Detach removes the rules, the neighbour entry and the veth.
func (b *ports) Detach(a *attachment) error {
	mac, err := net.ParseMAC(a.MAC)
	if err != nil {
		return fmt.Errorf("detach %s: %w", a.HostIf, err)
	}
	return joined([]error{b.ebtables.delete(b.podRules(a, mac)), b.deleteNeighbour(a), deleteLink(b.Handle, a.HostIf)})
}

func (b *ports) deleteNeighbour(a *attachment) error {
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

// PodWants: an address of the subnet, and the way by its gateway, which Azure's network plays or the bridge is.
func (b *ports) PodWants(a *attachment) podSide {
	return podSide{
		Address: netip.PrefixFrom(a.Address, b.Subnet.Bits()),
		Routes:  []podRoute{{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: b.Gateway}},
	}
}

func (b *ports) Interfaces(a *attachment) ([]hostInterface, error) {
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

// checkPod compares the node's side of a pod with what Attach makes, and the rules with those that there are, others with them.
func (b *ports) checkPod(br netlink.Link, a *attachment, others []ebRule) []error {
	bad := []error{b.checkPort(br, a.HostIf)}
	known, err := neighbours(b.Handle, br)
	if err != nil || known[a.Address] != a.MAC {
		bad = append(bad, err, fmt.Errorf("neighbour %s on %s is %q, not permanent %s", a.Address, b.Bridge, known[a.Address], a.MAC))
	}
	mac, _ := net.ParseMAC(a.MAC)
	if rules := append(others, b.podRules(a, mac)...); len(rules) > 0 {
		missing, err := b.ebtables.missing(rules)
		bad = append(bad, err)
		for _, r := range missing {
			bad = append(bad, fmt.Errorf("ebtables rule is missing: %s", r))
		}
	}
	return bad
}

// checkPort says what is wrong with a port of the bridge.
func (b *ports) checkPort(br netlink.Link, name string) error {
	port, err := link(b.Handle, name)
	if err != nil || port == nil {
		return joined([]error{fmt.Errorf("interface %s is missing", name), err})
	}
	if port.Attrs().MasterIndex != br.Attrs().Index {
		return fmt.Errorf("interface %s is not a port of %s", name, b.Bridge)
	}
	if port.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %s is down", name)
	}
	info, err := dump(func() (netlink.Protinfo, error) { return b.LinkGetProtinfo(port) })
	if err != nil {
		return fmt.Errorf("read the port settings of %s: %w", name, err)
	}
	if info.Hairpin != (b.hairpin || name == b.Master) {
		return fmt.Errorf("hairpin is %s on %s", map[bool]string{true: "on", false: "off"}[info.Hairpin], name)
	}
	return nil
}

// Recover pairs the bridge's veths with its permanent neighbours: a pod's MAC address follows from its veth's name.
func (b *ports) Recover() ([]attachment, error) {
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
func (n *node) recoverVeths(address func(l netlink.Link, mac string) (netip.Addr, bool)) ([]attachment, error) {
	links, err := dump(n.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []attachment
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() != "veth" || !strings.HasPrefix(name, n.vethPrefix()) {
			continue
		}
		mac := podMAC(name).String()
		if addr, ok := address(l, mac); ok {
			out = append(out, attachment{IfName: "eth0", HostIf: name, MAC: mac, Address: addr})
		}
	}
	return out, nil
}
