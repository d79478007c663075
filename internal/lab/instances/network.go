package instances

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

// The link between a group and its machine. All groups have the same addresses there.
const (
	groupLink = "eth1"
	hostLink  = "group"
	uplink    = "eth0"
)

var (
	linkLocal    = netip.MustParsePrefix("169.254.0.0/16")
	groupAddress = netip.MustParseAddr("169.254.0.4")
	hostAddress  = netip.MustParseAddr("169.254.0.1")
	anywhere     = netip.MustParsePrefix("0.0.0.0/0")
)

// machineName and hostMachine are what the network calls a group and the machine that it runs on. The names of groups, VMs and nodes have
// no dot, so that nothing else is called so.
func (g *group) machineName() string { return g.name + ".group" }

func (g *group) hostMachine() string { return g.name + ".host" }

// nicOf returns the name of a machine's NIC (vnet.Network.AllocateNIC).
func nicOf(machine string) string { return machine + "-nic" }

// allocate gives the group its addresses: of its subnet, the one that it had or the first that is free, and of its machine's network.
func (g *group) allocate() (netip.Addr, error) {
	network, subnet, ok := parseSubnet(g.spec.Properties.SubnetIDs[0].ID)
	if !ok {
		return netip.Addr{}, fmt.Errorf("subnet %s: no such id", g.spec.Properties.SubnetIDs[0].ID)
	}
	var address netip.Addr
	err := g.cfg.Network.Update(func(n *vnet.Network) error {
		nic, err := ensureNIC(n, vnet.NIC{Machine: g.machineName(), VNet: network, Subnet: subnet, ContainerGroup: true}, g.address())
		if err != nil {
			return err
		}
		address = nic.Primary().Address
		_, err = ensureNIC(n, vnet.NIC{Machine: g.hostMachine(), VNet: vnet.ContainerHostsVNet, Subnet: vnet.ContainerHostsSubnet}, netip.Addr{})
		return err
	})
	return address, err
}

// ensureNIC finds a machine's NIC, or makes it, with the address that is wanted if that is valid. A NIC of its name that is another's is an
// error.
func ensureNIC(n *vnet.Network, of vnet.NIC, want netip.Addr) (vnet.NIC, error) {
	nic, there := n.NIC(nicOf(of.Machine))
	if there && (nic.Machine != of.Machine || nic.VNet != of.VNet || nic.Subnet != of.Subnet || nic.ContainerGroup != of.ContainerGroup) {
		return nic, fmt.Errorf("NIC %s is that of %s in %s/%s", nic.Name, nic.Machine, nic.VNet, nic.Subnet)
	}
	if there {
		return nic, nil
	}
	var err error
	if want.IsValid() {
		nic, err = n.AllocateNICAt(of.Machine, of.VNet, of.Subnet, want, 1)
	} else {
		nic, err = n.AllocateNIC(of.Machine, of.VNet, of.Subnet, 1)
	}
	if err != nil {
		return nic, err
	}
	nic.ContainerGroup = of.ContainerGroup
	n.NICs[slices.IndexFunc(n.NICs, func(o vnet.NIC) bool { return o.Name == nic.Name })] = nic
	return nic, nil
}

// release takes the group's NIC and its machine's out of a network, and no other.
func (g *group) release(n *vnet.Network) {
	if nic, ok := n.NIC(nicOf(g.machineName())); ok && nic.Machine == g.machineName() && nic.ContainerGroup {
		n.ReleaseNIC(nic.Name)
	}
	if nic, ok := n.NIC(nicOf(g.hostMachine())); ok && nic.Machine == g.hostMachine() && nic.VNet == vnet.ContainerHostsVNet {
		n.ReleaseNIC(nic.Name)
	}
}

// connect makes the namespace of the group's host, and its link to its network. What is there already stays. A pod that an earlier process
// made the network of is entered.
func (g *group) connect(ctx context.Context) error {
	g.closeNamespaces() // those of a try that failed
	host, _, err := netns.Ensure(filepath.Join(g.cfg.HostsDir, g.name))
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.host = host
	g.mu.Unlock()
	if err := g.cfg.Network.AttachNIC(nicOf(g.hostMachine()), host); err != nil {
		return err
	}
	if err := g.enter(ctx); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// enter makes the network of the namespace that is mounted as the group's: its links to its subnet and to its host, and the service proxy.
// What is there already stays. fs.ErrNotExist is in the error's chain where none is mounted.
func (g *group) enter(ctx context.Context) error {
	space, err := netns.Open(filepath.Join(g.cfg.NetNSDir, g.name))
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.space = space
	host := g.host
	g.mu.Unlock()
	if err := space.ResetSettings(); err != nil {
		return err
	}
	// The group's own link first, so that it is the first in the group, too.
	if err := g.cfg.Network.AttachNIC(nicOf(g.machineName()), space); err != nil {
		return err
	}
	outside, inside := netns.LinkEnd{Namespace: host, Name: hostLink}, netns.LinkEnd{Namespace: space, Name: groupLink}
	if err := netns.EnsureVeth(outside, inside, vnet.MTU); err != nil {
		return err
	}
	if err := errors.Join(g.applyHost(ctx, host), applyGroup(space)); err != nil {
		return err
	}
	return g.startProxy()
}

func (g *group) applyHost(ctx context.Context, host *netns.Namespace) error {
	err := host.Apply(netns.State{
		Sysctls: []netns.Sysctl{
			{Key: "net/ipv4/ip_forward", Value: "1"},
			{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}, {Key: "net/ipv4/conf/" + hostLink + "/rp_filter", Value: "0"},
		},
		Links:     []string{hostLink},
		Addresses: []netns.Address{{Link: hostLink, Prefix: netip.PrefixFrom(hostAddress, linkLocal.Bits())}},
		// The kubelet's way to the group, for its probes.
		Routes: []netns.Route{{Destination: netip.PrefixFrom(g.address(), g.address().BitLen()), Link: hostLink}},
	})
	if err != nil {
		return err
	}
	return ruleset.RestoreIPTables(ctx, host, vnet.ContainerHostRules, false)
}

func applyGroup(space *netns.Namespace) error {
	return space.Apply(netns.State{
		Links:     []string{groupLink},
		Addresses: []netns.Address{{Link: groupLink, Prefix: netip.PrefixFrom(groupAddress, linkLocal.Bits())}},
		Routes:    []netns.Route{{Destination: anywhere, Gateway: hostAddress, Link: groupLink}},
	})
}

// closeNamespaces closes the handles. The namespaces stay.
func (g *group) closeNamespaces() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ns := range []**netns.Namespace{&g.space, &g.host} {
		if *ns != nil {
			(*ns).Close()
			*ns = nil
		}
	}
}

// disconnect takes the namespaces and the addresses away, also those that an earlier process made.
func (g *group) disconnect() error {
	g.closeNamespaces()
	return errors.Join(
		g.cfg.Network.Update(func(n *vnet.Network) error {
			g.release(n)
			return nil
		}),
		netns.Remove(filepath.Join(g.cfg.NetNSDir, g.name)),
		netns.Remove(filepath.Join(g.cfg.HostsDir, g.name)),
	)
}
