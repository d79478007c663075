package armview

import (
	"encoding/json"
	"errors"
	"fmt"
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
}

// PoolAddress is a member of a pool by its address.
type PoolAddress struct {
	Name, IPAddress string
	IPConfig        *ref `json:"networkInterfaceIPConfiguration"`
}

// BalancingRule is a load balancing rule.
type BalancingRule struct {
	Resource
	Protocol                  string
	FrontendPort, BackendPort uint16
	EnableFloatingIP          bool
	DisableOutboundSNAT       bool
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

// ofSubnets tells whether only some subnets are peered.
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

// Cluster is a managed cluster, as far as it says where pods' addresses are.
type Cluster struct {
	Resource
	NodeResourceGroup string
	NetworkProfile    networkProfile
}

type networkProfile struct {
	NetworkPlugin, NetworkPluginMode, PodCIDR string
	PodCIDRs                                  []string
}

// NewResources are none.
func NewResources() *Resources {
	return &Resources{
		Interfaces: map[string]*Interface{}, PublicIPs: map[string]*PublicIP{}, Prefixes: map[string]*PublicIPPrefix{},
		LoadBalancers: map[string]*LoadBalancer{}, NATGateways: map[string]*NATGateway{}, VNets: map[string]*VirtualNetwork{},
		RouteTables: map[string]*RouteTable{}, SecurityGroups: map[string]*SecurityGroup{}, Clusters: map[string]*Cluster{},
		subnets: map[string]*Subnet{},
	}
}

// Read adds what a JSON text holds: a resource, a list of them, or an answer of Azure Resource Manager with "value". Both ways of
// writing them are understood, with "properties" and with their fields one level up, as az has them. Kinds that a walk does not need
// are passed over.
func (r *Resources) Read(text []byte) error {
	var root any
	if err := json.Unmarshal(text, &root); err != nil {
		return fmt.Errorf("no JSON as az … -o json writes it: %w", err)
	}
	if o, ok := root.(map[string]any); ok {
		if list, ok := o["value"].([]any); ok && o["id"] == nil {
			root = list
		}
	}
	list, ok := root.([]any)
	if !ok {
		list = []any{root}
	}
	for _, item := range list {
		o, ok := item.(map[string]any)
		id, _ := o["id"].(string)
		if !ok || id == "" {
			return errors.New("a resource without an id: save what az … -o json prints without --query")
		}
		if err := r.add(id, flatten(o)); err != nil {
			return err
		}
	}
	return nil
}

// flatten brings the fields of "properties" one level up, at every depth; a field of the object's own comes first. The recursion is
// bounded: encoding/json refuses what is nested deeper than 10,000.
func flatten(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = flatten(v[i])
		}
	case map[string]any:
		flat := map[string]any{}
		if p, ok := v["properties"].(map[string]any); ok {
			for k, e := range p {
				flat[k] = flatten(e)
			}
		}
		for k, e := range v {
			if k != "properties" {
				flat[k] = flatten(e)
			}
		}
		return flat
	}
	return v
}

// kind is the last type in an id: "networkinterfaces".
func kind(id string) string {
	parts := strings.Split(strings.ToLower(id), "/")
	if len(parts) < 3 {
		return ""
	}
	return parts[len(parts)-2]
}

// decode puts an object into a map of resources.
func decode[T any](into map[string]*T, id string, o any) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	x := new(T)
	if err := json.Unmarshal(data, x); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	into[strings.ToLower(id)] = x
	return nil
}

func (r *Resources) add(id string, o any) error {
	switch kind(id) {
	case "networkinterfaces":
		return decode(r.Interfaces, id, o)
	case "publicipaddresses":
		return decode(r.PublicIPs, id, o)
	case "publicipprefixes":
		return decode(r.Prefixes, id, o)
	case "loadbalancers":
		return decode(r.LoadBalancers, id, o)
	case "natgateways":
		return decode(r.NATGateways, id, o)
	case "routetables":
		return decode(r.RouteTables, id, o)
	case "networksecuritygroups":
		return decode(r.SecurityGroups, id, o)
	case "managedclusters":
		return decode(r.Clusters, id, o)
	case "subnets":
		return decode(r.subnets, id, o)
	case "virtualnetworks":
		return r.addVNet(id, o)
	case "virtualnetworkpeerings":
		return r.addPeering(id, o)
	}
	return nil
}

func (r *Resources) addVNet(id string, o any) error {
	before := r.VNets[strings.ToLower(id)]
	if err := decode(r.VNets, id, o); err != nil {
		return err
	}
	v := r.VNets[strings.ToLower(id)]
	if before != nil && len(v.Peerings) == 0 {
		v.Peerings = before.Peerings
	}
	for i := range v.Subnets {
		r.subnets[strings.ToLower(v.Subnets[i].ID)] = &v.Subnets[i]
	}
	return nil
}

// addPeering adds a peering that was listed by itself to its virtual network, also to one that is read later.
func (r *Resources) addPeering(id string, o any) error {
	one := map[string]*Peering{}
	if err := decode(one, id, o); err != nil {
		return err
	}
	key := strings.ToLower(id)
	vnet := key[:max(0, strings.Index(key, "/virtualnetworkpeerings/"))]
	if r.VNets[vnet] == nil {
		r.VNets[vnet] = &VirtualNetwork{}
	}
	v := r.VNets[vnet]
	v.Peerings = slices.DeleteFunc(v.Peerings, func(p Peering) bool { return strings.EqualFold(p.ID, id) })
	v.Peerings = append(v.Peerings, *one[key])
	return nil
}

// sorted are a map's keys in order, so that the same resources give the same walk.
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

// last is the last name of an id, for people.
func last(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// vnetOf is the virtual network in a subnet's id.
func vnetOf(subnet string) string {
	i := strings.Index(subnet, "/subnets/")
	return subnet[:max(0, i)]
}
