package instances

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/vnet"
)

// The network of the machines that groups run on: Azure's own, which no customer has. RFC 6598's range is nobody's in a virtual network's
// default routes.
const (
	hostsVNet   = "container-hosts"
	hostsSubnet = "hosts"
)

// HostsPrefix is the range of that network's addresses.
var HostsPrefix = netip.MustParsePrefix("100.64.0.0/16")

// HostsNetwork is the network of the machines that groups run on; it must be in the network that a Groups works on.
func HostsNetwork() vnet.VNet {
	return vnet.VNet{
		Name: hostsVNet, Platform: true, AddressPrefixes: []netip.Prefix{HostsPrefix},
		Subnets: []vnet.Subnet{{Name: hostsSubnet, Prefix: HostsPrefix}},
	}
}

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

// hostRules translate what a group sends to the internet into the machine's own address.
const hostRules = "*nat\n:POSTROUTING ACCEPT\n-A POSTROUTING -s 169.254.0.0/16 -o eth0 -m comment --comment \"container host: the group's way to the internet\" -j MASQUERADE\nCOMMIT\n"

// nics are the names of the machines of a group, and of their NICs as vnet names them.
func (g *group) hostMachine() string { return g.name + "-host" }

func nicOf(machine string) string { return machine + "-nic" }

// allocate gives the group its addresses: of its subnet, the one that it had or the first that is free, and of its machine's network.
func (g *group) allocate() (netip.Addr, error) {
	network, subnet, ok := parseSubnet(g.spec.Properties.SubnetIDs[0].ID)
	if !ok {
		return netip.Addr{}, fmt.Errorf("subnet %s: no such id", g.spec.Properties.SubnetIDs[0].ID)
	}
	var address netip.Addr
	err := g.cfg.Network.Update(func(n *vnet.Network) error {
		nic, err := ensureNIC(n, g.name, network, subnet, g.address())
		if err != nil {
			return err
		}
		for i := range n.NICs {
			if n.NICs[i].Name == nic.Name {
				n.NICs[i].ContainerGroup = true
			}
		}
		address = nic.Primary().Address
		_, err = ensureNIC(n, g.hostMachine(), hostsVNet, hostsSubnet, netip.Addr{})
		return err
	})
	return address, err
}

func ensureNIC(n *vnet.Network, machine, network, subnet string, want netip.Addr) (vnet.NIC, error) {
	if nic, ok := n.NIC(nicOf(machine)); ok {
		return nic, nil
	}
	if want.IsValid() {
		return n.AllocateNICAt(machine, network, subnet, want, 1)
	}
	return n.AllocateNIC(machine, network, subnet, 1)
}

// connect makes the group's namespace and its machine's, and the three links: group to subnet, machine to its network, group to machine.
// What is there already stays.
func (g *group) connect() error {
	space, _, err := kernel.EnsureNamespace(filepath.Join(g.cfg.NetNSDir, g.name))
	if err != nil {
		return err
	}
	host, _, err := kernel.EnsureNamespace(filepath.Join(g.cfg.HostsDir, g.name))
	if err != nil {
		return errors.Join(err, space.Close())
	}
	g.mu.Lock()
	g.space, g.host = space, host
	g.mu.Unlock()
	// The group's own link first, so that it is the first in the group, too.
	if err := g.cfg.Network.AttachNIC(nicOf(g.name), space); err != nil {
		return err
	}
	if err := g.cfg.Network.AttachNIC(nicOf(g.hostMachine()), host); err != nil {
		return err
	}
	if _, err := kernel.EnsureVeth(kernel.LinkEnd{Namespace: host, Name: hostLink}, kernel.LinkEnd{Namespace: space, Name: groupLink}, vnet.MTU); err != nil {
		return err
	}
	return errors.Join(applyHost(host), applyGroup(space))
}

func applyHost(host *kernel.Namespace) error {
	err := host.Apply(kernel.State{
		Sysctls: []kernel.Sysctl{
			{Key: "net/ipv4/ip_forward", Value: "1"},
			{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}, {Key: "net/ipv4/conf/" + hostLink + "/rp_filter", Value: "0"},
		},
		Links:     []string{hostLink},
		Addresses: []kernel.Address{{Link: hostLink, Prefix: netip.PrefixFrom(hostAddress, linkLocal.Bits())}},
	})
	if err != nil {
		return err
	}
	return host.RestoreIPTables(hostRules, false)
}

func applyGroup(space *kernel.Namespace) error {
	return space.Apply(kernel.State{
		Links:     []string{groupLink},
		Addresses: []kernel.Address{{Link: groupLink, Prefix: netip.PrefixFrom(groupAddress, linkLocal.Bits())}},
		Routes:    []kernel.Route{{Destination: anywhere, Gateway: hostAddress, Link: groupLink}},
	})
}

// disconnect takes the namespaces and the addresses away, also those that an earlier process made.
func (g *group) disconnect() error {
	g.mu.Lock()
	for _, ns := range []**kernel.Namespace{&g.space, &g.host} {
		if *ns != nil {
			(*ns).Close()
			*ns = nil
		}
	}
	g.mu.Unlock()
	return errors.Join(
		g.cfg.Network.Update(func(n *vnet.Network) error {
			n.ReleaseNIC(nicOf(g.name))
			n.ReleaseNIC(nicOf(g.hostMachine()))
			return nil
		}),
		kernel.RemoveNamespace(filepath.Join(g.cfg.NetNSDir, g.name)),
		kernel.RemoveNamespace(filepath.Join(g.cfg.HostsDir, g.name)),
	)
}
