package vnet

import "net/netip"

// Network is everything that Azure knows of one lab's network. It is data: copy it with Clone, change it with its methods or
// by hand, and look whether it still makes sense with Validate.
type Network struct {
	Subscription      string // a GUID
	ResourceGroup     string // the cluster's
	NodeResourceGroup string // MC_…: where the nodes' NICs and the load balancer are
	Location          string // "westeurope"

	VNets       []VNet
	RouteTables []RouteTable
	// SecurityGroups are the network security groups, for the subnets and NICs that name them.
	SecurityGroups []SecurityGroup
	NICs           []NIC
	PublicIPs      []PublicIP
	// NATGateways are the NAT gateways, for the subnets that name them.
	NATGateways []NATGateway `json:",omitempty"`
	// PublicAddresses are those that AllocatePublicIP gives out, in this order; none means 203.0.113.10 to .253.
	PublicAddresses []netip.Addr
	LoadBalancers   []LoadBalancer
	// DefaultOutbound is the address that machines without any other outbound address appear as (Azure's default outbound
	// access).
	DefaultOutbound netip.Addr
	// PrivateEndpoints are addresses of the internet side that machines reach without a way to the internet, as by private endpoints.
	PrivateEndpoints []netip.Addr `json:",omitempty"`
	// Attributes are what clients of Azure Resource Manager wrote of resources and the network has no field for: JSON, by the resource's ID
	// in lower case.
	Attributes map[string]string `json:",omitempty"`
	// Hosts are what is on the internet side: client hosts, servers, and the cluster's control plane.
	Hosts []Host
	// Overlay is the range of pods with Azure CNI Overlay, which is in no virtual network. It is invalid for none. No ARM resource has it.
	Overlay netip.Prefix `json:",omitzero"`
}

// VNet is a virtual network.
type VNet struct {
	Name            string
	ResourceGroup   string
	AddressPrefixes []netip.Prefix
	Subnets         []Subnet
	Peerings        []Peering
	// Platform says that the network is Azure's own, what its services run on: no resource of a customer's.
	Platform bool `json:",omitempty"`
}

// Subnet is a part of a virtual network. Azure keeps its first four addresses and its last one; the second is the gateway.
type Subnet struct {
	Name       string
	Prefix     netip.Prefix
	RouteTable string // name of a RouteTable, "" for none
	// SecurityGroup is the name of a SecurityGroup, "" for none.
	SecurityGroup string
	// NATGateway is the name of a NATGateway, "" for none.
	NATGateway string `json:",omitempty"`
	// Private takes default outbound access from the subnet's machines.
	Private bool `json:",omitempty"`
}

// RouteTable holds user-defined routes, for the subnets that name it. A table that no subnet names does nothing.
type RouteTable struct {
	Name   string
	Routes []UserRoute
}

// UserRoute is a user-defined route. It has its way before a system route of the same prefix; otherwise the longest prefix has.
type UserRoute struct {
	Name        string
	Prefix      netip.Prefix
	NextHopType string     // NextHopAppliance, NextHopVNetLocal, NextHopInternet or NextHopNone
	NextHop     netip.Addr // of a NIC with IP forwarding; NextHopAppliance only
}

// Types of next hops, as Azure writes them.
const (
	NextHopAppliance = "VirtualAppliance" // to the NIC that has NextHop
	NextHopVNetLocal = "VnetLocal"        // within the virtual network
	NextHopPeering   = "VNetPeering"      // to a peered virtual network; system routes only
	NextHopInternet  = "Internet"
	NextHopGateway   = "VirtualNetworkGateway" // in no lab
	NextHopNone      = "None"                  // dropped
)

// Peering joins a virtual network with another one.
type Peering struct {
	Name       string
	RemoteVNet string
	// Parted says that the other side was there once and was taken away.
	Parted bool
}

// States of a peering, as Azure writes them.
const (
	PeeringConnected    = "Connected"    // both sides are there: the only state that carries traffic
	PeeringInitiated    = "Initiated"    // the other side has not been there yet
	PeeringDisconnected = "Disconnected" // the other side was taken away
)

// PeeringState returns the state of a virtual network's peering.
func (n Network) PeeringState(vnet string, p Peering) string {
	switch {
	case n.Peered(vnet, p.RemoteVNet):
		return PeeringConnected
	case p.Parted:
		return PeeringDisconnected
	}
	return PeeringInitiated
}

// NIC is a machine's network interface.
type NIC struct {
	Name    string
	Machine string
	VNet    string
	Subnet  string
	// ID is a small number, from 1, that stays the NIC's for its life. The fabric's link, mark and routing table are made of it.
	ID        int
	MAC       string // 00:0d:3a:…
	IPConfigs []IPConfig
	// IPForwarding lets the NIC send and receive packets of addresses that are not its own (kubenet nodes).
	IPForwarding bool
	// SecurityGroup is the name of a SecurityGroup, "" for none.
	SecurityGroup string
	// ContainerGroup says that the NIC is a container group's: it leads to private addresses only, the group has another way to the
	// internet. It is no resource of a customer's, nor is a NIC in a Platform network.
	ContainerGroup bool `json:",omitempty"`
	// Overlay is the part of the network's Overlay that the NIC's machine has for its pods; invalid for none. No ARM resource has it.
	Overlay netip.Prefix `json:",omitzero"`
}

// IPConfig is one IP configuration of a NIC. Exactly one of a NIC's is primary, the first.
type IPConfig struct {
	Name     string // ipconfig1, ipconfig2, …
	Address  netip.Addr
	Primary  bool
	PublicIP string // name of a PublicIP that is this configuration's own (instance level), "" for none
}

// PublicIP is a public address.
type PublicIP struct {
	Name    string
	Address netip.Addr
}

// Host is a host on the internet side of the fabric.
type Host struct {
	Name    string // at most 11 bytes: link names are made of it
	Address netip.Addr
}

// SKUs of a load balancer.
const (
	SKUBasic    = "Basic"
	SKUStandard = "Standard"
)

// LoadBalancer is an Azure load balancer.
type LoadBalancer struct {
	Name         string // "kubernetes"
	SKU          string // SKUBasic or SKUStandard
	Frontends    []Frontend
	BackendPools []BackendPool
	Rules        []Rule
	Probes       []Probe
	// OutboundRules are a Standard load balancer's. With any, they alone say how members leave; without, members leave by all public
	// front ends, as a Basic load balancer's do.
	OutboundRules []OutboundRule
}

// OutboundRule says by which front ends, and with how many ports, the members of a pool reach the internet.
type OutboundRule struct {
	Name        string
	Frontends   []string // names; used one after the other
	BackendPool string   // name
	Protocol    string   `json:",omitempty"` // ProtocolTCP or ProtocolUDP, "" for both
	// AllocatedOutboundPorts is how many ports each member has towards one destination, over all front ends; 0 means as many on each front
	// end as OutboundPorts says.
	AllocatedOutboundPorts int
	IdleTimeoutMinutes     int
	TCPReset               bool // both ends of a TCP flow that was idle for too long get a reset
}

// Frontend is a front-end IP configuration. An internal one has a private address of a subnet; a public one has no VNet.
type Frontend struct {
	Name    string
	Address netip.Addr
	VNet    string `json:",omitempty"`
	Subnet  string `json:",omitempty"`
}

// Internal reports whether the front end has a private address.
func (f Frontend) Internal() bool { return f.VNet != "" }

// BackendPool is a list of NICs' IP configurations.
type BackendPool struct {
	Name    string
	Members []IPConfigRef
}

// IPConfigRef names an IP configuration of a NIC.
type IPConfigRef struct{ NIC, IPConfig string }

// Values of Rule.LoadDistribution: which fields of a packet choose the back end.
const (
	DistributionDefault          = "Default"          // the 5-tuple
	DistributionSourceIP         = "SourceIP"         // source and destination address
	DistributionSourceIPProtocol = "SourceIPProtocol" // source and destination address, and protocol
)

// Protocols of rules and probes, as Azure writes them.
const (
	ProtocolTCP  = "Tcp"
	ProtocolUDP  = "Udp"
	ProtocolHTTP = "Http"
)

// Rule is a load balancing rule.
type Rule struct {
	Name               string
	Frontend           string // name
	BackendPool        string // name
	Probe              string // name, "" for none: every member counts as up
	Protocol           string // ProtocolTCP or ProtocolUDP
	FrontendPort       uint16
	BackendPort        uint16
	FloatingIP         bool // the packet reaches the back end with the front end's address as its destination
	IdleTimeoutMinutes int
	LoadDistribution   string
	TCPReset           bool // as an outbound rule's
	// DisableOutboundSNAT keeps the members of the pool from leaving by the rule's front end. With outbound rules they never do.
	DisableOutboundSNAT bool `json:",omitempty"`
	// LastPort ends a range of ports that begins with FrontendPort; 0 for one port. Only inbound NAT rules in Azure have ranges.
	LastPort uint16 `json:",omitempty"`
}

// Probe is a health probe.
type Probe struct {
	Name            string
	Protocol        string // ProtocolTCP or ProtocolHTTP
	Port            uint16
	RequestPath     string // Http only
	IntervalSeconds int
	Count           int // failures in a row that take a back end out
}

// MetadataService is the address of the Azure Instance Metadata Service (IMDS).
var MetadataService = netip.AddrFrom4([4]byte{169, 254, 169, 254})

// ProbeSource is the address that Azure's health probes come from, and where its host answers (wire server, DNS).
var ProbeSource = netip.AddrFrom4([4]byte{168, 63, 129, 16})

// HostMAC is the link-layer address that everything has in a virtual network, seen from a machine: Azure's host answers every
// ARP request with it.
const HostMAC = "12:34:56:78:9a:bc"

// Health says which back ends take new flows: for each probe of a load balancer the members that are up. A rule without a
// probe has all its members up.
type Health map[ProbeTarget]bool

// ProbeTarget is one member under one probe.
type ProbeTarget struct {
	LoadBalancer string
	Probe        string
	Member       IPConfigRef
}
