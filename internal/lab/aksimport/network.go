package aksimport

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// networks imports the nodes' virtual network and all that peerings join to it.
func (m *importer) networks() error {
	m.home = m.findHome()
	if m.VNets[m.home] == nil {
		return errors.New(m.UnreadResource(m.home))
	}
	ids := []string{m.home}
	for i := 0; i < len(ids); i++ {
		for _, p := range m.VNets[ids[i]].Peerings {
			remote := peered(&p)
			switch {
			case p.PeeringState != vnet.PeeringConnected, slices.Contains(ids, remote):
			case m.VNets[remote] == nil || m.VNets[remote].ID == "":
				m.note("spec.azure.vnets", "Peering %s: %s.", p.Name, m.UnreadResource(remote))
			default:
				ids = append(ids, remote)
			}
		}
	}
	taken := map[string]bool{}
	for _, id := range ids {
		name := m.VNets[id].Name
		for n := 2; taken[strings.ToLower(name)]; n++ {
			name = fmt.Sprintf("%s-%d", m.VNets[id].Name, n)
		}
		taken[strings.ToLower(name)], m.names[id] = true, name
	}
	for _, id := range ids {
		m.network(id)
	}
	return nil
}

func peered(p *armview.Peering) string {
	if p.Remote == nil {
		return ""
	}
	return strings.ToLower(p.Remote.ID)
}

// findHome returns the id of the nodes' virtual network: the pools name it, or else it is AKS's own, in the node resource group.
func (m *importer) findHome() string {
	for i := range m.aks.AgentPools {
		if id, _, ok := strings.Cut(strings.ToLower(m.aks.AgentPools[i].VNetSubnetID), "/subnets/"); ok {
			return id
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.VNets)) {
		if strings.EqualFold(part(id, "resourcegroups"), m.aks.NodeResourceGroup) && m.VNets[id].ID != "" {
			return id
		}
	}
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/virtualNetworks/aks-vnet",
		part(m.aks.ID, "subscriptions"), m.aks.NodeResourceGroup)
}

// subnetName returns "vnet/subnet" for the id of a subnet; for "" AKS's own.
func (m *importer) subnetName(id string) string {
	network, subnet, _ := strings.Cut(strings.ToLower(id), "/subnets/")
	if id == "" {
		network = m.home
	}
	v := m.VNets[network]
	if v == nil {
		return ""
	}
	for _, s := range v.Subnets {
		if id == "" || strings.EqualFold(s.Name, subnet) {
			return m.names[network] + "/" + s.Name
		}
	}
	return m.names[network] + "/" + subnet
}

func (m *importer) network(id string) {
	v := m.VNets[id]
	all := &m.c.Spec.Azure.VNets
	path := fmt.Sprintf("spec.azure.vnets[%d]", len(*all))
	one := cluster.VNet{Name: m.names[id]}
	for _, text := range v.AddressSpace.AddressPrefixes {
		if p := m.prefix(path, "address prefix", text); p.IsValid() && p.Addr().Is4() {
			one.AddressPrefixes = append(one.AddressPrefixes, p)
		} else if p.IsValid() {
			m.note(path, "%s: the lab has no IPv6.", p)
		}
	}
	for i := range v.Peerings {
		if name := m.names[peered(&v.Peerings[i])]; name != "" && v.Peerings[i].PeeringState == vnet.PeeringConnected {
			one.Peerings = append(one.Peerings, name)
		}
	}
	for i := range v.Subnets {
		m.subnet(path, &one, &v.Subnets[i])
	}
	*all = append(*all, one)
}

func (m *importer) subnet(network string, v *cluster.VNet, s *armview.Subnet) {
	path := fmt.Sprintf("%s.subnets[%d]", network, len(v.Subnets))
	one := cluster.Subnet{Name: s.Name}
	for _, text := range append([]string{s.AddressPrefix}, s.AddressPrefixes...) {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p == one.Prefix:
		case one.Prefix.IsValid() || !p.Addr().Is4():
			m.note(path, "Prefix %s: a subnet of the lab has one, of IPv4.", p)
		default:
			one.Prefix = p
		}
	}
	if !one.Prefix.IsValid() {
		m.note(network, "Subnet %s has no IPv4 prefix.", s.Name)
		return
	}
	if t := s.RouteTable; t != nil && m.RouteTables[strings.ToLower(t.ID)] == nil {
		m.note(path, "routeTable: %s.", m.UnreadResource(t.ID))
	} else if t != nil {
		one.RouteTable = last(t.ID)
	}
	if g := s.SecurityGroup; g != nil && m.SecurityGroups[strings.ToLower(g.ID)] == nil {
		m.note(path, "networkSecurityGroup: %s.", m.UnreadResource(g.ID))
	} else if g != nil {
		one.NetworkSecurityGroup = m.groupName(g.ID)
	}
	one.DefaultOutboundAccess = s.DefaultOutboundAccess
	switch g := s.NATGateway; {
	case g == nil:
	case m.outboundType() == cluster.OutboundManagedNATGateway && strings.EqualFold(part(g.ID, "resourceGroups"), m.aks.NodeResourceGroup):
		// AKS's own: the lab makes it
	case m.NATGateways[strings.ToLower(g.ID)] == nil:
		m.note(path, "natGateway: %s.", m.UnreadResource(g.ID))
	default:
		one.NATGateway = last(g.ID)
	}
	if len(s.ServiceEndpoints) > 0 {
		m.note(path, "Service endpoints: the lab has none.")
	}
	if len(s.PrivateEndpoints) > 0 {
		m.note(path, "Private endpoints: the lab has none.")
	}
	v.Subnets = append(v.Subnets, one)
}

// routeTables imports the route tables that subnets name.
func (m *importer) routeTables() {
	a := &m.c.Spec.Azure
	for _, id := range slices.Sorted(maps.Keys(m.RouteTables)) {
		t := m.RouteTables[id]
		named := func(s cluster.Subnet) bool { return strings.EqualFold(s.RouteTable, last(t.ID)) }
		if !m.anySubnet(named) || slices.ContainsFunc(a.RouteTables, func(o cluster.RouteTable) bool { return o.Name == last(t.ID) }) {
			continue
		}
		path := fmt.Sprintf("spec.azure.routeTables[%d]", len(a.RouteTables))
		one := cluster.RouteTable{Name: last(t.ID)}
		for _, r := range t.Routes {
			m.route(path, &one, r)
		}
		a.RouteTables = append(a.RouteTables, one)
	}
}

// natGateways imports the NAT gateways that subnets name.
func (m *importer) natGateways() {
	a := &m.c.Spec.Azure
	for _, id := range slices.Sorted(maps.Keys(m.NATGateways)) {
		g := m.NATGateways[id]
		named := func(s cluster.Subnet) bool { return s.NATGateway != "" && strings.EqualFold(s.NATGateway, last(g.ID)) }
		if !m.anySubnet(named) || slices.ContainsFunc(a.NATGateways, func(o cluster.NATGateway) bool { return o.Name == last(g.ID) }) {
			continue
		}
		path := fmt.Sprintf("spec.azure.natGateways[%d]", len(a.NATGateways))
		one := cluster.NATGateway{Name: last(g.ID), PublicIPs: len(g.PublicIPs), IdleTimeoutMinutes: g.IdleTimeoutInMinutes}
		for _, r := range g.PublicIPPrefixes {
			if p, err := netip.ParsePrefix(m.prefixOf(r.ID)); err == nil && p.Addr().Is4() {
				one.PublicIPs += 1 << (32 - p.Bits())
			} else {
				m.note(path, "Public IP prefix %s: how many addresses it has is not in the files.", last(r.ID))
			}
		}
		if sku := g.SKU.Name; sku != "" && !strings.EqualFold(sku, "Standard") {
			m.note(path, "SKU %s: the lab's gateway is a Standard one.", sku)
		}
		a.NATGateways = append(a.NATGateways, one)
	}
}

// prefixOf returns the range of a public IP prefix; "" if it was not read.
func (m *importer) prefixOf(id string) string {
	if p := m.Prefixes[strings.ToLower(id)]; p != nil {
		return p.IPPrefix
	}
	return ""
}

func (m *importer) anySubnet(is func(cluster.Subnet) bool) bool {
	return slices.ContainsFunc(m.c.Spec.Azure.VNets, func(v cluster.VNet) bool { return slices.ContainsFunc(v.Subnets, is) })
}

func (m *importer) route(path string, t *cluster.RouteTable, r armview.Route) {
	p, err := netip.ParsePrefix(r.AddressPrefix)
	hop, _ := netip.ParseAddr(r.NextHopIPAddress)
	pods := m.c.Spec.Network.PodCIDR
	switch {
	case err == nil && pods.IsValid() && pods.Overlaps(p) && p.Bits() >= pods.Bits():
		if m.c.Spec.Network.IsOverlay() {
			m.note(path, "Left out: route %s of %s to pods: the lab's nodes may have other parts of podCIDR.", r.Name, p)
		}
		return // with kubenet, the lab makes the routes to its nodes' pods
	case err != nil:
		m.note(path, "Route %s to service tag %s: the lab has no routes to service tags.", r.Name, r.AddressPrefix)
		return
	case r.NextHopType == "VirtualNetworkGateway":
		m.note(path, "Route %s of %s to the virtual network gateway: the lab has none.", r.Name, p)
		return
	}
	t.Routes = append(t.Routes, cluster.Route{Name: r.Name, Prefix: p, NextHopType: cluster.NextHopType(r.NextHopType), NextHopAddress: hop})
	if hop.IsValid() {
		m.appliance(hop)
	}
}

// ofService are the names of security rules that AKS makes for Services, today's and earlier ones.
var ofService = regexp.MustCompile(`^(k8s-azure-lb_|a[0-9a-f]{31,32}-)`)

// isNodeGroup reports whether a security group is the one that AKS makes for the nodes.
func (m *importer) isNodeGroup(id string) bool {
	return strings.EqualFold(part(id, "resourceGroups"), m.aks.NodeResourceGroup)
}

// groupName returns a security group's name in the lab. The nodes' group has another name there than in Azure.
func (m *importer) groupName(id string) string {
	if m.isNodeGroup(id) {
		return m.c.NodeSecurityGroup()
	}
	return last(id)
}

// securityGroups imports the groups that subnets and machines name, and that of the nodes.
func (m *importer) securityGroups() {
	a := &m.c.Spec.Azure
	for _, id := range slices.Sorted(maps.Keys(m.SecurityGroups)) {
		g := m.SecurityGroups[id]
		name := m.groupName(g.ID)
		used := m.anySubnet(func(s cluster.Subnet) bool { return s.NetworkSecurityGroup == name }) ||
			slices.ContainsFunc(a.VMs, func(vm cluster.VM) bool { return vm.NetworkSecurityGroup == name })
		there := slices.ContainsFunc(a.NetworkSecurityGroups, func(o cluster.SecurityGroup) bool { return o.Name == name })
		if there || !used && !m.isNodeGroup(g.ID) {
			continue
		}
		path := fmt.Sprintf("spec.azure.networkSecurityGroups[%d]", len(a.NetworkSecurityGroups))
		one := cluster.SecurityGroup{Name: name}
		services := 0
		for i := range g.Rules {
			if ofService.MatchString(g.Rules[i].Name) {
				services++
				continue
			}
			m.securityRule(path, &one, &g.Rules[i])
		}
		if services > 0 {
			m.note(path, "Left out: rules of Services (%d): the lab makes those of its own Services.", services)
		}
		if m.isNodeGroup(g.ID) && len(one.Rules) == 0 && services == 0 {
			continue
		}
		a.NetworkSecurityGroups = append(a.NetworkSecurityGroups, one)
	}
}

func (m *importer) securityRule(path string, g *cluster.SecurityGroup, r *armview.SecurityRule) {
	if len(r.SourceGroups)+len(r.DestinationGroups) > 0 {
		m.note(path, "Left out: rule %s (%d) of application security groups: the lab has none.", r.Name, r.Priority)
		return
	}
	g.Rules = append(g.Rules, cluster.SecurityRule{
		Name: r.Name, Priority: r.Priority, Direction: cluster.Direction(r.Direction), Access: cluster.Access(r.Access),
		Protocol:                   cluster.Protocol(r.Protocol),
		SourceAddressPrefixes:      oneOrSeveral(r.SourceAddressPrefix, r.SourceAddressPrefixes),
		DestinationAddressPrefixes: oneOrSeveral(r.DestinationAddressPrefix, r.DestinationAddressPrefixes),
		SourcePortRanges:           oneOrSeveral(r.SourcePortRange, r.SourcePortRanges),
		DestinationPortRanges:      oneOrSeveral(r.DestinationPortRange, r.DestinationPortRanges),
	})
}

// oneOrSeveral returns the list of a field that Azure has in one of two places, or nil for everything, as in cluster.yaml.
func oneOrSeveral(one string, several []string) []string {
	all := slices.Clone(several)
	if one != "" {
		all = append(all, one)
	}
	if slices.Contains(all, "*") {
		return nil
	}
	return all
}

// machines imports the virtual machines beside the cluster's in its networks.
func (m *importer) machines() {
	for _, id := range slices.Sorted(maps.Keys(m.Interfaces)) {
		n := m.Interfaces[id]
		if n.VirtualMachine == nil || strings.EqualFold(part(n.VirtualMachine.ID, "resourceGroups"), m.aks.NodeResourceGroup) {
			continue
		}
		for _, c := range n.IPConfigs {
			a, err := netip.ParseAddr(c.PrivateIPAddress)
			if err != nil || c.Subnet == nil || !c.Primary && len(n.IPConfigs) > 1 {
				continue
			}
			subnet := m.subnetName(c.Subnet.ID)
			if subnet == "" || strings.HasPrefix(subnet, "/") {
				continue
			}
			vm := cluster.VM{Name: hostName(last(n.VirtualMachine.ID)), Subnet: subnet, Address: a, IPForwarding: n.EnableIPForwarding,
				PublicIP: c.PublicIPAddress != nil}
			if n.SecurityGroup != nil && m.SecurityGroups[strings.ToLower(n.SecurityGroup.ID)] != nil {
				vm.NetworkSecurityGroup = m.groupName(n.SecurityGroup.ID)
			}
			m.c.Spec.Azure.VMs = append(m.c.Spec.Azure.VMs, vm)
			break
		}
	}
}

// notHost are characters that a machine's name in the lab does not have.
var notHost = regexp.MustCompile(`[^a-z0-9-]+`)

func hostName(s string) string {
	return strings.Trim(notHost.ReplaceAllString(strings.ToLower(s), "-"), "-")
}

// azureFirewallSubnet is the name that the subnet of an Azure Firewall must have, and no other may.
const azureFirewallSubnet = "AzureFirewallSubnet"

// appliance makes a machine that forwards where a route leads to an address of which no interface was read: an Azure Firewall, or a load
// balancer before appliances.
func (m *importer) appliance(a netip.Addr) {
	vms := &m.c.Spec.Azure.VMs
	if slices.ContainsFunc(*vms, func(vm cluster.VM) bool { return vm.Address == a }) {
		return
	}
	for _, v := range m.c.Spec.Azure.VNets {
		for _, s := range v.Subnets {
			if !s.Prefix.Contains(a) {
				continue
			}
			vm := cluster.VM{Name: "appliance-" + strings.ReplaceAll(a.String(), ".", "-"), Subnet: v.Name + "/" + s.Name, Address: a, IPForwarding: true}
			path := fmt.Sprintf("spec.azure.vms[%d]", len(*vms))
			if s.Name == azureFirewallSubnet {
				vm.PublicIP, vm.Firewall = true, &cluster.Firewall{}
				m.note(path, "For Azure Firewall at %s: the lab's firewall allows all connections that begin behind it; its rules are not imported.", a)
			} else {
				m.note(path, "For the firewall at %s: the machine forwards, and neither translates nor filters: add firewall for that.", a)
			}
			*vms = append(*vms, vm)
			return
		}
	}
	m.note("spec.azure.routeTables", "No subnet that was read holds next hop %s: the lab drops what goes there, as Azure does without a machine.", a)
}
