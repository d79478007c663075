package armview

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Resources are what was read of a subscription. The keys are the resources' ids in lower case: Azure does not tell cases apart.
type Resources struct {
	Interfaces     map[string]*Interface
	PublicIPs      map[string]*PublicIP
	Prefixes       map[string]*PublicIPPrefix
	LoadBalancers  map[string]*LoadBalancer
	NATGateways    map[string]*NATGateway
	VNets          map[string]*VirtualNetwork
	RouteTables    map[string]*RouteTable
	SecurityGroups map[string]*SecurityGroup
	Clusters       map[string]*Cluster
	subnets        map[string]*Subnet // also those within VNets
	peerings       map[string]*Peering
	sources        map[string]string // the files that resources were read from, by the resources' ids
	groups         map[string]string // resource groups as files write them, "/subscriptions/x/resourceGroups/y", by the same in lower case
	// Unread are reads that failed, in words: "network security groups of resource group x: forbidden". Whoever reads adds to them.
	Unread []string
}

// Resource is what every resource has.
type Resource struct{ ID, Name string }

// ref names another resource.
type ref struct{ ID string }

func (r *ref) id() string {
	if r == nil {
		return ""
	}
	return strings.ToLower(r.ID)
}

// Interface is a network interface, of a machine or of an instance of a scale set.
type Interface struct {
	Resource
	MACAddress         string
	EnableIPForwarding bool
	PrivateEndpoint    *ref              // whose interface it is
	VirtualMachine     *ref              // whose it is; an instance of a scale set has its own in the interface's id
	SecurityGroup      *ref              `json:"networkSecurityGroup"`
	IPConfigs          []IPConfiguration `json:"ipConfigurations"`
}

// IPConfiguration is one of an interface.
type IPConfiguration struct {
	Resource
	Primary           bool
	PrivateIPAddress  string
	Subnet            *ref
	PublicIPAddress   *ref
	Pools             []ref `json:"loadBalancerBackendAddressPools"`
	ApplicationGroups []ref `json:"applicationSecurityGroups"`
}

// PublicIP is a public address.
type PublicIP struct {
	Resource
	IPAddress       string
	SKU             sku
	IPConfiguration *ref
	PublicIPPrefix  *ref
}

type sku struct{ Name string }

// PublicIPPrefix is a range of public addresses.
type PublicIPPrefix struct {
	Resource
	IPPrefix string
}

// NATGateway is a NAT gateway.
type NATGateway struct {
	Resource
	SKU              sku
	PublicIPs        []ref `json:"publicIpAddresses"`
	PublicIPPrefixes []ref
	// IdleTimeoutInMinutes is how long a TCP connection may be idle.
	IdleTimeoutInMinutes int
}

// LoadBalancer is a load balancer.
type LoadBalancer struct {
	Resource
	SKU             sku
	Frontends       []Frontend      `json:"frontendIPConfigurations"`
	Pools           []Pool          `json:"backendAddressPools"`
	Rules           []BalancingRule `json:"loadBalancingRules"`
	OutboundRules   []OutboundRule
	InboundNATRules []InboundNATRule
}

// Frontend is a front-end IP configuration; a public one has an address or a prefix.
type Frontend struct {
	Resource
	PrivateIPAddress string
	PublicIPAddress  *ref
	PublicIPPrefix   *ref
	Subnet           *ref
}

func (f Frontend) public() bool { return f.PublicIPAddress != nil || f.PublicIPPrefix != nil }

// Pool is a back-end pool: of IP configurations, or of addresses.
type Pool struct {
	Resource
	Members   []ref         `json:"backendIPConfigurations"`
	Addresses []PoolAddress `json:"loadBalancerBackendAddresses"`
	Network   *ref          `json:"virtualNetwork"` // of the addresses
}

// PoolAddress is a member of a pool by its address.
type PoolAddress struct {
	Name, IPAddress string
	IPConfig        *ref `json:"networkInterfaceIPConfiguration"`
	Network         *ref `json:"virtualNetwork"`
	Subnet          *ref
}

// BalancingRule is a load balancing rule.
type BalancingRule struct {
	Resource
	Protocol                  string
	FrontendPort, BackendPort uint16
	EnableFloatingIP          bool
	DisableOutboundSNAT       bool
	LoadDistribution          string
	Frontend                  *ref  `json:"frontendIPConfiguration"`
	Pool                      *ref  `json:"backendAddressPool"`
	Pools                     []ref `json:"backendAddressPools"`
	Probe                     *ref
}

// InboundNATRule leads one port of a front end to one back end, or a range of ports to a pool's, one each.
type InboundNATRule struct {
	Resource
	Protocol                  string
	FrontendPort, BackendPort uint16
	EnableFloatingIP          bool
	Frontend                  *ref   `json:"frontendIPConfiguration"`
	Target                    *ref   `json:"backendIPConfiguration"`
	RangeStart                uint16 `json:"frontendPortRangeStart"`
	RangeEnd                  uint16 `json:"frontendPortRangeEnd"`
}

// OutboundRule says by which front ends a pool leaves.
type OutboundRule struct {
	Resource
	Protocol  string
	Frontends []ref `json:"frontendIPConfigurations"`
	Pool      *ref  `json:"backendAddressPool"`
}

// VirtualNetwork is a virtual network.
type VirtualNetwork struct {
	Resource
	AddressSpace addressSpace
	Subnets      []Subnet
	Peerings     []Peering `json:"virtualNetworkPeerings"`
}

type addressSpace struct{ AddressPrefixes []string }

// Subnet is a subnet. Azure has its range in one field or the other.
type Subnet struct {
	Resource
	AddressPrefix         string
	AddressPrefixes       []string
	RouteTable            *ref
	SecurityGroup         *ref `json:"networkSecurityGroup"`
	NATGateway            *ref
	DefaultOutboundAccess *bool
	ServiceEndpoints      []serviceEndpoint
	PrivateEndpoints      []ref
}

type serviceEndpoint struct{ Service string }

// Peering is one side of a peering.
type Peering struct {
	Resource
	PeeringState              string
	AllowVirtualNetworkAccess *bool
	AllowForwardedTraffic     bool
	PeerCompleteVNets         *bool `json:"peerCompleteVnets"`
	UseRemoteGateways         bool
	Remote                    *ref         `json:"remoteVirtualNetwork"`
	RemoteAddressSpace        addressSpace `json:"remoteAddressSpace"`
	RemoteVNetSpace           addressSpace `json:"remoteVirtualNetworkAddressSpace"`
}

// ofSubnets reports whether only some subnets are peered.
func (p *Peering) ofSubnets() bool { return p.PeerCompleteVNets != nil && !*p.PeerCompleteVNets }

// RouteTable is a route table.
type RouteTable struct {
	Resource
	DisableBGPRoutePropagation bool
	Routes                     []Route
}

// Route is a user-defined route.
type Route struct {
	Resource
	AddressPrefix, NextHopType, NextHopIPAddress string
}

// SecurityGroup is a network security group.
type SecurityGroup struct {
	Resource
	Rules    []SecurityRule `json:"securityRules"`
	Defaults []SecurityRule `json:"defaultSecurityRules"`
}

// SecurityRule is one of its rules. Each list stands in one field or the other.
type SecurityRule struct {
	Resource
	Priority                    int
	Direction, Access, Protocol string
	SourceAddressPrefix         string
	SourceAddressPrefixes       []string
	SourceGroups                []ref `json:"sourceApplicationSecurityGroups"`
	SourcePortRange             string
	SourcePortRanges            []string
	DestinationAddressPrefix    string
	DestinationAddressPrefixes  []string
	DestinationGroups           []ref `json:"destinationApplicationSecurityGroups"`
	DestinationPortRange        string
	DestinationPortRanges       []string
}

// Cluster is a managed cluster.
type Cluster struct {
	Resource
	Location, KubernetesVersion, NodeResourceGroup string
	NetworkProfile                                 NetworkProfile
	AgentPools                                     []AgentPool `json:"agentPoolProfiles"`
	AddonProfiles                                  map[string]Addon
}

// NetworkProfile is a managed cluster's.
type NetworkProfile struct {
	NetworkPlugin, NetworkPluginMode, NetworkMode, NetworkPolicy, NetworkDataplane string
	PodCIDR, ServiceCIDR, DNSServiceIP, LoadBalancerSKU, OutboundType              string
	PodLinkLocalAccess                                                             string // "None" keeps pods from the Instance Metadata Service
	PodCIDRs, ServiceCIDRs                                                         []string
	LoadBalancerProfile                                                            LoadBalancerProfile
	NATGatewayProfile                                                              NATGatewayProfile
	KubeProxyConfig                                                                struct{ Mode string }
}

// NATGatewayProfile is the NAT gateway that AKS makes for a managed cluster.
type NATGatewayProfile struct {
	ManagedOutboundIPProfile struct{ Count int }
	EffectiveOutboundIPs     []ref
	IdleTimeoutInMinutes     int
}

// LoadBalancerProfile says how a managed cluster leaves by its load balancer.
type LoadBalancerProfile struct {
	AllocatedOutboundPorts, IdleTimeoutInMinutes int
	ManagedOutboundIPs                           struct{ Count int }
	EffectiveOutboundIPs                         []ref
	ClusterServiceLoadBalancerHealthProbeMode    string
}

// AgentPool is a node pool.
type AgentPool struct {
	Name, Mode, VMSize, OSType, VNetSubnetID, PodSubnetID, ScaleSetPriority string
	Count, MaxPods                                                          int
	EnableNodePublicIP                                                      bool
	AvailabilityZones, NodeTaints                                           []string
	NodeLabels                                                              map[string]string
	LocalDNSProfile                                                         LocalDNSProfile
}

// LocalDNSProfile is the DNS cache on each node of a pool.
type LocalDNSProfile struct {
	Mode, State                        string
	VnetDNSOverrides, KubeDNSOverrides map[string]any
}

// Enabled reports whether the nodes run it: by its state, and where the state is missing, only with mode Required.
func (p *LocalDNSProfile) Enabled() bool {
	return strings.EqualFold(p.State, "Enabled") || p.State == "" && strings.EqualFold(p.Mode, "Required")
}

// Addon is an addon of a managed cluster.
type Addon struct {
	Enabled bool
	Config  map[string]string
}

// NewResources makes an empty set of resources.
func NewResources() *Resources {
	return &Resources{
		Interfaces: map[string]*Interface{}, PublicIPs: map[string]*PublicIP{}, Prefixes: map[string]*PublicIPPrefix{},
		LoadBalancers: map[string]*LoadBalancer{}, NATGateways: map[string]*NATGateway{}, VNets: map[string]*VirtualNetwork{},
		RouteTables: map[string]*RouteTable{}, SecurityGroups: map[string]*SecurityGroup{}, Clusters: map[string]*Cluster{},
		subnets: map[string]*Subnet{}, peerings: map[string]*Peering{}, sources: map[string]string{}, groups: map[string]string{},
	}
}

// sorted returns a map's keys in order, so that the same resources give the same walk.
func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// parse reads an IPv4 address or prefix; nothing else is one.
func parse(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
		return netip.PrefixFrom(a, 32), true
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err == nil && p.Addr().Is4()
}

func parseAll(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		if p, ok := parse(s); ok {
			all = append(all, p)
		}
	}
	return all
}

func (s *Subnet) ranges() []netip.Prefix {
	return parseAll(append([]string{s.AddressPrefix}, s.AddressPrefixes...)...)
}

// last returns the last name of an id, for people.
func last(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// vnetOf returns the virtual network in a subnet's id.
func vnetOf(subnet string) string {
	i := strings.Index(subnet, "/subnets/")
	return subnet[:max(0, i)]
}
