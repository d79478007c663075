package arm

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/vnet"
)

// Resources are a network as the network resource provider's types.
type Resources struct {
	LoadBalancers     []*armnetwork.LoadBalancer
	Interfaces        []*armnetwork.Interface
	PublicIPAddresses []*armnetwork.PublicIPAddress
	VirtualNetworks   []*armnetwork.VirtualNetwork
	RouteTables       []*armnetwork.RouteTable
	SecurityGroups    []*armnetwork.SecurityGroup
	NATGateways       []*armnetwork.NatGateway
}

// NewResources returns what the network resource provider would answer of a network. Every resource is in the state Succeeded.
func NewResources(n vnet.Network) Resources {
	b := newBuilder(n)
	var r Resources
	for _, lb := range n.LoadBalancers {
		r.LoadBalancers = append(r.LoadBalancers, b.loadBalancer(lb))
	}
	for _, nic := range n.NICs {
		r.Interfaces = append(r.Interfaces, b.nic(nic))
	}
	for _, p := range b.publicIPs() {
		r.PublicIPAddresses = append(r.PublicIPAddresses, b.publicIP(p))
	}
	for _, v := range n.VNets {
		r.VirtualNetworks = append(r.VirtualNetworks, b.vnet(v))
	}
	for _, t := range n.RouteTables {
		r.RouteTables = append(r.RouteTables, b.routeTable(t))
	}
	for _, g := range n.SecurityGroups {
		r.SecurityGroups = append(r.SecurityGroups, b.securityGroup(g))
	}
	for _, g := range n.NATGateways {
		r.NATGateways = append(r.NATGateways, b.natGateway(g))
	}
	return r
}

// SubnetID returns a subnet's id.
func SubnetID(n vnet.Network, vnetName, subnet string) string {
	return *newBuilder(n).subnetID(vnetName, subnet)
}

// RouteTableGroup returns the resource group of a route table.
func RouteTableGroup(n vnet.Network, table string) string {
	return newBuilder(n).group("routeTables", table)
}

// FrontendIPID returns the id of a public front end's address.
func FrontendIPID(n vnet.Network, f vnet.Frontend) string {
	b := newBuilder(n)
	return *b.publicIPID(b.frontendIPName(f), n.NodeResourceGroup)
}

// A builder makes resources of a network.
type builder struct {
	n      vnet.Network
	groups map[string]string // resource groups that clients chose, by kind and name of a resource in lower case
}

// newBuilder returns a builder. A resource that a client wrote is in the resource group that its attributes' ID names.
func newBuilder(n vnet.Network) builder {
	b := builder{n, map[string]string{}}
	all := Groups(n)
	for id := range n.Attributes {
		if i := slices.IndexFunc(all, func(g string) bool { return strings.EqualFold(g, groupOf(id)) }); i >= 0 {
			_, resource, _ := strings.Cut(id, "/providers/"+strings.ToLower(provider)+"/")
			b.groups[resource] = all[i]
		}
	}
	return b
}

// placed returns the resource group of a resource: the one that a client chose, or another one.
func (b builder) placed(kind, name, other string) string {
	return cmp.Or(b.groups[strings.ToLower(kind+"/"+name)], other)
}

// group returns the resource group of a resource that belongs to machines, or to their subnets.
func (b builder) group(kind, name string) string { return b.placed(kind, name, b.machineGroup(name)) }

func (b builder) publicIPID(name, group string) *string {
	return b.id(b.placed("publicIPAddresses", name, group), "publicIPAddresses", name)
}

var succeeded = new(armnetwork.ProvisioningStateSucceeded)

// id returns a resource's id: its group and then kinds and names in turn, the first kind without its provider.
func (b builder) id(group string, parts ...string) *string {
	return new(fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/%s", b.n.Subscription, group,
		strings.Join(parts, "/")))
}

func (b builder) lbID(name string, parts ...string) *string {
	return b.id(b.placed("loadBalancers", name, b.n.NodeResourceGroup), append([]string{"loadBalancers", name}, parts...)...)
}

// machineGroup returns the resource group of a machine's resources: nodes' names start with aks-, and AKS keeps nodes in a group of its
// own.
func (b builder) machineGroup(machine string) string {
	if strings.HasPrefix(machine, "aks-") {
		return b.n.NodeResourceGroup
	}
	return b.n.ResourceGroup
}

func (b builder) ipConfigID(ref vnet.IPConfigRef) *string {
	nic, _ := b.n.NIC(ref.NIC)
	return b.id(b.machineGroup(nic.Machine), "networkInterfaces", ref.NIC, "ipConfigurations", ref.IPConfig)
}

func sub(id *string) *armnetwork.SubResource { return &armnetwork.SubResource{ID: id} }

func (b builder) loadBalancer(lb vnet.LoadBalancer) *armnetwork.LoadBalancer {
	p := &armnetwork.LoadBalancerPropertiesFormat{ProvisioningState: succeeded, InboundNatRules: []*armnetwork.InboundNatRule{}}
	for _, f := range lb.Frontends {
		p.FrontendIPConfigurations = append(p.FrontendIPConfigurations, b.frontend(lb, f))
	}
	for _, pool := range lb.BackendPools {
		p.BackendAddressPools = append(p.BackendAddressPools, b.pool(lb, pool))
	}
	for _, r := range lb.Rules {
		p.LoadBalancingRules = append(p.LoadBalancingRules, b.rule(lb, r))
	}
	for _, probe := range lb.Probes {
		p.Probes = append(p.Probes, b.probe(lb, probe))
	}
	for _, r := range lb.OutboundRules {
		p.OutboundRules = append(p.OutboundRules, b.outboundRule(lb, r))
	}
	return &armnetwork.LoadBalancer{
		ID: b.lbID(lb.Name), Name: new(lb.Name), Type: new("Microsoft.Network/loadBalancers"), Location: new(b.n.Location),
		SKU: &armnetwork.LoadBalancerSKU{Name: new(armnetwork.LoadBalancerSKUName(lb.SKU)),
			Tier: new(armnetwork.LoadBalancerSKUTierRegional)},
		Properties: p,
	}
}

// rulesOf gives references to the rules of a load balancer that match.
func (b builder) rulesOf(lb vnet.LoadBalancer, match func(vnet.Rule) bool) []*armnetwork.SubResource {
	var refs []*armnetwork.SubResource
	for _, r := range lb.Rules {
		if match(r) {
			refs = append(refs, sub(b.lbID(lb.Name, "loadBalancingRules", r.Name)))
		}
	}
	return refs
}

func (b builder) frontend(lb vnet.LoadBalancer, f vnet.Frontend) *armnetwork.FrontendIPConfiguration {
	p := &armnetwork.FrontendIPConfigurationPropertiesFormat{
		PrivateIPAllocationMethod: new(armnetwork.IPAllocationMethodDynamic),
		ProvisioningState:         succeeded,
		LoadBalancingRules:        b.rulesOf(lb, func(r vnet.Rule) bool { return r.Frontend == f.Name }),
	}
	if f.Internal() {
		p.PrivateIPAddress, p.PrivateIPAddressVersion = new(f.Address.String()), new(version(f.Address))
		p.Subnet = &armnetwork.Subnet{ID: b.subnetID(f.VNet, f.Subnet)}
	} else {
		p.PublicIPAddress = &armnetwork.PublicIPAddress{ID: b.publicIPID(b.frontendIPName(f), b.n.NodeResourceGroup)}
	}
	return &armnetwork.FrontendIPConfiguration{
		ID: b.lbID(lb.Name, "frontendIPConfigurations", f.Name), Name: new(f.Name),
		Type: new("Microsoft.Network/loadBalancers/frontendIPConfigurations"), Properties: p,
	}
}

// frontendIPName returns the public address resource of a front end: the network's, or the one that the cloud provider names after it.
func (b builder) frontendIPName(f vnet.Frontend) string {
	for _, p := range b.n.PublicIPs {
		if p.Address == f.Address {
			return p.Name
		}
	}
	return "kubernetes-" + f.Name
}

func (b builder) pool(lb vnet.LoadBalancer, pool vnet.BackendPool) *armnetwork.BackendAddressPool {
	p := &armnetwork.BackendAddressPoolPropertiesFormat{
		ProvisioningState:  succeeded,
		LoadBalancingRules: b.rulesOf(lb, func(r vnet.Rule) bool { return r.BackendPool == pool.Name }),
	}
	for _, m := range pool.Members {
		p.BackendIPConfigurations = append(p.BackendIPConfigurations, &armnetwork.InterfaceIPConfiguration{ID: b.ipConfigID(m)})
	}
	return &armnetwork.BackendAddressPool{
		ID: b.lbID(lb.Name, "backendAddressPools", pool.Name), Name: new(pool.Name),
		Type: new("Microsoft.Network/loadBalancers/backendAddressPools"), Properties: p,
	}
}

func (b builder) rule(lb vnet.LoadBalancer, r vnet.Rule) *armnetwork.LoadBalancingRule {
	p := &armnetwork.LoadBalancingRulePropertiesFormat{
		BackendPort: new(int32(r.BackendPort)), FrontendPort: new(int32(r.FrontendPort)), Protocol: new(armnetwork.TransportProtocol(r.Protocol)),
		EnableFloatingIP: new(r.FloatingIP), EnableTCPReset: new(r.TCPReset), IdleTimeoutInMinutes: new(int32(r.IdleTimeoutMinutes)),
		LoadDistribution:        new(armnetwork.LoadDistribution(r.LoadDistribution)),
		FrontendIPConfiguration: sub(b.lbID(lb.Name, "frontendIPConfigurations", r.Frontend)),
		BackendAddressPool:      sub(b.lbID(lb.Name, "backendAddressPools", r.BackendPool)),
		ProvisioningState:       succeeded,
	}
	if r.DisableOutboundSNAT {
		p.DisableOutboundSnat = new(true)
	}
	if r.Probe != "" {
		p.Probe = sub(b.lbID(lb.Name, "probes", r.Probe))
	}
	return &armnetwork.LoadBalancingRule{
		ID: b.lbID(lb.Name, "loadBalancingRules", r.Name), Name: new(r.Name), Type: new("Microsoft.Network/loadBalancers/loadBalancingRules"),
		Properties: p,
	}
}

func (b builder) probe(lb vnet.LoadBalancer, probe vnet.Probe) *armnetwork.Probe {
	p := &armnetwork.ProbePropertiesFormat{
		Port: new(int32(probe.Port)), Protocol: new(armnetwork.ProbeProtocol(probe.Protocol)),
		IntervalInSeconds: new(int32(probe.IntervalSeconds)), NumberOfProbes: new(int32(probe.Count)),
		ProvisioningState:  succeeded,
		LoadBalancingRules: b.rulesOf(lb, func(r vnet.Rule) bool { return r.Probe == probe.Name }),
	}
	if probe.RequestPath != "" {
		p.RequestPath = new(probe.RequestPath)
	}
	return &armnetwork.Probe{
		ID: b.lbID(lb.Name, "probes", probe.Name), Name: new(probe.Name), Type: new("Microsoft.Network/loadBalancers/probes"), Properties: p,
	}
}

func (b builder) nic(nic vnet.NIC) *armnetwork.Interface {
	group := b.machineGroup(nic.Machine)
	p := &armnetwork.InterfacePropertiesFormat{
		EnableIPForwarding: new(nic.IPForwarding), MacAddress: new(strings.ToUpper(strings.ReplaceAll(nic.MAC, ":", "-"))), Primary: new(true),
		ProvisioningState: succeeded, NetworkSecurityGroup: b.groupRef(nic.SecurityGroup),
		VirtualMachine: sub(new(fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s",
			b.n.Subscription, group, nic.Machine))),
	}
	for _, c := range nic.IPConfigs {
		p.IPConfigurations = append(p.IPConfigurations, b.ipConfig(nic, c))
	}
	return &armnetwork.Interface{
		ID: b.id(group, "networkInterfaces", nic.Name), Name: new(nic.Name), Type: new("Microsoft.Network/networkInterfaces"),
		Location: new(b.n.Location), Properties: p,
	}
}

func (b builder) ipConfig(nic vnet.NIC, c vnet.IPConfig) *armnetwork.InterfaceIPConfiguration {
	ref := vnet.IPConfigRef{NIC: nic.Name, IPConfig: c.Name}
	p := &armnetwork.InterfaceIPConfigurationPropertiesFormat{
		Primary: new(c.Primary), PrivateIPAddress: new(c.Address.String()), PrivateIPAddressVersion: new(version(c.Address)),
		PrivateIPAllocationMethod: new(armnetwork.IPAllocationMethodDynamic), ProvisioningState: succeeded,
		Subnet: &armnetwork.Subnet{ID: b.subnetID(nic.VNet, nic.Subnet)},
	}
	if c.PublicIP != "" {
		p.PublicIPAddress = &armnetwork.PublicIPAddress{ID: b.publicIPID(c.PublicIP, b.machineGroup(nic.Machine))}
	}
	for _, lb := range b.n.LoadBalancers {
		for _, pool := range lb.BackendPools {
			for _, m := range pool.Members {
				if m == ref {
					p.LoadBalancerBackendAddressPools = append(p.LoadBalancerBackendAddressPools,
						&armnetwork.BackendAddressPool{ID: b.lbID(lb.Name, "backendAddressPools", pool.Name)})
				}
			}
		}
	}
	return &armnetwork.InterfaceIPConfiguration{
		ID: b.ipConfigID(ref), Name: new(c.Name), Type: new("Microsoft.Network/networkInterfaces/ipConfigurations"), Properties: p,
	}
}

func version(a netip.Addr) armnetwork.IPVersion {
	if a.Is4() {
		return armnetwork.IPVersionIPv4
	}
	return armnetwork.IPVersionIPv6
}

func (b builder) subnetID(vnetName, subnet string) *string {
	group := b.n.ResourceGroup
	for _, v := range b.n.VNets {
		if v.Name == vnetName && v.ResourceGroup != "" {
			group = v.ResourceGroup
		}
	}
	return b.id(group, "virtualNetworks", vnetName, "subnets", subnet)
}

// publicAddress is a public address, and the IP configuration or the NAT gateway that has it.
type publicAddress struct {
	name, group string
	address     netip.Addr
	of          *string
	gateway     *string
	sku         armnetwork.PublicIPAddressSKUName
	method      armnetwork.IPAllocationMethod
	idleMinutes int
}

// publicIPs lists the public addresses: machines' own, and the front ends'.
func (b builder) publicIPs() []publicAddress {
	var all []publicAddress
	seen := map[string]bool{}
	for _, p := range b.n.PublicIPs {
		a := newPublicAddress(p.Name, b.n.NodeResourceGroup, p.Address)
		for _, nic := range b.n.NICs {
			for _, c := range nic.IPConfigs {
				if c.PublicIP == p.Name {
					a.group, a.of = b.machineGroup(nic.Machine), b.ipConfigID(vnet.IPConfigRef{NIC: nic.Name, IPConfig: c.Name})
				}
			}
		}
		for _, g := range b.n.NATGateways {
			if slices.Contains(g.PublicIPs, p.Name) {
				a.group, a.gateway = b.group("natGateways", g.Name), b.gatewayID(g.Name)
				a.sku, a.method, a.idleMinutes = armnetwork.PublicIPAddressSKUNameStandard, armnetwork.IPAllocationMethodStatic, 4
			}
		}
		all, seen[p.Name] = append(all, a), true
	}
	for _, lb := range b.n.LoadBalancers {
		for _, f := range lb.Frontends {
			if f.Internal() {
				continue
			}
			name, of := b.frontendIPName(f), b.lbID(lb.Name, "frontendIPConfigurations", f.Name)
			if !seen[name] {
				all, seen[name] = append(all, newPublicAddress(name, b.n.NodeResourceGroup, f.Address)), true
			}
			for i := range all {
				if all[i].name == name {
					all[i].of = of
					all[i].balanced(lb, f)
				}
			}
		}
	}
	return all
}

// newPublicAddress returns one as "az vm create" made them: Basic and Dynamic.
func newPublicAddress(name, group string, a netip.Addr) publicAddress {
	return publicAddress{name: name, group: group, address: a, sku: armnetwork.PublicIPAddressSKUNameBasic,
		method: armnetwork.IPAllocationMethodDynamic, idleMinutes: 4}
}

// balanced makes it one of a front end: of the load balancer's SKU, Static (cloud-provider-azure), and with the outbound rule's idle time.
func (a *publicAddress) balanced(lb vnet.LoadBalancer, f vnet.Frontend) {
	a.sku, a.method = armnetwork.PublicIPAddressSKUName(lb.SKU), armnetwork.IPAllocationMethodStatic
	for _, r := range lb.OutboundRules {
		if slices.Contains(r.Frontends, f.Name) {
			a.idleMinutes = r.IdleTimeoutMinutes
		}
	}
}

func (b builder) publicIP(a publicAddress) *armnetwork.PublicIPAddress {
	p := &armnetwork.PublicIPAddressPropertiesFormat{
		IPAddress: new(a.address.String()), PublicIPAddressVersion: new(version(a.address)), PublicIPAllocationMethod: new(a.method),
		IdleTimeoutInMinutes: new(int32(a.idleMinutes)), ProvisioningState: succeeded,
	}
	if a.of != nil {
		p.IPConfiguration = &armnetwork.IPConfiguration{ID: a.of}
	}
	if a.gateway != nil {
		p.NatGateway = &armnetwork.NatGateway{ID: a.gateway}
	}
	return &armnetwork.PublicIPAddress{
		ID: b.publicIPID(a.name, a.group), Name: new(a.name), Type: new("Microsoft.Network/publicIPAddresses"),
		Location: new(b.n.Location), SKU: &armnetwork.PublicIPAddressSKU{Name: new(a.sku)}, Properties: p,
	}
}

func (b builder) outboundRule(lb vnet.LoadBalancer, r vnet.OutboundRule) *armnetwork.OutboundRule {
	p := &armnetwork.OutboundRulePropertiesFormat{
		AllocatedOutboundPorts: new(int32(r.AllocatedOutboundPorts)), IdleTimeoutInMinutes: new(int32(r.IdleTimeoutMinutes)),
		EnableTCPReset:     new(r.TCPReset),
		Protocol:           new(armnetwork.LoadBalancerOutboundRuleProtocol(cmp.Or(r.Protocol, "All"))),
		BackendAddressPool: sub(b.lbID(lb.Name, "backendAddressPools", r.BackendPool)), ProvisioningState: succeeded,
	}
	for _, f := range r.Frontends {
		p.FrontendIPConfigurations = append(p.FrontendIPConfigurations, sub(b.lbID(lb.Name, "frontendIPConfigurations", f)))
	}
	return &armnetwork.OutboundRule{
		ID: b.lbID(lb.Name, "outboundRules", r.Name), Name: new(r.Name), Type: new("Microsoft.Network/loadBalancers/outboundRules"),
		Properties: p,
	}
}

// routeTable: those that AKS makes for its nodes' subnet have names that start with aks-, and are in the nodes' resource group.
func (b builder) routeTable(t vnet.RouteTable) *armnetwork.RouteTable {
	group := b.group("routeTables", t.Name)
	p := &armnetwork.RouteTablePropertiesFormat{DisableBgpRoutePropagation: new(false), ProvisioningState: succeeded}
	for _, r := range t.Routes {
		route := &armnetwork.RoutePropertiesFormat{
			AddressPrefix: new(r.Prefix.String()), NextHopType: new(armnetwork.RouteNextHopType(r.NextHopType)), ProvisioningState: succeeded,
		}
		if r.NextHop.IsValid() {
			route.NextHopIPAddress = new(r.NextHop.String())
		}
		p.Routes = append(p.Routes, &armnetwork.Route{
			ID: b.id(group, "routeTables", t.Name, "routes", r.Name), Name: new(r.Name), Type: new("Microsoft.Network/routeTables/routes"),
			Properties: route,
		})
	}
	for _, v := range b.n.VNets {
		for _, s := range v.Subnets {
			if s.RouteTable == t.Name {
				p.Subnets = append(p.Subnets, &armnetwork.Subnet{ID: b.subnetID(v.Name, s.Name)})
			}
		}
	}
	return &armnetwork.RouteTable{
		ID: b.id(group, "routeTables", t.Name), Name: new(t.Name), Type: new("Microsoft.Network/routeTables"), Location: new(b.n.Location),
		Properties: p,
	}
}

// peering returns one side of a peering.
func (b builder) peering(v vnet.VNet, group string, peering vnet.Peering) *armnetwork.VirtualNetworkPeering {
	p := &armnetwork.VirtualNetworkPeeringPropertiesFormat{
		AllowVirtualNetworkAccess: new(true), AllowForwardedTraffic: new(true), AllowGatewayTransit: new(false), UseRemoteGateways: new(false),
		PeeringState: new(armnetwork.VirtualNetworkPeeringState(b.n.PeeringState(v.Name, peering))), ProvisioningState: succeeded,
	}
	for _, remote := range b.n.VNets {
		if remote.Name != peering.RemoteVNet {
			continue
		}
		p.RemoteVirtualNetwork, p.RemoteAddressSpace = sub(b.id(b.groupOf(remote), "virtualNetworks", remote.Name)), &armnetwork.AddressSpace{}
		for _, prefix := range remote.AddressPrefixes {
			p.RemoteAddressSpace.AddressPrefixes = append(p.RemoteAddressSpace.AddressPrefixes, new(prefix.String()))
		}
	}
	return &armnetwork.VirtualNetworkPeering{
		ID: b.id(group, "virtualNetworks", v.Name, "virtualNetworkPeerings", peering.Name), Name: new(peering.Name),
		Type: new("Microsoft.Network/virtualNetworks/virtualNetworkPeerings"), Properties: p,
	}
}

func (b builder) groupOf(v vnet.VNet) string {
	if v.ResourceGroup == "" {
		return b.n.ResourceGroup
	}
	return v.ResourceGroup
}

func (b builder) vnet(v vnet.VNet) *armnetwork.VirtualNetwork {
	group := b.groupOf(v)
	p := &armnetwork.VirtualNetworkPropertiesFormat{AddressSpace: &armnetwork.AddressSpace{}, ProvisioningState: succeeded}
	for _, prefix := range v.AddressPrefixes {
		p.AddressSpace.AddressPrefixes = append(p.AddressSpace.AddressPrefixes, new(prefix.String()))
	}
	for _, s := range v.Subnets {
		subnet := &armnetwork.SubnetPropertiesFormat{
			AddressPrefix: new(s.Prefix.String()), ProvisioningState: succeeded, NetworkSecurityGroup: b.groupRef(s.SecurityGroup),
		}
		if s.RouteTable != "" {
			subnet.RouteTable = &armnetwork.RouteTable{ID: b.id(b.group("routeTables", s.RouteTable), "routeTables", s.RouteTable)}
		}
		if s.NATGateway != "" {
			subnet.NatGateway = sub(b.gatewayID(s.NATGateway))
		}
		if s.Private {
			subnet.DefaultOutboundAccess = new(false)
		}
		p.Subnets = append(p.Subnets, &armnetwork.Subnet{
			ID: b.subnetID(v.Name, s.Name), Name: new(s.Name), Type: new("Microsoft.Network/virtualNetworks/subnets"), Properties: subnet,
		})
	}
	for _, peering := range v.Peerings {
		p.VirtualNetworkPeerings = append(p.VirtualNetworkPeerings, b.peering(v, group, peering))
	}
	return &armnetwork.VirtualNetwork{
		ID: b.id(group, "virtualNetworks", v.Name), Name: new(v.Name), Type: new("Microsoft.Network/virtualNetworks"),
		Location: new(b.n.Location), Properties: p,
	}
}

// gatewayID returns a NAT gateway's id: those that AKS makes are in the nodes' resource group.
func (b builder) gatewayID(name string) *string {
	return b.id(b.group("natGateways", name), "natGateways", name)
}

func (b builder) natGateway(g vnet.NATGateway) *armnetwork.NatGateway {
	group := b.group("natGateways", g.Name)
	p := &armnetwork.NatGatewayPropertiesFormat{IdleTimeoutInMinutes: new(int32(g.IdleTimeoutMinutes)), ProvisioningState: succeeded}
	for _, name := range g.PublicIPs {
		p.PublicIPAddresses = append(p.PublicIPAddresses, sub(b.publicIPID(name, group)))
	}
	for _, v := range b.n.VNets {
		for _, s := range v.Subnets {
			if s.NATGateway == g.Name {
				p.Subnets = append(p.Subnets, sub(b.subnetID(v.Name, s.Name)))
			}
		}
	}
	return &armnetwork.NatGateway{
		ID: b.gatewayID(g.Name), Name: new(g.Name), Type: new("Microsoft.Network/natGateways"), Location: new(b.n.Location),
		SKU: &armnetwork.NatGatewaySKU{Name: new(armnetwork.NatGatewaySKUNameStandard)}, Properties: p,
	}
}
