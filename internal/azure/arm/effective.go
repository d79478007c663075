package arm

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/vnet"
)

// act answers a POST: it starts an action on a resource, whose result the client fetches.
func (s *Server) act(h http.Header, r *http.Request, path []string) (int, any, error) {
	notAllowed := newError(http.StatusMethodNotAllowed, "MethodNotAllowed", "The lab has no such action.")
	if len(path) != 9 || !strings.EqualFold(path[6], "networkInterfaces") {
		return 0, nil, notAllowed
	}
	p, err := s.path(path[:8])
	if err != nil {
		return 0, nil, err
	}
	n := Visible(s.Network())
	if _, err := get(n, p); err != nil {
		return 0, nil, err
	}
	nic, _ := find(n.NICs, func(nic vnet.NIC) bool { return strings.EqualFold(nic.Name, p.Name) })
	var op operation
	switch strings.ToLower(path[8]) {
	case "effectivenetworksecuritygroups":
		op.result = EffectiveSecurityGroups(n, nic)
	case "effectiveroutetable":
		op.result = EffectiveRoutes(n, nic)
	default:
		return 0, nil, notAllowed
	}
	s.start(h, r, n, op, true)
	return http.StatusAccepted, nil, nil
}

// EffectiveRoutes returns the routes that the packets of a NIC meet: Azure's own and its subnet's route table's.
func EffectiveRoutes(n vnet.Network, nic vnet.NIC) armnetwork.EffectiveRouteListResult {
	all := armnetwork.EffectiveRouteListResult{Value: []*armnetwork.EffectiveRoute{}}
	s, _ := n.Subnet(nic.VNet, nic.Subnet)
	for _, r := range n.EffectiveRoutes(nic.VNet, s.RouteTable) {
		route := &armnetwork.EffectiveRoute{
			Source: new(armnetwork.EffectiveRouteSourceDefault), State: new(armnetwork.EffectiveRouteStateActive),
			AddressPrefix: []*string{new(r.Prefix.String())}, NextHopType: new(armnetwork.RouteNextHopType(r.NextHopType)),
			NextHopIPAddress: []*string{},
		}
		if r.User != "" {
			route.Source, route.Name = new(armnetwork.EffectiveRouteSourceUser), new(r.User)
		}
		if !r.Active {
			route.State = new(armnetwork.EffectiveRouteStateInvalid)
		}
		if r.NextHop.IsValid() {
			route.NextHopIPAddress = append(route.NextHopIPAddress, new(r.NextHop.String()))
		}
		all.Value = append(all.Value, route)
	}
	return all
}

// EffectiveSecurityGroups returns the security groups that a NIC's flows meet: with Azure's own rules, and what service tags stand for.
func EffectiveSecurityGroups(n vnet.Network, nic vnet.NIC) armnetwork.EffectiveNetworkSecurityGroupListResult {
	b := newBuilder(n)
	all := armnetwork.EffectiveNetworkSecurityGroupListResult{Value: []*armnetwork.EffectiveNetworkSecurityGroup{}}
	for _, g := range n.EffectiveSecurityGroups(nic) {
		e := &armnetwork.EffectiveNetworkSecurityGroup{
			Association: &armnetwork.EffectiveNetworkSecurityGroupAssociation{}, NetworkSecurityGroup: sub(b.groupID(g.Name)),
		}
		if g.OfNIC {
			e.Association.NetworkInterface = sub(b.id(b.machineGroup(nic.Machine), "networkInterfaces", nic.Name))
		}
		if g.OfSubnet {
			e.Association.Subnet = sub(b.subnetID(nic.VNet, nic.Subnet))
		}
		for _, r := range g.Rules {
			e.EffectiveSecurityRules = append(e.EffectiveSecurityRules, effectiveRule(r))
		}
		all.Value = append(all.Value, e)
	}
	return all
}

// effectiveRule returns a rule as the provider gives it: the first of each list in the singular field, too, all addresses as 0.0.0.0/0 and
// all ports as 0-65535.
func effectiveRule(r vnet.EffectiveRule) *armnetwork.EffectiveNetworkSecurityRule {
	e := &armnetwork.EffectiveNetworkSecurityRule{
		Name: new(RuleName(r.SecurityRule)), Priority: new(int32(r.Priority)), Access: new(armnetwork.SecurityRuleAccess(r.Access)),
		Direction: new(armnetwork.SecurityRuleDirection(r.Direction)), Protocol: new(armnetwork.EffectiveSecurityRuleProtocol(r.Protocol)),
		ExpandedSourceAddressPrefix: texts(r.ExpandedSources), ExpandedDestinationAddressPrefix: texts(r.ExpandedDestinations),
	}
	if r.Protocol == vnet.Any {
		e.Protocol = new(armnetwork.EffectiveSecurityRuleProtocolAll)
	}
	addresses := func(list []string) (one *string, all []*string) {
		for _, a := range list {
			if ip, err := netip.ParseAddr(a); err == nil {
				a = ip.String() + "/32"
			}
			all = append(all, new(a))
		}
		if len(all) == 0 {
			all = []*string{new("0.0.0.0/0")}
		}
		return all[0], all
	}
	ports := func(list []vnet.PortRange) (one *string, all []*string) {
		if len(list) == 0 {
			list = []vnet.PortRange{{First: 0, Last: 65535}}
		}
		for _, p := range list {
			first, last, isRange := strings.Cut(p.String(), "-")
			if !isRange {
				last = first
			}
			all = append(all, new(first+"-"+last))
		}
		return all[0], all
	}
	e.SourceAddressPrefix, e.SourceAddressPrefixes = addresses(r.Sources)
	e.DestinationAddressPrefix, e.DestinationAddressPrefixes = addresses(r.Destinations)
	e.SourcePortRange, e.SourcePortRanges = ports(r.SourcePorts)
	e.DestinationPortRange, e.DestinationPortRanges = ports(r.DestinationPorts)
	return e
}

func texts(prefixes []netip.Prefix) []*string {
	var all []*string
	for _, p := range prefixes {
		all = append(all, new(p.String()))
	}
	return all
}

// RuleName returns a rule's name as the provider tells it of what decides: with whose rule it is.
func RuleName(r vnet.SecurityRule) string {
	if r.Priority > vnet.MaxSecurityPriority {
		return "defaultSecurityRules/" + r.Name
	}
	return "securityRules/" + r.Name
}
