package vnet

import "net/netip"

// The virtual network of the machines that container groups run on, and its only subnet.
const (
	ContainerHostsVNet   = "container-hosts"
	ContainerHostsSubnet = "hosts"
)

// ContainerHosts returns that network, in a range that no customer has. Whoever runs container groups needs it.
func ContainerHosts(p netip.Prefix) VNet {
	return VNet{
		Name: ContainerHostsVNet, Platform: true, AddressPrefixes: []netip.Prefix{p}, Subnets: []Subnet{{Name: ContainerHostsSubnet, Prefix: p}},
	}
}

// ContainerHostRules are the iptables-restore input of the machine that a container group runs on: what the group sends to the internet by
// its own link has the machine's address.
const ContainerHostRules = "*nat\n:POSTROUTING ACCEPT\n" +
	"-A POSTROUTING -s 169.254.0.0/16 -o eth0 -m comment --comment \"" + groupsWay + "\" -j MASQUERADE\nCOMMIT\n"
