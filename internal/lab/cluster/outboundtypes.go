package cluster

import (
	"fmt"
	"net/netip"
	"slices"
)

// OutboundType is how nodes reach the internet, as "az aks create --outbound-type" takes it.
type OutboundType string

// The outbound types.
const (
	OutboundLoadBalancer OutboundType = "loadBalancer"
	// OutboundManagedNATGateway: AKS makes a NAT gateway for the nodes' subnets.
	OutboundManagedNATGateway OutboundType = "managedNATGateway"
	// OutboundUserAssignedNATGateway: the nodes' subnets have a NAT gateway of the user's.
	OutboundUserAssignedNATGateway OutboundType = "userAssignedNATGateway"
	// OutboundUserDefinedRouting: a route table of the user's leads to a firewall.
	OutboundUserDefinedRouting OutboundType = "userDefinedRouting"
	// OutboundNone: AKS sets nothing up.
	OutboundNone OutboundType = "none"
	// OutboundBlock: a security rule of AKS denies what is for the internet.
	OutboundBlock OutboundType = "block"
)

// NATGatewayProfile is the NAT gateway that AKS makes.
type NATGatewayProfile struct {
	// ManagedIPs is the number of its public addresses ("az aks create --nat-gateway-managed-outbound-ip-count"), 1 to 16. Default 1.
	ManagedIPs int `json:"managedIPs,omitempty"`
	// IdleTimeoutMinutes is how long a TCP connection may be idle (--nat-gateway-idle-timeout), 4 to 120. Default 4.
	IdleTimeoutMinutes int `json:"idleTimeoutMinutes,omitempty"`
}

// NATGateway is a NAT gateway for the subnets that refer to it. Their machines share 64,512 ports of each public address towards one
// destination.
type NATGateway struct {
	Name string `json:"name"` // required
	// PublicIPs is the number of its public addresses, 1 to 16. Default 1.
	PublicIPs int `json:"publicIPs,omitempty"`
	// IdleTimeoutMinutes is how long a TCP connection may be idle, 4 to 120. Default 4. For UDP it is always 4.
	IdleTimeoutMinutes int `json:"idleTimeoutMinutes,omitempty"`
}

// Firewall makes a VM a firewall. It forwards new connections and keeps track of them. Destinations outside private ranges see its
// own address. It drops packets of connections that it did not see begin.
type Firewall struct {
	// DNAT are rules for connections to the VM's own address.
	DNAT []DNATRule `json:"dnat,omitzero"`
}

// DNATRule leads connections with a port of the firewall elsewhere. The firewall translates their source, too, so that answers come back.
type DNATRule struct {
	Name     string   `json:"name"`               // required
	Protocol Protocol `json:"protocol,omitempty"` // Tcp or Udp, default Tcp
	Port     int      `json:"port"`               // of the firewall, required
	// Address is where the connections are led, such as the address of an internal load balancer. Required.
	Address netip.Addr `json:"address"`
	// ToPort is the port there. Default port.
	ToPort int `json:"toPort,omitempty"`
}

// maxGatewayIPs is how many public addresses a NAT gateway can have.
const maxGatewayIPs = 16

// setOutboundDefaults fills in how nodes reach the internet.
func (s *Spec) setOutboundDefaults() {
	set(&s.OutboundType, OutboundLoadBalancer)
	if s.OutboundType == OutboundManagedNATGateway {
		set(&s.NATGateway.ManagedIPs, 1)
		set(&s.NATGateway.IdleTimeoutMinutes, 4)
	}
	for i := range s.Azure.NATGateways {
		set(&s.Azure.NATGateways[i].PublicIPs, 1)
		set(&s.Azure.NATGateways[i].IdleTimeoutMinutes, 4)
	}
	if s.OutboundType != OutboundLoadBalancer {
		set(&s.LoadBalancer.SKU, SKUStandard)
	}
	for i := range s.Azure.VMs {
		if f := s.Azure.VMs[i].Firewall; f != nil {
			for j := range f.DNAT {
				set(&f.DNAT[j].Protocol, ProtocolTCP)
				set(&f.DNAT[j].ToPort, f.DNAT[j].Port)
			}
		}
	}
}

// HasDefaultOutbound reports whether machines of the subnet that have nothing else leave by default outbound access. Without a field that
// says so, they do with outboundType loadBalancer only: Azure's new virtual networks have private subnets.
func (c *Cluster) HasDefaultOutbound(s Subnet) bool {
	if s.DefaultOutboundAccess != nil {
		return *s.DefaultOutboundAccess
	}
	return c.Spec.OutboundType == OutboundLoadBalancer
}

// ManagedNATGateway returns the name of the NAT gateway that AKS makes; ok is false where it makes none.
func (c *Cluster) ManagedNATGateway() (name string, ok bool) {
	return "aks-natgateway-" + c.ID(), c.Spec.OutboundType == OutboundManagedNATGateway
}

// IsNodeSubnet reports whether a node pool is in the subnet of a VNet.
func (c *Cluster) IsNodeSubnet(vnet string, s Subnet) bool {
	return slices.ContainsFunc(c.Spec.NodePools, func(p NodePool) bool { return p.VNetSubnet == vnet+"/"+s.Name })
}

// outboundType checks how nodes reach the internet. What AKS checks has its words.
func (v *validator) outboundType() {
	s := v.c.Spec
	const path = "spec.outboundType"
	choice(v, path, s.OutboundType, OutboundLoadBalancer, OutboundManagedNATGateway, OutboundUserAssignedNATGateway, OutboundUserDefinedRouting,
		OutboundNone, OutboundBlock)
	if s.OutboundType != OutboundLoadBalancer && s.LoadBalancer.SKU == SKUBasic {
		v.errs.add("spec.loadBalancer.sku", "leave it out, or write standard", "outboundType %s needs a Standard load balancer", s.OutboundType)
	}
	managed := s.OutboundType == OutboundManagedNATGateway
	if !managed && s.NATGateway != (NATGatewayProfile{}) {
		v.errs.add("spec.natGateway", "leave it out, or write outboundType: managedNATGateway", "AKS makes a NAT gateway only with that type")
	}
	if managed {
		v.checkRange("spec.natGateway.managedIPs", s.NATGateway.ManagedIPs, 1, maxGatewayIPs)
		v.checkRange("spec.natGateway.idleTimeoutMinutes", s.NATGateway.IdleTimeoutMinutes, 4, 120)
	}
	v.natGateways()
	for i, p := range s.NodePools {
		if _, subnet, ok := v.c.findSubnet(p.VNetSubnet); ok {
			v.nodesOutbound(fmt.Sprintf("spec.nodePools[%d].vnetSubnet", i), p.VNetSubnet, subnet)
		}
	}
	v.firewalls()
}

// nodesOutbound checks what an outbound type needs of a node pool's subnet.
func (v *validator) nodesOutbound(path, ref string, s Subnet) {
	switch v.c.Spec.OutboundType {
	case OutboundManagedNATGateway:
		if s.NATGateway != "" {
			v.errs.add(path, "write outboundType: userAssignedNATGateway, or take natGateway from the subnet",
				"subnet %s has NAT gateway %s, and AKS makes another one with outboundType managedNATGateway", ref, s.NATGateway)
		}
	case OutboundUserAssignedNATGateway:
		if s.NATGateway == "" {
			v.errs.add(path, "add a gateway to spec.azure.natGateways and write its name in the subnet's natGateway",
				"subnet %s has no NAT gateway, which outboundType userAssignedNATGateway needs", ref)
		}
	case OutboundUserDefinedRouting:
		v.defaultRoute(path, ref, s)
	}
}

// defaultRoute checks that a subnet's route table sends everything to a firewall, as AKS does.
func (v *validator) defaultRoute(path, ref string, s Subnet) {
	const remedy = "give its route table a route 0.0.0.0/0 with nextHopType: VirtualAppliance"
	if s.RouteTable == "" {
		v.errs.add(path, "write the name of a route table in the subnet's routeTable",
			"ExistingRouteTableNotAssociatedWithSubnet: no route table is associated with subnet %s", ref)
		return
	}
	for _, t := range v.c.Spec.Azure.RouteTables {
		if t.Name != s.RouteTable {
			continue
		}
		i := slices.IndexFunc(t.Routes, func(r Route) bool { return r.Prefix.IsValid() && r.Prefix.Bits() == 0 })
		switch {
		case i < 0:
			v.errs.add(path, remedy, "RouteTableMissingDefaultRouteError: default route 0.0.0.0/0 is missing from route table %s of subnet %s",
				t.Name, ref)
		case t.Routes[i].NextHopType != NextHopAppliance:
			v.errs.add(path, remedy, "RouteTableInvalidNextHop: default route 0.0.0.0/0 of route table %s has a next hop of type %s; "+
				"only VirtualAppliance or VirtualNetworkGateway are allowed", t.Name, t.Routes[i].NextHopType)
		}
	}
}

// natGateways checks the NAT gateways and that the subnets name some of them.
func (v *validator) natGateways() {
	names := map[string]string{}
	var known []string
	for i, g := range v.c.Spec.Azure.NATGateways {
		at := fmt.Sprintf("spec.azure.natGateways[%d]", i)
		v.azureName(at+".name", g.Name, names)
		known = append(known, g.Name)
		v.checkRange(at+".publicIPs", g.PublicIPs, 1, maxGatewayIPs)
		v.checkRange(at+".idleTimeoutMinutes", g.IdleTimeoutMinutes, 4, 120)
	}
	for _, s := range v.c.subnets() {
		if s.NATGateway == "" {
			continue
		}
		if !slices.Contains(known, s.NATGateway) {
			v.errs.add(s.path+".natGateway", suggestName(s.NATGateway, known, "add it to spec.azure.natGateways"), "no NAT gateway %q", s.NATGateway)
		}
		if v.c.Spec.LoadBalancer.SKU == SKUBasic && v.c.IsNodeSubnet(s.vnet.Name, s.Subnet) {
			v.errs.add(s.path+".natGateway", "write spec.loadBalancer.sku: standard", "members of a Basic load balancer cannot be behind a NAT gateway")
		}
	}
}

// firewalls checks the VMs that are firewalls.
func (v *validator) firewalls() {
	for i, vm := range v.c.Spec.Azure.VMs {
		if vm.Firewall == nil {
			continue
		}
		at := fmt.Sprintf("spec.azure.vms[%d]", i)
		if !vm.IPForwarding {
			v.errs.add(at+".ipForwarding", "write true", "a firewall forwards packets")
		}
		names, ports := map[string]string{}, map[string]string{}
		for j, r := range vm.Firewall.DNAT {
			rule := fmt.Sprintf("%s.firewall.dnat[%d]", at, j)
			v.azureName(rule+".name", r.Name, names)
			choice(v, rule+".protocol", r.Protocol, ProtocolTCP, ProtocolUDP)
			v.checkRange(rule+".port", r.Port, 1, 65535)
			v.checkRange(rule+".toPort", r.ToPort, 1, 65535)
			if !r.Address.Is4() {
				v.errs.add(rule+".address", "write an IPv4 address, such as an internal load balancer's", "missing")
			}
			key := fmt.Sprintf("%s %d", r.Protocol, r.Port)
			if first, twice := ports[key]; twice {
				v.errs.add(rule+".port", "write another port", "%s has the same protocol and port", first)
			}
			ports[key] = rule
		}
	}
}
